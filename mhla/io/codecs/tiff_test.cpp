// TIFF files of every kind, written with libtiff, come back as PNG files of the same samples would.
#ifdef MHLA_TIFF
#include <gtest/gtest.h>
#include <tiffio.h>
#include <unistd.h>

#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_fixture.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

struct TiffKind {
  int photometric = PHOTOMETRIC_RGB;
  int bits = 8;
  int samples = 3;
  bool planes = false;
  int tile = 0;  // side; 0: strips of four rows
  int compression = COMPRESSION_NONE;
  const char* mode = "w";  // also b: big-endian, l: little-endian, 8: BigTIFF
  int orientation = ORIENTATION_TOPLEFT;
  int format = SAMPLEFORMAT_UINT;
};

int sample_at(const TiffKind& kind, int y, int x, int c) {
  return (y * 7919 + x * 104729 + c * 1299709 + (y * x) % 31) % (1 << kind.bits);
}

// `count` pixels of a row from x on, as libtiff takes them: in the order of this machine.
void pack(const TiffKind& kind, int y, int x, int count, int plane, std::uint8_t* out) {
  for (int i = 0; i < count; ++i)
    for (int c = 0; c < (kind.planes ? 1 : kind.samples); ++c) {
      const int value = sample_at(kind, y, x + i, kind.planes ? plane : c);
      const int at = i * (kind.planes ? 1 : kind.samples) + c, bit = at * kind.bits;
      if (kind.bits == 16) {
        const auto wide = static_cast<std::uint16_t>(value);
        std::memcpy(out + 2 * at, &wide, 2);
      } else {
        out[bit / 8] = static_cast<std::uint8_t>(out[bit / 8] | value << (8 - kind.bits - bit % 8));
      }
    }
}

Bytes write_tiff(const TiffKind& kind, int height, int width) {
  const std::string path = testing::TempDir() + "/tiff_test-" + std::to_string(::getpid()) + ".tif";
  TIFF* tiff = TIFFOpen(path.c_str(), kind.mode);
  TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, height), TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, width);
  TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, kind.bits), TIFFSetField(tiff, TIFFTAG_SAMPLESPERPIXEL, kind.samples);
  TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC, kind.photometric), TIFFSetField(tiff, TIFFTAG_COMPRESSION, kind.compression);
  TIFFSetField(tiff, TIFFTAG_PLANARCONFIG, kind.planes ? PLANARCONFIG_SEPARATE : PLANARCONFIG_CONTIG);
  TIFFSetField(tiff, TIFFTAG_ORIENTATION, kind.orientation), TIFFSetField(tiff, TIFFTAG_SAMPLEFORMAT, kind.format);
  const int colours = kind.photometric == PHOTOMETRIC_RGB || kind.photometric == PHOTOMETRIC_YCBCR ? 3
                      : kind.photometric == PHOTOMETRIC_SEPARATED                                  ? 4
                                                                                                   : 1;
  const std::uint16_t extra[16] = {EXTRASAMPLE_UNASSALPHA};
  if (kind.samples > colours) TIFFSetField(tiff, TIFFTAG_EXTRASAMPLES, kind.samples - colours, extra);
  if (kind.photometric == PHOTOMETRIC_YCBCR) TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  if (kind.photometric == PHOTOMETRIC_PALETTE) {
    std::vector<std::uint16_t> maps[3];
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 1 << kind.bits; ++i) maps[c].push_back(static_cast<std::uint16_t>(entry(i, c) * 257));
    TIFFSetField(tiff, TIFFTAG_COLORMAP, maps[0].data(), maps[1].data(), maps[2].data());
  }
  const int planes = kind.planes ? kind.samples : 1;
  if (kind.tile > 0) {
    TIFFSetField(tiff, TIFFTAG_TILEWIDTH, kind.tile), TIFFSetField(tiff, TIFFTAG_TILELENGTH, kind.tile);
    for (int plane = 0; plane < planes; ++plane)
      for (int y = 0; y < height; y += kind.tile)
        for (int x = 0; x < width; x += kind.tile) {
          std::vector<std::uint8_t> data(static_cast<std::size_t>(TIFFTileSize(tiff)));
          for (int i = 0; i < kind.tile; ++i)
            pack(kind, y + i, x, kind.tile, plane, data.data() + i * TIFFTileRowSize(tiff));
          TIFFWriteTile(tiff, data.data(), static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), 0,
                        static_cast<std::uint16_t>(plane));
        }
  } else {
    TIFFSetField(tiff, TIFFTAG_ROWSPERSTRIP, kind.compression == COMPRESSION_JPEG ? 16 : 4);
    for (int plane = 0; plane < planes; ++plane)
      for (int y = 0; y < height; ++y) {
        std::vector<std::uint8_t> row(static_cast<std::size_t>(TIFFScanlineSize(tiff)));
        pack(kind, y, 0, width, plane, row.data());
        TIFFWriteScanline(tiff, row.data(), static_cast<std::uint32_t>(y), static_cast<std::uint16_t>(plane));
      }
  }
  TIFFClose(tiff);
  const Bytes bytes = read_file(path);
  ::unlink(path.c_str());
  return bytes;
}

Image expected(const TiffKind& kind, int height, int width) {
  const bool palette = kind.photometric == PHOTOMETRIC_PALETTE;
  Image image;
  image.resize(height, width, palette || kind.photometric == PHOTOMETRIC_RGB ? 3 : 1);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < image.channels; ++c) {
        const int value = sample_at(kind, y, x, palette ? 0 : c);
        int scaled = kind.bits == 16 ? (value * 255 + 32895) >> 16 : value * 255 / ((1 << kind.bits) - 1);
        if (kind.photometric == PHOTOMETRIC_MINISWHITE) scaled = 255 - scaled;
        image.row(y)[x * image.channels + c] = palette ? entry(value, c) : static_cast<std::uint8_t>(scaled);
      }
  return image;
}

void expect_exact(const TiffKind& kind) {
  for (const auto& [height, width] : {std::pair{1, 1}, {5, 3}, {21, 37}})
    EXPECT_EQ(decoded(write_tiff(kind, height, width)), expected(kind, height, width))
        << "photometric " << kind.photometric << ", " << kind.samples << " samples of " << kind.bits << " bits, planes "
        << kind.planes << ", tile " << kind.tile << ", compression " << kind.compression << ", mode " << kind.mode;
}

TEST(Tiff, EveryKindComesBackExactly) {
  for (const bool planes : {false, true})
    for (const int tile : {0, 16}) {
      for (const int grey : {PHOTOMETRIC_MINISBLACK, PHOTOMETRIC_MINISWHITE})
        for (const int bits : {1, 2, 4, 8, 16})
          for (const int samples : {1, 2}) expect_exact({grey, bits, samples, planes, tile});
      for (const int bits : {1, 2, 4, 8}) expect_exact({PHOTOMETRIC_PALETTE, bits, 1, planes, tile});
      for (const int bits : {8, 16})
        for (const int samples : {3, 4, 5}) expect_exact({PHOTOMETRIC_RGB, bits, samples, planes, tile});
    }
  for (const int compression : {COMPRESSION_LZW, COMPRESSION_ADOBE_DEFLATE, COMPRESSION_PACKBITS})
    for (const int tile : {0, 16}) expect_exact({PHOTOMETRIC_RGB, 8, 3, false, tile, compression});
  for (const char* mode : {"wb", "wl", "w8"})
    for (const int bits : {8, 16}) expect_exact({.bits = bits, .mode = mode});
}

TEST(Tiff, OrientationIsIgnoredAsThatOfJpegFilesIs) {
  expect_exact({.orientation = ORIENTATION_BOTRIGHT});
  TiffKind kind{.photometric = PHOTOMETRIC_SEPARATED, .samples = 4};
  const Image upright = decoded(write_tiff(kind, 5, 3));
  kind.orientation = ORIENTATION_BOTRIGHT;
  EXPECT_EQ(decoded(write_tiff(kind, 5, 3)), upright);
}

TEST(Tiff, JpegInsideAndInksBecomeRgb) {
  const Image colour = decoded(write_tiff({.photometric = PHOTOMETRIC_YCBCR, .compression = COMPRESSION_JPEG}, 33, 20));
  EXPECT_EQ(colour.channels, 3);
  EXPECT_EQ(colour.height, 33);
  const TiffKind kind{.photometric = PHOTOMETRIC_SEPARATED, .samples = 4};
  const Image inks = decoded(write_tiff(kind, 5, 3));
  Image want;
  want.resize(5, 3, 3);
  for (int y = 0; y < 5; ++y)
    for (int x = 0; x < 3; ++x)
      for (int c = 0; c < 3; ++c)
        want.row(y)[3 * x + c] =
            static_cast<std::uint8_t>((255 - sample_at(kind, y, x, c)) * (255 - sample_at(kind, y, x, 3)) / 255);
  EXPECT_LE(worst_difference(inks, want), 1);
}

TEST(Tiff, WhatIsNotReadIsSaid) {
  EXPECT_EQ(refused(write_tiff({.bits = 16, .format = SAMPLEFORMAT_IEEEFP}, 5, 3)),
            "some/file: TIFF of floating-point samples, expected unsigned whole numbers");
  EXPECT_EQ(refused(write_tiff({.format = SAMPLEFORMAT_INT}, 5, 3)),
            "some/file: TIFF of signed samples, expected unsigned whole numbers");
  EXPECT_EQ(refused(write_tiff({.photometric = PHOTOMETRIC_MINISBLACK, .samples = 17}, 5, 3)),
            "some/file: TIFF of 17 samples a pixel, expected 1 to 16");
}

TEST(Tiff, CutBentOrTooLarge) {
  expect_limits(write_tiff({}, 30, 40));
  expect_no_harm(write_tiff({}, 9, 11), "damaged TIFF: ", 2);
  expect_no_harm(write_tiff({PHOTOMETRIC_PALETTE, 4, 1, false, 16, COMPRESSION_LZW}, 9, 11), "damaged TIFF: ", 3);
  expect_no_harm(write_tiff({.photometric = PHOTOMETRIC_YCBCR, .compression = COMPRESSION_JPEG}, 20, 20),
                 "damaged TIFF: ", 4);
}

TEST(Tiff, TilesLargerThanTheImageHaveALimit) {
  const Bytes bytes = write_tiff({.tile = 512}, 9, 11);
  EXPECT_EQ(refused(bytes), "nothing was thrown");
  EXPECT_TRUE(has(refused(bytes, {.max_pixels = 1000}), "TIFF of tiles of 512 x 512 pixels, too large for 9 x 11"));
}

}  // namespace
}  // namespace mhla
#endif
