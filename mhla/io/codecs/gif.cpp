// The first frame of a GIF through giflib, on a canvas of the background's colour. A transparent pixel shows the colour
// it has in the palette, as alpha is dropped elsewhere.
#ifdef MHLA_GIF
#include <gif_lib.h>

#include <algorithm>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

struct Source {
  std::span<const std::byte> left;
};

int take_bytes(GifFileType* gif, GifByteType* out, int count) {
  auto& source = *static_cast<Source*>(gif->UserData);
  const std::size_t size = std::min(source.left.size(), static_cast<std::size_t>(std::max(count, 0)));
  if (size > 0) std::memcpy(out, source.left.data(), size);
  source.left = source.left.subspan(size);
  return static_cast<int>(size);
}

class Decompress {
 public:
  Decompress(std::span<const std::byte> bytes, const std::string& label) : label_(label), source_{bytes} {
    int error = 0;
    gif_ = DGifOpen(&source_, take_bytes, &error);
    if (gif_ == nullptr) damaged(error);
  }
  ~Decompress() {
    int error = 0;
    DGifCloseFile(gif_, &error);
  }
  Decompress(const Decompress&) = delete;
  Decompress& operator=(const Decompress&) = delete;

  [[noreturn]] void damaged(int error) const {
    const char* reason = GifErrorString(error);
    fail(label_, ": damaged GIF: ", reason == nullptr ? "giflib could not read it" : reason);
  }
  void expect(int status) const {
    if (status != GIF_OK) damaged(gif_->Error);
  }
  GifFileType* operator->() const { return gif_; }
  [[nodiscard]] GifFileType* gif() const { return gif_; }

 private:
  const std::string& label_;
  Source source_;
  GifFileType* gif_ = nullptr;
};

// What stands before the first frame is passed over.
void find_first_frame(const Decompress& decompress, const std::string& label) {
  for (GifRecordType type = UNDEFINED_RECORD_TYPE;;) {
    decompress.expect(DGifGetRecordType(decompress.gif(), &type));
    if (type == IMAGE_DESC_RECORD_TYPE) return decompress.expect(DGifGetImageDesc(decompress.gif()));
    if (type == TERMINATE_RECORD_TYPE) fail(label, ": damaged GIF: it has no frame");
    if (type != EXTENSION_RECORD_TYPE) continue;
    GifByteType* block = nullptr;
    int code = 0;
    decompress.expect(DGifGetExtension(decompress.gif(), &code, &block));
    while (block != nullptr) decompress.expect(DGifGetExtensionNext(decompress.gif(), &block));
  }
}

}  // namespace

void decode_gif(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  const Decompress gif(bytes, label);
  find_first_frame(gif, label);
  const GifImageDesc& frame = gif->Image;
  // Some writers give no size of the whole, or one that is too small: viewers show the frame all the same.
  const int height = std::max(gif->SHeight, frame.Top + frame.Height);
  const int width = std::max(gif->SWidth, frame.Left + frame.Width);
  check_image_size(static_cast<std::uint64_t>(height), static_cast<std::uint64_t>(width), label, limits);
  const ColorMapObject* map = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  if (map == nullptr || map->Colors == nullptr) fail(label, ": damaged GIF: it has no palette");
  image.resize(height, width, 3);
  const ColorMapObject* screen = gif->SColorMap;
  const bool known = screen != nullptr && gif->SBackGroundColor >= 0 && gif->SBackGroundColor < screen->ColorCount;
  const GifColorType background = known ? screen->Colors[gif->SBackGroundColor] : GifColorType{};
  for (std::size_t i = 0; i < image.pixels.size(); i += 3)
    image.pixels[i] = background.Red, image.pixels[i + 1] = background.Green, image.pixels[i + 2] = background.Blue;

  // Interlaced rows come in four passes.
  struct Pass {
    int first, step;
  };
  static constexpr Pass kWhole[] = {{0, 1}}, kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  std::vector<GifPixelType> indices(static_cast<std::size_t>(frame.Width));
  for (const Pass& pass : frame.Interlace ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kWhole)) {
    for (int y = pass.first; y < frame.Height; y += pass.step) {
      gif.expect(DGifGetLine(gif.gif(), indices.data(), frame.Width));
      std::uint8_t* out = image.row(frame.Top + y) + 3 * frame.Left;
      for (const GifPixelType index : indices) {
        if (index >= map->ColorCount)
          fail(label, ": damaged GIF: colour ", int{index}, " of a palette of ", map->ColorCount);
        const GifColorType& colour = map->Colors[index];
        *out++ = colour.Red, *out++ = colour.Green, *out++ = colour.Blue;
      }
    }
  }
}

}  // namespace mhla
#endif
