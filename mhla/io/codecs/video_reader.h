// Videos as files, frame by frame, 8-bit RGB out. Read here: Y4M, animated GIF (with giflib) and folders of images, one
// a frame, in the order of their names. Everything else (MP4, WebM, MOV, ...) goes through an `ffmpeg` process, where
// there is one. Nothing is held but the frame at hand, so a long file costs no memory. A damaged file is an Error that
// opens with its path.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "mhla/io/codecs/image.h"

namespace mhla {

class VideoReader {
 public:
  virtual ~VideoReader() = default;
  // The next frame, always of one size; false: there is none. `seconds`: when it is shown, from the beginning. A folder
  // of images says no rate: its frames are numbered 0, 1, ... instead, and has_rate() is false.
  virtual bool next(Image& frame, double& seconds) = 0;
  [[nodiscard]] virtual bool has_rate() const { return true; }
};

// A file or a folder. Y4M is 8 bits in 4:2:0, 4:2:2, 4:4:4 or grey, YCbCr of ITU-R 601, in the limited range unless the
// header says XCOLORRANGE=FULL; chroma is repeated, not interpolated. Frames of a GIF that are shown for less than
// 2/100 of a second are shown for 1/10, as browsers do.
std::unique_ptr<VideoReader> open_video(const std::filesystem::path& path, const ImageLimits& limits = {});

// Whether a file is called as a video (.y4m, .gif, .mp4, .webm, ...), whoever reads it.
bool is_video_file(const std::filesystem::path& path);
// Whether reading it needs ffmpeg.
bool needs_ffmpeg(const std::filesystem::path& path);
std::string video_endings();  // ".y4m, .gif, .mp4, ..."

// ---- Private to this room

std::unique_ptr<VideoReader> open_y4m(const std::filesystem::path& path, const ImageLimits& limits);
std::unique_ptr<VideoReader> open_gif_video(const std::filesystem::path& path, const ImageLimits& limits);
std::unique_ptr<VideoReader> open_with_ffmpeg(const std::filesystem::path& path, const ImageLimits& limits);

}  // namespace mhla
