// BMP, WebP and GIF files of every kind, written here (BMP by hand, the others with their libraries), come back as
// 8-bit RGB or grey; cut short, bent or oversized they are an Error that names the file.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#ifdef MHLA_GIF
#include <gif_lib.h>
#endif
#ifdef MHLA_WEBP
#include <webp/encode.h>
#endif

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_fixture.h"

namespace mhla {
namespace {

// ---- BMP ---------------------------------------------------------------------------------------------------------

struct BmpKind {
  int bits = 24;
  int head = 40;  // bytes: 12 is OS/2's, 108 and 124 are of later Windows
  bool from_above = false;
  std::uint32_t masks[3] = {0, 0, 0};  // none: the usual places
};

Bytes write_bmp(const BmpKind& kind, const Image& image) {
  const bool palette = kind.bits <= 8, masked = kind.masks[0] != 0;
  const int colours = palette ? 1 << kind.bits : 0, entry_bytes = kind.head == 12 ? 3 : 4;
  const int at = 14 + kind.head + colours * entry_bytes + (masked && kind.head == 40 ? 12 : 0);
  Bytes bytes;
  add(bytes, "BM");
  add(bytes, 0, 8), add(bytes, static_cast<std::uint64_t>(at), 4);
  add(bytes, static_cast<std::uint64_t>(kind.head), 4);
  const int side = kind.head == 12 ? 2 : 4;
  add(bytes, static_cast<std::uint64_t>(image.width), side);
  add(bytes, static_cast<std::uint64_t>(kind.from_above ? -image.height : image.height), side);
  add(bytes, 1, 2), add(bytes, static_cast<std::uint64_t>(kind.bits), 2);
  if (kind.head > 12) add(bytes, masked ? 3 : 0, 4), add(bytes, 0, 20);
  if (masked)
    for (const std::uint32_t mask : kind.masks) add(bytes, mask, 4);
  bytes.resize(static_cast<std::size_t>(at - colours * entry_bytes));
  for (int i = 0; i < colours; ++i) {
    for (int c = 2; c >= 0; --c) add(bytes, entry(i, c), 1);
    add(bytes, 0, entry_bytes - 3);
  }
  for (int row = 0; row < image.height; ++row) {
    const int y = kind.from_above ? row : image.height - 1 - row;
    Bytes packed(static_cast<std::size_t>((image.width * kind.bits + 31) / 32 * 4));
    for (int x = 0; x < image.width; ++x) {
      const std::uint8_t* rgb = image.row(y) + 3 * x;
      if (palette) {
        const int bit = x * kind.bits, index = index_at(y, x, kind.bits);
        packed[static_cast<std::size_t>(bit / 8)] |= static_cast<std::byte>(index << (8 - kind.bits - bit % 8));
        continue;
      }
      std::uint32_t pixel = kind.bits == 32 ? 0x55000000u : 0;  // what lies where alpha would is dropped
      for (int c = 0; c < 3; ++c) {
        const std::uint32_t usual = kind.bits == 16 ? 0x1fu << (10 - 5 * c) : 0xffu << (16 - 8 * c);
        const std::uint32_t mask = masked ? kind.masks[c] : usual;
        if (masked) pixel &= ~mask;
        const int shift = std::countr_zero(mask);
        pixel |= (rgb[c] * (mask >> shift) + 127) / 255 << shift;
      }
      for (int i = 0; i < kind.bits / 8; ++i)
        packed[static_cast<std::size_t>(x * kind.bits / 8 + i)] = static_cast<std::byte>(pixel >> (8 * i) & 255);
    }
    bytes.insert(bytes.end(), packed.begin(), packed.end());
  }
  return bytes;
}

TEST(Bmp, EveryKindComesBack) {
  for (const int head : {12, 40, 56, 64, 108, 124})
    for (const bool from_above : {false, true})
      for (const auto& [height, width] : {std::pair{1, 1}, {5, 3}, {13, 33}}) {
        if (head == 12 && from_above) continue;  // it has no sign
        for (const int bits : {1, 4, 8})
          EXPECT_EQ(decoded(write_bmp({bits, head, from_above, {}}, palette_image(height, width, bits))),
                    palette_image(height, width, bits))
              << bits << " bits, head " << head << ", from above " << from_above;
        const Image image = noise_image(height, width, 3, 4);
        for (const int bits : {24, 32})
          EXPECT_EQ(decoded(write_bmp({bits, head, from_above, {}}, image)), image) << bits << ", head " << head;
        EXPECT_LE(worst_difference(decoded(write_bmp({16, head, from_above, {}}, image)), image), 5);
      }
}

TEST(Bmp, MasksSayWhereTheColoursAre) {
  const Image image = noise_image(7, 9, 3, 6);
  for (const int head : {40, 108}) {
    EXPECT_EQ(decoded(write_bmp({32, head, false, {0xff, 0xff00, 0xff0000}}, image)), image);
    EXPECT_EQ(decoded(write_bmp({32, head, true, {0x3ff00000, 0xffc00, 0x3ff}}, image)), image);
    EXPECT_LE(worst_difference(decoded(write_bmp({16, head, false, {0xf800, 0x7e0, 0x1f}}, image)), image), 5);
  }
  EXPECT_TRUE(has(refused(write_bmp({32, 40, false, {0xf0f, 0xff00, 0xff0000}}, image)), "a mask with holes"));
}

TEST(Bmp, WhatIsNotReadIsSaid) {
  Bytes runs = write_bmp({8, 40, false, {}}, palette_image(5, 3, 8));
  runs[30] = std::byte{1};
  EXPECT_EQ(refused(runs), "some/file: BMP of runs (RLE), which is not read here, expected one without compression");
  Bytes odd = write_bmp({}, smooth_image(5, 3, 3));
  odd[28] = std::byte{23};
  EXPECT_EQ(refused(odd), "some/file: BMP of 23 bits a pixel, expected 1, 4, 8, 16, 24 or 32");
  Bytes few = write_bmp({8, 40, false, {}}, palette_image(13, 33, 8));
  few[46] = std::byte{7};  // a palette of seven colours
  EXPECT_TRUE(has(refused(few), "some/file: damaged BMP: colour ")) << refused(few);
  Bytes huge = write_bmp({}, smooth_image(5, 3, 3));  // a head that asks for more than the file has
  huge[19] = std::byte{0x20}, huge[23] = std::byte{0x20};
  EXPECT_EQ(refused(huge), "some/file: damaged BMP: the file ends too early");
}

TEST(Bmp, CutBentOrTooLarge) {
  expect_limits(write_bmp({}, smooth_image(30, 40, 3)));
  expect_no_harm(write_bmp({}, noise_image(9, 11, 3, 1)), "damaged BMP: ", 2);
  expect_no_harm(write_bmp({4, 40, false, {}}, palette_image(9, 11, 4)), "damaged BMP: ", 3);
}

// ---- WebP --------------------------------------------------------------------------------------------------------

#ifdef MHLA_WEBP
Bytes write_webp(const Image& image, bool lossless, const std::vector<std::uint8_t>& rgba = {}) {
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
  if (!rgba.empty())
    size = WebPEncodeLosslessRGBA(rgba.data(), image.width, image.height, 4 * image.width, &data);
  else if (lossless)
    size = WebPEncodeLosslessRGB(image.row(0), image.width, image.height, 3 * image.width, &data);
  else
    size = WebPEncodeRGB(image.row(0), image.width, image.height, 3 * image.width, 95.0f, &data);
  const Bytes bytes(reinterpret_cast<std::byte*>(data), reinterpret_cast<std::byte*>(data) + size);
  WebPFree(data);
  return bytes;
}

// An animation of one frame at (y, x) of a canvas: the chunk of a still image within others.
Bytes animation(const Bytes& still, int height, int width, const Image& frame, int y, int x) {
  const auto side = [](int value) { return static_cast<std::uint64_t>(value); };
  const std::size_t chunk = still.size() - 12;  // behind RIFF, its size and WEBP
  Bytes body;
  add(body, "WEBPVP8X"), add(body, 10, 4), add(body, 2, 4), add(body, side(width - 1), 3),
      add(body, side(height - 1), 3);
  add(body, "ANIM"), add(body, 6, 4), add(body, 0xffffffff, 4), add(body, 0, 2);
  add(body, "ANMF"), add(body, 16 + chunk, 4), add(body, side(x / 2), 3), add(body, side(y / 2), 3);
  add(body, side(frame.width - 1), 3), add(body, side(frame.height - 1), 3), add(body, 100, 3), add(body, 0, 1);
  body.insert(body.end(), still.begin() + 12, still.end());
  Bytes bytes;
  add(bytes, "RIFF"), add(bytes, body.size(), 4);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

TEST(Webp, ComesBack) {
  for (const auto& [height, width] : {std::pair{1, 1}, {5, 3}, {13, 33}}) {
    const Image image = noise_image(height, width, 3, 8);
    EXPECT_EQ(decoded(write_webp(image, true)), image);
  }
  const Image smooth = smooth_image(37, 51, 3);
  EXPECT_LE(worst_difference(decoded(write_webp(smooth, false)), smooth), 12);
}

TEST(Webp, AlphaIsDropped) {
  const Image image = noise_image(7, 9, 3, 9);
  std::vector<std::uint8_t> rgba;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    rgba.insert(rgba.end(), {image.pixels[i], image.pixels[i + 1], image.pixels[i + 2]});
    rgba.push_back(static_cast<std::uint8_t>(1 + i % 200));
  }
  EXPECT_EQ(decoded(write_webp(image, true, rgba)), image);
}

TEST(Webp, AnAnimationGivesItsFirstFrame) {
  const Image frame = noise_image(6, 8, 3, 10);
  Image canvas{20, 30, 3, std::vector<std::uint8_t>(std::size_t{20} * 30 * 3)};
  for (int y = 0; y < frame.height; ++y)
    std::memcpy(canvas.row(4 + y) + 3 * 2, frame.row(y), static_cast<std::size_t>(3 * frame.width));
  const Bytes bytes = animation(write_webp(frame, true), 20, 30, frame, 4, 2);
  EXPECT_EQ(decoded(bytes), canvas);
  expect_no_harm(bytes, "damaged WebP: ", 11);
}

TEST(Webp, CutBentOrTooLarge) {
  expect_limits(write_webp(smooth_image(30, 40, 3), true));
  expect_no_harm(write_webp(noise_image(9, 11, 3, 1), true), "damaged WebP: ", 2);
  expect_no_harm(write_webp(noise_image(9, 11, 3, 1), false), "damaged WebP: ", 3);
}
#endif

// ---- GIF ---------------------------------------------------------------------------------------------------------

#ifdef MHLA_GIF
struct GifKind {
  int bits = 8;
  bool interlaced = false, own_palette = false;
  int top = 0, left = 0;                // of the frame
  int more_height = 0, more_width = 0;  // of the canvas
  int frames = 1;                       // the second and later ones are of colour 0
};

int collect_gif(GifFileType* gif, const GifByteType* data, int size) {
  auto& bytes = *static_cast<Bytes*>(gif->UserData);
  bytes.insert(bytes.end(), reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
  return size;
}

Bytes write_gif(const GifKind& kind, int height, int width) {
  Bytes bytes;
  int error = 0;
  GifFileType* gif = EGifOpen(&bytes, collect_gif, &error);
  ColorMapObject* map = GifMakeMapObject(1 << kind.bits, nullptr);
  for (int i = 0; i < map->ColorCount; ++i) map->Colors[i] = {entry(i, 0), entry(i, 1), entry(i, 2)};
  EGifSetGifVersion(gif, true);
  EGifPutScreenDesc(gif, kind.left + width + kind.more_width, kind.top + height + kind.more_height, 8, 1,
                    kind.own_palette ? nullptr : map);
  const GifByteType control[] = {9, 10, 0, 0};  // transparent colour 0, before the frame
  EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control);
  for (int frame = 0; frame < kind.frames; ++frame) {
    EGifPutImageDesc(gif, kind.left, kind.top, width, height, kind.interlaced, kind.own_palette ? map : nullptr);
    const auto put = [&](int y) {
      std::vector<GifPixelType> row(static_cast<std::size_t>(width));
      for (int x = 0; x < width && frame == 0; ++x)
        row[static_cast<std::size_t>(x)] = static_cast<GifPixelType>(index_at(y, x, kind.bits));
      EGifPutLine(gif, row.data(), width);
    };
    if (!kind.interlaced)
      for (int y = 0; y < height; ++y) put(y);
    else
      for (const auto& [first, step] : {std::pair{0, 8}, {4, 8}, {2, 4}, {1, 2}})
        for (int y = first; y < height; y += step) put(y);
  }
  GifFreeMapObject(map);
  EGifCloseFile(gif, &error);
  return bytes;
}

TEST(Gif, EveryKindComesBack) {
  for (const bool interlaced : {false, true})
    for (const bool own_palette : {false, true})
      for (const int bits : {1, 2, 4, 8})
        for (const auto& [height, width] : {std::pair{1, 1}, {5, 3}, {13, 33}}) {
          const GifKind kind{.bits = bits, .interlaced = interlaced, .own_palette = own_palette};
          EXPECT_EQ(decoded(write_gif(kind, height, width)), palette_image(height, width, bits))
              << bits << " bits, interlaced " << interlaced << ", own palette " << own_palette;
        }
}

TEST(Gif, TheFirstFrameLiesOnTheBackground) {
  const GifKind kind{.bits = 4, .top = 2, .left = 3, .more_height = 1, .more_width = 4, .frames = 3};
  const Image frame = palette_image(5, 6, 4);
  Image canvas;
  canvas.resize(8, 13, 3);
  for (int i = 0; i < 8 * 13; ++i)
    for (int c = 0; c < 3; ++c) canvas.pixels[static_cast<std::size_t>(3 * i + c)] = entry(1, c);
  for (int y = 0; y < 5; ++y) std::memcpy(canvas.row(2 + y) + 9, frame.row(y), 18);
  EXPECT_EQ(decoded(write_gif(kind, 5, 6)), canvas);
}

TEST(Gif, CutBentOrTooLarge) {
  expect_limits(write_gif({.bits = 4}, 30, 40));
  expect_no_harm(write_gif({.bits = 4}, 9, 11), "damaged GIF: ", 2);
  expect_no_harm(write_gif({.bits = 8, .interlaced = true}, 9, 11), "damaged GIF: ", 3);
}
#endif

TEST(Image, SeedsOfTheFuzzerAreImages) {
  int read = 0;
  for (const auto& file : std::filesystem::directory_iterator(MHLA_SOURCE_DIR "/mhla/io/codecs/fuzz_corpus/image")) {
    const ImageFormat* format = format_of_ending(file.path().extension().string());
    ASSERT_NE(format, nullptr) << file.path();
    if (format->decode == nullptr || file.path().filename().string().rfind("damaged", 0) == 0) continue;
    EXPECT_EQ(message_of([&] { read_image(file.path()); }), "nothing was thrown");
    ++read;
  }
  EXPECT_GE(read, 8);
}

TEST(Image, WhatThisBuildCannotReadIsSaid) {
  for (const ImageFormat& format : image_formats()) {
    if (format.decode != nullptr) continue;
    Bytes bytes;
    if (format.name == "WebP") add(bytes, "RIFF    WEBP");
    if (format.name == "GIF") add(bytes, "GIF89a");
    if (format.name == "TIFF") add(bytes, std::string_view("II*\0", 4));
    EXPECT_EQ(refused(bytes), str("some/file: is a ", format.name,
                                  " image, which this build cannot read: it was made without ", format.library));
  }
  EXPECT_EQ(format_of_ending(".webp")->name, "WebP");
  EXPECT_EQ(format_of_ending(".tiff"), format_of_ending(".tif"));
  EXPECT_EQ(format_of_ending(".heic"), nullptr);
  EXPECT_EQ(format_of_ending(""), nullptr);
}

}  // namespace
}  // namespace mhla
