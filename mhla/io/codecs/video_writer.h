// Videos as files, frame by frame. The ending of the name decides: .mp4 (through an `ffmpeg` process), .webp (libwebp),
// .gif and .y4m (written here), or a folder of PNG files for a name without an ending. A file has its name when it is
// whole, never before. The settings go into the file; Y4M has no place for them, theirs are in NAME.y4m.json.
#pragma once

#include <filesystem>
#include <memory>

#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/png_text.h"

namespace mhla {

struct VideoSettings {
  int height = 0, width = 0;
  std::int64_t frames = 0;
  double fps = 16.0;
  ImageText text;  // prompt, seed and the rest
};

class VideoWriter {
 public:
  virtual ~VideoWriter() = default;
  virtual void frame(const Image& image) = 0;  // RGB of the size that was said
  virtual void end() = 0;                      // after the last: the file is there
};

// What cannot be written is refused before anything is computed: an ending that is unknown, a library or program that
// is missing, sizes and rates that the format does not have. `label` opens the message.
void check_video_output(const std::filesystem::path& path, const VideoSettings& settings, const std::string& label);
std::unique_ptr<VideoWriter> open_video_writer(const std::filesystem::path& path, const VideoSettings& settings);

bool is_frames_folder(const std::filesystem::path& path);  // a name without an ending
std::string text_json(const ImageText& text);              // {"prompt": ..., "seed": ...}, on one line
// Frames a second as a fraction: 16 is 16/1, 23.976 is 23976/1000.
struct FrameRate {
  std::int64_t num = 16, den = 1;
};
FrameRate frame_rate(double fps);

// ---- One of each kind, in a file of its own. Private to this room.
using OpenVideoWriter = std::unique_ptr<VideoWriter> (*)(const std::filesystem::path& path,
                                                         const VideoSettings& settings);
std::unique_ptr<VideoWriter> open_gif_writer(const std::filesystem::path& path, const VideoSettings& settings);
std::unique_ptr<VideoWriter> open_webp_writer(const std::filesystem::path& path, const VideoSettings& settings);
std::unique_ptr<VideoWriter> open_ffmpeg_writer(const std::filesystem::path& path, const VideoSettings& settings);
bool has_webp_writer();
// The encoder of the `ffmpeg` that is on the PATH or that MHLA_FFMPEG names: libx264 or mpeg4. An Error names the
// package where there is none.
std::string ffmpeg_encoder(const std::string& label);
void expect_frame(const Image& image, const VideoSettings& settings);

}  // namespace mhla
