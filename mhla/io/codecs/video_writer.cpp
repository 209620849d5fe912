#include "mhla/io/codecs/video_writer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iomanip>
#include <span>
#include <sstream>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json.h"
#include "mhla/io/quick_file.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndings = ".mp4, .webp, .gif, .y4m, or a name without an ending for a folder of PNG files";

std::string lower_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

std::string frame_name(std::int64_t number) {
  std::ostringstream name;
  name << "frame-" << std::setfill('0') << std::setw(5) << number << ".png";
  return name.str();
}

class PngFolderWriter final : public VideoWriter {
 public:
  PngFolderWriter(const fs::path& path, const VideoSettings& settings) : folder_(path), settings_(settings) {
    fs::remove(path / kSettings);  // of a video that is replaced: until the end there is none
  }
  void frame(const Image& image) override {
    expect_frame(image, settings_);
    write_file_quickly(folder_.path() / frame_name(number_++), encode_png(image, settings_.text));
  }
  void end() override {
    for (std::int64_t extra = number_; fs::remove(folder_.path() / frame_name(extra)); ++extra) {
    }
    sync_files(folder_.path());
    write_file(folder_.path() / kSettings, text_json(settings_.text) + "\n");
    folder_.keep();
  }

 private:
  static constexpr const char* kSettings = "video.json";
  OutputFolder folder_;
  VideoSettings settings_;
  std::int64_t number_ = 0;
};

// YUV 4:4:4 of ITU-R 601 in 16 to 235, which is what readers of Y4M take it for.
class Y4mWriter final : public VideoWriter {
 public:
  Y4mWriter(const fs::path& path, const VideoSettings& settings) : path_(path), settings_(settings), file_(path) {
    const FrameRate rate = frame_rate(settings.fps);
    put(str("YUV4MPEG2 W", settings.width, " H", settings.height, " F", rate.num, ":", rate.den, " Ip A1:1 C444\n"));
  }
  void frame(const Image& image) override {
    expect_frame(image, settings_);
    const std::size_t count = image.pixels.size() / 3;
    std::vector<std::uint8_t> planes(3 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const double r = image.pixels[3 * i] / 255.0, g = image.pixels[3 * i + 1] / 255.0,
                   b = image.pixels[3 * i + 2] / 255.0;
      planes[i] = level(16.0 + 65.481 * r + 128.553 * g + 24.966 * b);
      planes[count + i] = level(128.0 - 37.797 * r - 74.203 * g + 112.0 * b);
      planes[2 * count + i] = level(128.0 + 112.0 * r - 93.786 * g - 18.214 * b);
    }
    put("FRAME\n");
    file_.write(std::as_bytes(std::span(planes)));
  }
  void end() override {
    write_file(path_.string() + ".json", text_json(settings_.text) + "\n");
    file_.commit();
  }

 private:
  static std::uint8_t level(double value) { return static_cast<std::uint8_t>(std::lround(value)); }
  void put(const std::string& text) { file_.write(std::as_bytes(std::span(text.data(), text.size()))); }
  fs::path path_;
  VideoSettings settings_;
  AtomicFile file_;
};

}  // namespace

bool is_frames_folder(const fs::path& path) { return !path.has_extension(); }

FrameRate frame_rate(double fps) {
  const double whole = std::round(fps);
  if (std::abs(fps - whole) < 1e-9) return {static_cast<std::int64_t>(whole), 1};
  return {static_cast<std::int64_t>(std::llround(fps * 1000.0)), 1000};
}

std::string text_json(const ImageText& text) {
  JsonValue object = JsonValue::object();
  for (const auto& [key, value] : text) object.set(key, value);
  return write_json(object);
}

void expect_frame(const Image& image, const VideoSettings& settings) {
  if (image.height != settings.height || image.width != settings.width || image.channels != 3)
    fail("a frame is ", image.height, " x ", image.width, " with ", image.channels, " channels, expected ",
         settings.height, " x ", settings.width, " with 3");
}

void check_video_output(const fs::path& path, const VideoSettings& s, const std::string& label) {
  const std::string ending = lower_ending(path);
  if (!(s.fps >= 0.1 && s.fps <= 240.0)) fail(label, ": ", s.fps, " frames a second, expected 0.1 to 240");
  const auto expect_side = [&](int most) {
    if (s.height > most || s.width > most)
      fail(label, ": ", path.string(), " has ", s.height, " x ", s.width, " pixels, expected at most ", most,
           " a side for ", ending, ": .y4m and .png have no such limit");
  };
  if (ending.empty()) {
    if (is_there(path) && !is_folder(path)) fail(label, ": ", path.string(), " is a file, expected a folder");
    return;
  }
  if (is_folder(path)) fail(label, ": ", path.string(), " is a folder, expected a file, or a name without an ending");
  if (ending == ".y4m") return;
  if (ending == ".gif") {
    expect_side(65535);
    if (s.fps > 50.0)
      fail(label, ": ", s.fps, " frames a second, expected at most 50 for .gif, which counts hundredths of a second");
  } else if (ending == ".webp") {
    expect_side(16383);
    if (!has_webp_writer())
      fail(label, ": ", path.string(),
           ": this build has no libwebpmux (Debian: libwebp-dev), expected .gif, .y4m, .mp4 or a folder");
  } else if (ending == ".mp4") {
    if (s.height % 2 != 0 || s.width % 2 != 0)
      fail(label, ": ", path.string(), " has ", s.height, " x ", s.width, " pixels, expected even numbers for .mp4");
    (void)ffmpeg_encoder(label);
  } else {
    fail(label, ": ", path.string(), " ends in ", ending, ", expected ", kEndings);
  }
}

std::unique_ptr<VideoWriter> open_video_writer(const fs::path& path, const VideoSettings& settings) {
  check_video_output(path, settings, "video");
  const std::string ending = lower_ending(path);
  if (ending.empty()) return std::make_unique<PngFolderWriter>(path, settings);
  if (ending == ".gif") return open_gif_writer(path, settings);
  if (ending == ".webp") return open_webp_writer(path, settings);
  if (ending == ".mp4") return open_ffmpeg_writer(path, settings);
  return std::make_unique<Y4mWriter>(path, settings);
}

}  // namespace mhla
