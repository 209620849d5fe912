#include "mhla/io/codecs/video_reader.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 10> kVideoEndings = {".y4m",  ".gif", ".mp4", ".m4v", ".mov",
                                                            ".webm", ".mkv", ".avi", ".mpg", ".mpeg"};

std::string small_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

class ImagesAsVideo final : public VideoReader {
 public:
  ImagesAsVideo(const fs::path& folder, const ImageLimits& limits) : limits_(limits) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const ImageFormat* format = format_of_ending(small_ending(entry->path()));
      if (format != nullptr && format->decode != nullptr && entry->path().filename().string()[0] != '.')
        files_.push_back(entry->path());
    }
    if (error) fail(folder.string(), ": could not be listed: ", error.message());
    if (files_.empty()) fail(folder.string(), ": has no image, expected frames as ", readable_endings(), " files");
    std::sort(files_.begin(), files_.end());
  }
  bool next(Image& frame, double& seconds) override {
    if (at_ == files_.size()) return false;
    const fs::path& file = files_[at_];
    frame = read_image(file, limits_);
    convert_channels(frame, 3);
    if (at_ == 0) height_ = frame.height, width_ = frame.width;
    if (frame.height != height_ || frame.width != width_)
      fail(file.string(), ": is ", frame.height, "x", frame.width, ", expected ", height_, "x", width_,
           " as the frames before it");
    seconds = static_cast<double>(at_++);
    return true;
  }
  [[nodiscard]] bool has_rate() const override { return false; }

 private:
  ImageLimits limits_;
  std::vector<fs::path> files_;
  std::size_t at_ = 0;
  int height_ = 0, width_ = 0;
};

}  // namespace

bool is_video_file(const fs::path& path) {
  return std::find(kVideoEndings.begin(), kVideoEndings.end(), small_ending(path)) != kVideoEndings.end();
}

bool needs_ffmpeg(const fs::path& path) {
  const std::string ending = small_ending(path);
  return ending != ".y4m" && ending != ".gif" && !is_folder(path);
}

std::string video_endings() {
  std::string list;
  for (const std::string_view ending : kVideoEndings) list += (list.empty() ? "" : ", ") + std::string(ending);
  return list;
}

std::unique_ptr<VideoReader> open_video(const fs::path& path, const ImageLimits& limits) {
  if (!is_there(path)) fail(path.string(), ": is not there, expected a video");
  if (is_folder(path)) return std::make_unique<ImagesAsVideo>(path, limits);
  const std::string ending = small_ending(path);
  if (ending == ".y4m") return open_y4m(path, limits);
  if (ending == ".gif") return open_gif_video(path, limits);
  return open_with_ffmpeg(path, limits);
}

}  // namespace mhla
