// A GIF in memory, opened with giflib: for still images and for videos. Private to this room.
#pragma once

#ifdef MHLA_GIF
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {

class GifFile {
 public:
  GifFile(std::span<const std::byte> bytes, std::string label) : label_(std::move(label)), left_(bytes) {
    int error = 0;
    gif_ = DGifOpen(this, take_bytes, &error);
    if (gif_ == nullptr) damaged(error);
  }
  ~GifFile() {
    int error = 0;
    DGifCloseFile(gif_, &error);
  }
  GifFile(const GifFile&) = delete;
  GifFile& operator=(const GifFile&) = delete;

  [[noreturn]] void damaged(int error) const {
    const char* reason = GifErrorString(error);
    fail(label_, ": damaged GIF: ", reason == nullptr ? "giflib could not read it" : reason);
  }
  void expect(int status) const {
    if (status != GIF_OK) damaged(gif_->Error);
  }
  GifFileType* operator->() const { return gif_; }
  [[nodiscard]] const std::string& label() const { return label_; }

  // Goes to the next frame and reads its description; false: there is none. Extensions before it go to `take`, block
  // by block: its code, then the block with its length in the first byte.
  template <class Take>
  bool find_frame(const Take& take) {
    for (GifRecordType type = UNDEFINED_RECORD_TYPE;;) {
      expect(DGifGetRecordType(gif_, &type));
      if (type == IMAGE_DESC_RECORD_TYPE) {
        expect(DGifGetImageDesc(gif_));
        return true;
      }
      if (type == TERMINATE_RECORD_TYPE) return false;
      if (type != EXTENSION_RECORD_TYPE) continue;
      GifByteType* block = nullptr;
      int code = 0;
      for (expect(DGifGetExtension(gif_, &code, &block)); block != nullptr; expect(DGifGetExtensionNext(gif_, &block)))
        take(code, block);
    }
  }

  // The canvas that holds the frame at hand. Some writers give no size of the whole, or one that is too small: viewers
  // show the frame all the same.
  [[nodiscard]] int height() const { return std::max(gif_->SHeight, gif_->Image.Top + gif_->Image.Height); }
  [[nodiscard]] int width() const { return std::max(gif_->SWidth, gif_->Image.Left + gif_->Image.Width); }

  [[nodiscard]] GifColorType background() const {
    const ColorMapObject* screen = gif_->SColorMap;
    const bool known = screen != nullptr && gif_->SBackGroundColor >= 0 && gif_->SBackGroundColor < screen->ColorCount;
    return known ? screen->Colors[gif_->SBackGroundColor] : GifColorType{};
  }

  // Paints the frame at hand onto a canvas that holds it, but for pixels of the colour `transparent` (-1: none).
  void paint(Image& canvas, int transparent) {
    const GifImageDesc& frame = gif_->Image;
    const ColorMapObject* map = frame.ColorMap != nullptr ? frame.ColorMap : gif_->SColorMap;
    if (map == nullptr || map->Colors == nullptr) fail(label_, ": damaged GIF: it has no palette");
    struct Pass {  // interlaced rows come in four
      int first, step;
    };
    static constexpr Pass kWhole[] = {{0, 1}}, kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
    std::vector<GifPixelType> indices(static_cast<std::size_t>(frame.Width));
    for (const Pass& pass : frame.Interlace ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kWhole)) {
      for (int y = pass.first; y < frame.Height; y += pass.step) {
        expect(DGifGetLine(gif_, indices.data(), frame.Width));
        std::uint8_t* out = canvas.row(frame.Top + y) + 3 * frame.Left;
        for (const GifPixelType index : indices) {
          if (index >= map->ColorCount)
            fail(label_, ": damaged GIF: colour ", int{index}, " of a palette of ", map->ColorCount);
          const GifColorType& colour = map->Colors[index];
          if (int{index} != transparent) out[0] = colour.Red, out[1] = colour.Green, out[2] = colour.Blue;
          out += 3;
        }
      }
    }
  }

 private:
  static int take_bytes(GifFileType* gif, GifByteType* out, int count) {
    auto& left = static_cast<GifFile*>(gif->UserData)->left_;
    const std::size_t size = std::min(left.size(), static_cast<std::size_t>(std::max(count, 0)));
    if (size > 0) std::memcpy(out, left.data(), size);
    left = left.subspan(size);
    return static_cast<int>(size);
  }

  std::string label_;
  std::span<const std::byte> left_;
  GifFileType* gif_ = nullptr;
};

inline void fill(Image& image, const GifColorType& colour) {
  for (std::size_t i = 0; i < image.pixels.size(); i += 3)
    image.pixels[i] = colour.Red, image.pixels[i + 1] = colour.Green, image.pixels[i + 2] = colour.Blue;
}

}  // namespace mhla
#endif
