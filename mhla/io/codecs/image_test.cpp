// Files of every kind, written here with libjpeg and libpng, come back as 8-bit grey or RGB; cut short, bent or
// oversized they are an Error that names the file.
#include "mhla/io/codecs/image.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
// After <cstdio>: jpeglib.h uses its types.
#include <jpeglib.h>
#include <png.h>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_fixture.h"

namespace mhla {
namespace {

// ---- JPEG --------------------------------------------------------------------------------------------------------

struct JpegKind {
  J_COLOR_SPACE in = JCS_RGB;
  J_COLOR_SPACE stored = JCS_YCbCr;
  int components = 3;
  bool progressive = false;
  int restart = 0;
  bool halved_chroma = true;
  bool arithmetic = false;
};

Bytes write_jpeg(const std::vector<std::uint8_t>& pixels, int height, int width, const JpegKind& kind) {
  jpeg_error_mgr errors{};
  jpeg_compress_struct info{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.input_components = kind.components;
  info.in_color_space = kind.in;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, kind.stored);
  jpeg_set_quality(&info, 95, TRUE);
  if (kind.progressive) jpeg_simple_progression(&info);
  if (!kind.halved_chroma) info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
  info.restart_interval = static_cast<unsigned>(kind.restart);
  info.arith_code = kind.arithmetic ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + static_cast<std::size_t>(info.next_scanline) *
                                                         static_cast<std::size_t>(width * kind.components));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  Bytes bytes(begin, begin + size);
  std::free(data);
  return bytes;
}

TEST(Jpeg, ColourComesBack) {
  const Image image = smooth_image(37, 51, 3);
  for (const bool progressive : {false, true})
    for (const bool halved : {false, true})
      for (const bool arithmetic : {false, true})
        for (const int restart : {0, 2}) {
          const JpegKind kind{
              .progressive = progressive, .restart = restart, .halved_chroma = halved, .arithmetic = arithmetic};
          const Image back = decoded(write_jpeg(image.pixels, 37, 51, kind));
          EXPECT_LE(worst_difference(back, image), 8)
              << "progressive " << progressive << " halved " << halved << " arithmetic " << arithmetic;
        }
}

TEST(Jpeg, GreyStaysGrey) {
  const Image image = smooth_image(9, 64, 1);
  const JpegKind kind{.in = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE, .components = 1};
  EXPECT_LE(worst_difference(decoded(write_jpeg(image.pixels, 9, 64, kind)), image), 4);
}

TEST(Jpeg, SizesThatFillNoBlock) {
  for (const int height : {1, 7, 8, 9, 17})
    for (const int width : {1, 15, 16, 33}) {
      const Image image = smooth_image(height, width, 3);
      EXPECT_LE(worst_difference(decoded(encode_jpeg(image, 100)), image), 40) << height << " x " << width;
    }
}

// libjpeg stores CMYK with Adobe's marker, which says "inverted": what is written is 255 - ink.
TEST(Jpeg, FourInksBecomeRgb) {
  const int height = 16, width = 24;
  std::vector<std::uint8_t> inverted;
  Image want;
  want.resize(height, width, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      const double cyan = 0.2 + 0.5 * x / width, magenta = 0.3, yellow = 0.1 + 0.6 * y / height, black = 0.25;
      const double inks[] = {cyan, magenta, yellow, black};
      for (const double ink : inks) inverted.push_back(static_cast<std::uint8_t>(255.0 * (1.0 - ink) + 0.5));
      for (int c = 0; c < 3; ++c)
        want.row(y)[3 * x + c] = static_cast<std::uint8_t>(255.0 * (1.0 - inks[c]) * (1.0 - black) + 0.5);
    }
  for (const J_COLOR_SPACE stored : {JCS_CMYK, JCS_YCCK}) {
    const JpegKind kind{.in = JCS_CMYK, .stored = stored, .components = 4};
    EXPECT_LE(worst_difference(decoded(write_jpeg(inverted, height, width, kind)), want), 8) << stored;
  }
}

TEST(Jpeg, CutShortIsAnErrorEverywhere) {
  for (const bool progressive : {false, true}) {
    const Image image = noise_image(24, 24, 3, 1);
    const Bytes whole = write_jpeg(image.pixels, 24, 24, {.progressive = progressive});
    for (std::size_t size = 3; size + 2 < whole.size(); ++size) {
      const std::string message = refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
      ASSERT_TRUE(has(message, "some/file: damaged JPEG: ")) << size << " of " << whole.size() << ": " << message;
    }
  }
}

TEST(Jpeg, BentBytesAreAnErrorOrAnImageOfTheSameKind) {
  const Bytes whole = write_jpeg(noise_image(16, 16, 3, 2).pixels, 16, 16, {});
  Random random(3);
  int errors = 0;
  for (int round = 0; round < 3000; ++round) {
    Bytes bent = whole;
    for (int i = 0; i < 3; ++i)
      bent[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bent.size())))] =
          static_cast<std::byte>(random.below(256));
    Image image;
    try {
      decode_image(bent, "bent", image, {.max_pixels = 1 << 16});
      EXPECT_EQ(image.pixels.size(),
                static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width * image.channels));
    } catch (const Error& error) {
      ++errors;
      EXPECT_EQ(std::strncmp(error.what(), "bent: ", 6), 0) << error.what();
    }
  }
  EXPECT_GT(errors, 300);
}

// ---- PNG ---------------------------------------------------------------------------------------------------------

struct PngKind {
  int color = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  bool interlaced = false;
  bool transparent = false;  // a tRNS chunk
};

void collect(png_structp png, png_bytep data, png_size_t size) {
  auto& bytes = *static_cast<Bytes*>(png_get_io_ptr(png));
  bytes.insert(bytes.end(), reinterpret_cast<std::byte*>(data), reinterpret_cast<std::byte*>(data) + size);
}

int channels_of(int color) {
  switch (color) {
    case PNG_COLOR_TYPE_GRAY_ALPHA: return 2;
    case PNG_COLOR_TYPE_RGB: return 3;
    case PNG_COLOR_TYPE_RGBA: return 4;
    default: return 1;
  }
}

png_color palette_entry(int i) {
  return {static_cast<png_byte>(i * 16 + 3), static_cast<png_byte>(255 - i * 9), static_cast<png_byte>(i * 5)};
}

// The sample of a pixel before packing, any value of `bits` bits.
int sample_at(const PngKind& kind, int y, int x, int c) {
  const int top = kind.color == PNG_COLOR_TYPE_PALETTE ? (1 << kind.bits) - 1 : (1 << kind.bits) - 1;
  return (y * 7919 + x * 104729 + c * 1299709 + (y * x) % 31) % (top + 1);
}

Bytes write_png(const PngKind& kind, int height, int width) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  Bytes bytes;
  png_set_write_fn(png, &bytes, collect, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), kind.bits, kind.color,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (kind.color == PNG_COLOR_TYPE_PALETTE) {
    std::vector<png_color> palette;
    for (int i = 0; i < 1 << kind.bits; ++i) palette.push_back(palette_entry(i));
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  png_byte alphas[2] = {0, 128};
  png_color_16 clear{0, 1, 1, 1, 1};
  if (kind.transparent) png_set_tRNS(png, info, alphas, 2, &clear);
  const int channels = channels_of(kind.color);
  const std::size_t row_bytes = (static_cast<std::size_t>(width * channels * kind.bits) + 7) / 8;
  std::vector<std::vector<png_byte>> rows;
  for (int y = 0; y < height; ++y) {
    std::vector<png_byte> row(row_bytes);
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const int value = sample_at(kind, y, x, c);
        const int bit = (x * channels + c) * kind.bits;
        if (kind.bits == 16) {
          row[static_cast<std::size_t>(bit / 8)] = static_cast<png_byte>(value >> 8);
          row[static_cast<std::size_t>(bit / 8 + 1)] = static_cast<png_byte>(value & 255);
        } else {
          row[static_cast<std::size_t>(bit / 8)] |= static_cast<png_byte>(value << (8 - kind.bits - bit % 8));
        }
      }
    rows.push_back(std::move(row));
  }
  std::vector<png_bytep> pointers;
  for (auto& row : rows) pointers.push_back(row.data());
  png_write_info(png, info);
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

Image expected(const PngKind& kind, int height, int width) {
  const bool grey = kind.color == PNG_COLOR_TYPE_GRAY || kind.color == PNG_COLOR_TYPE_GRAY_ALPHA;
  Image image;
  image.resize(height, width, grey ? 1 : 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < image.channels; ++c) {
        int value = 0;
        if (kind.color == PNG_COLOR_TYPE_PALETTE) {
          const png_color entry = palette_entry(sample_at(kind, y, x, 0));
          value = c == 0 ? entry.red : c == 1 ? entry.green : entry.blue;
        } else if (kind.bits == 16) {
          value = (sample_at(kind, y, x, c) * 255 + 32895) >> 16;  // round(v / 257)
        } else {
          value = sample_at(kind, y, x, c) * 255 / ((1 << kind.bits) - 1);
        }
        image.row(y)[x * image.channels + c] = static_cast<std::uint8_t>(value);
      }
  return image;
}

std::vector<PngKind> png_kinds() {
  std::vector<PngKind> kinds;
  for (const bool interlaced : {false, true})
    for (const bool transparent : {false, true}) {
      for (const int bits : {1, 2, 4, 8, 16}) kinds.push_back({PNG_COLOR_TYPE_GRAY, bits, interlaced, transparent});
      for (const int bits : {1, 2, 4, 8}) kinds.push_back({PNG_COLOR_TYPE_PALETTE, bits, interlaced, transparent});
      for (const int bits : {8, 16}) kinds.push_back({PNG_COLOR_TYPE_RGB, bits, interlaced, transparent});
      if (transparent) continue;  // not beside alpha
      for (const int color : {PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGBA})
        for (const int bits : {8, 16}) kinds.push_back({color, bits, interlaced, false});
    }
  return kinds;
}

TEST(Png, EveryKindComesBackExactly) {
  for (const PngKind& kind : png_kinds())
    for (const auto& [height, width] : {std::pair{1, 1}, {5, 3}, {13, 33}})
      EXPECT_EQ(decoded(write_png(kind, height, width)), expected(kind, height, width))
          << "colour type " << kind.color << ", " << kind.bits << " bits, interlaced " << kind.interlaced
          << ", transparent " << kind.transparent << ", " << height << " x " << width;
}

TEST(Png, CutShortIsAnErrorEverywhere) {
  for (const bool interlaced : {false, true}) {
    const Bytes whole = write_png({.interlaced = interlaced}, 9, 11);
    for (std::size_t size = 4; size < whole.size(); ++size) {
      const std::string message = refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
      ASSERT_TRUE(has(message, "some/file: damaged PNG: ")) << size << " of " << whole.size() << ": " << message;
    }
  }
}

// Every chunk has a checksum: no bent byte of the pixels goes unseen.
TEST(Png, ABentByteOfThePixelsIsAnError) {
  const Bytes whole = write_png({}, 9, 11);
  const std::size_t first = 8 + 25 + 8;  // signature, IHDR, head of IDAT
  for (std::size_t at = first; at + 12 < whole.size(); ++at) {
    Bytes bent = whole;
    bent[at] ^= std::byte{0x20};
    EXPECT_TRUE(has(refused(bent), "some/file: damaged PNG: ")) << at;
  }
}

// ---- both --------------------------------------------------------------------------------------------------------

TEST(Image, OurFilesComeBack) {
  for (const int channels : {1, 3}) {
    const Image image = noise_image(19, 23, channels, 5);
    EXPECT_EQ(decoded(encode_png(image)), image);
    EXPECT_LE(
        worst_difference(decoded(encode_jpeg(smooth_image(40, 40, channels), 95)), smooth_image(40, 40, channels)), 8);
  }
}

TEST(Image, OversizedIsRefusedBeforeItIsDecoded) {
  const Image image = smooth_image(30, 40, 3);
  for (const Bytes& bytes : {encode_png(image), encode_jpeg(image)}) {
    EXPECT_TRUE(has(refused(bytes, {.max_pixels = 1199}), "some/file: 30 x 40 pixels, expected 1 to 1199"));
    EXPECT_TRUE(has(refused(bytes, {.max_bytes = 100}), "more than the 100"));
    EXPECT_EQ(refused(bytes, {.max_pixels = 1200}), "nothing was thrown");
  }
  Bytes huge = encode_jpeg(image);  // a head that asks for 65500 x 65500, without the pixels
  for (std::size_t i = 0; i + 8 < huge.size(); ++i)
    if (huge[i] == std::byte{0xff} && huge[i + 1] == std::byte{0xc0})
      for (const std::size_t side : {i + 5, i + 7}) huge[side] = std::byte{0xff}, huge[side + 1] = std::byte{0xdc};
  EXPECT_TRUE(has(refused(huge), "65500 x 65500 pixels")) << refused(huge);
}

TEST(Image, WhatIsNoImageIsSaid) {
  const std::string known = readable_formats();
  EXPECT_EQ(known.rfind("JPEG, PNG", 0), 0u) << known;
  EXPECT_EQ(refused({}), "some/file: is empty, expected a " + known + " image");
  EXPECT_EQ(refused(Bytes(9, std::byte{0x47})), "some/file: begins with 47 47 47 47, expected a " + known + " image");
  EXPECT_TRUE(has(message_of([] { read_image("/nowhere/x.png"); }), "/nowhere/x.png: No such file"));
}

TEST(Image, ReadsAFile) {
  const std::string path = testing::TempDir() + "/image_test.png";
  const Image image = noise_image(3, 4, 3, 9);
  const Bytes bytes = encode_png(image);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_EQ(read_image(path), image);
  std::remove(path.c_str());
}

TEST(Image, ChannelsByHand) {
  Image image{1, 2, 3, {255, 0, 0, 10, 20, 30}};
  convert_channels(image, 1);
  EXPECT_EQ(image, (Image{1, 2, 1, {76, 18}}));  // 0.299 * 255, 0.299 * 10 + 0.587 * 20 + 0.114 * 30
  convert_channels(image, 3);
  EXPECT_EQ(image, (Image{1, 2, 3, {76, 76, 76, 18, 18, 18}}));
  EXPECT_EQ(message_of([&] { convert_channels(image, 2); }), "convert_channels: 3 to 2 channels, expected 1 or 3");
}

TEST(Image, EncodingChecksItsInput) {
  EXPECT_TRUE(has(message_of([] { encode_png({1, 1, 2, {1, 2}}); }), "encode_png: image has 2 channels"));
  EXPECT_TRUE(has(message_of([] { encode_jpeg({1, 1, 1, {1}}, 0); }), "encode_jpeg: quality is 0"));
  EXPECT_TRUE(has(message_of([] { encode_jpeg({2, 2, 1, {1}}); }), "1 bytes of pixels, expected 4"));
  EXPECT_TRUE(has(message_of([] { encode_png({}); }), "encode_png: image has 0 channels"));
}

}  // namespace
}  // namespace mhla
