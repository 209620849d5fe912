// Animated GIF: every frame is painted onto the canvas of the ones before, which its disposal then keeps, clears to the
// background or puts back.
#include "mhla/io/codecs/gif_file.h"
#include "mhla/io/codecs/video_reader.h"
#include "mhla/io/file.h"

#ifndef MHLA_GIF
#include "mhla/core/error.h"
#endif

namespace mhla {

#ifdef MHLA_GIF
namespace {

// What a graphics control extension says about the frame after it.
struct Control {
  int disposal = 0, transparent = -1, hundredths = 0;
};

Control control_of(const GifByteType* block) {  // [0] is the length of the rest
  Control control;
  if (block[0] < 4) return control;
  control.disposal = (block[1] >> 2) & 7;
  control.hundredths = block[2] | block[3] << 8;
  if ((block[1] & 1) != 0) control.transparent = block[4];
  return control;
}

class GifVideo final : public VideoReader {
 public:
  GifVideo(const std::filesystem::path& path, const ImageLimits& limits)
      : limits_(limits), bytes_(read_file(path, limits.max_bytes)), gif_(bytes_, path.string()) {}

  bool next(Image& frame, double& seconds) override {
    Control control;
    const bool found = gif_.find_frame([&](int code, const GifByteType* block) {
      if (code == GRAPHICS_EXT_FUNC_CODE) control = control_of(block);
    });
    if (!found) {
      if (count_ == 0) fail(gif_.label(), ": damaged GIF: it has no frame");
      return false;
    }
    if (count_++ == 0) {
      check_image_size(static_cast<std::uint64_t>(gif_.height()), static_cast<std::uint64_t>(gif_.width()),
                       gif_.label(), limits_);
      canvas_.resize(gif_.height(), gif_.width(), 3);
      fill(canvas_, gif_.background());
    }
    const GifImageDesc& place = gif_->Image;
    if (place.Top < 0 || place.Left < 0 || place.Top + place.Height > canvas_.height ||
        place.Left + place.Width > canvas_.width)
      fail(gif_.label(), ": damaged GIF: frame ", count_ - 1, " reaches beyond the first");
    if (control.disposal == 3) before_ = canvas_;
    gif_.paint(canvas_, control.transparent);
    frame = canvas_;
    seconds = static_cast<double>(hundredths_) / 100.0;
    hundredths_ += control.hundredths < 2 ? 10 : control.hundredths;
    if (control.disposal == 3) canvas_ = before_;
    if (control.disposal == 2) clear(place);
    return true;
  }

 private:
  void clear(const GifImageDesc& place) {
    const GifColorType colour = gif_.background();
    for (int y = place.Top; y < place.Top + place.Height; ++y) {
      std::uint8_t* out = canvas_.row(y) + 3 * place.Left;
      for (int x = 0; x < place.Width; ++x, out += 3) out[0] = colour.Red, out[1] = colour.Green, out[2] = colour.Blue;
    }
  }

  ImageLimits limits_;
  std::vector<std::byte> bytes_;
  GifFile gif_;
  Image canvas_, before_;
  std::int64_t count_ = 0, hundredths_ = 0;
};

}  // namespace

std::unique_ptr<VideoReader> open_gif_video(const std::filesystem::path& path, const ImageLimits& limits) {
  return std::make_unique<GifVideo>(path, limits);
}

#else

std::unique_ptr<VideoReader> open_gif_video(const std::filesystem::path& path, const ImageLimits&) {
  fail(path.string(), ": this build cannot read GIF: giflib was missing");
}

#endif

}  // namespace mhla
