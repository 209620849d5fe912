// Folders of videos with captions.
#include "mhla/data/video_set.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/data/moving_garments.h"
#include "mhla/data/resample.h"
#include "mhla/io/codecs/video_reader.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char *kMovingGarments = "moving-garments", *kFolder = "folder:", *kCaptionLines = "captions.jsonl";
constexpr std::uint64_t kMostCaption = 1U << 20, kMostLines = std::uint64_t{1} << 31;

std::string caption_file(const fs::path& path, std::uint64_t most) {
  const std::vector<std::byte> bytes = read_file(path, most);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One line without white space around it.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

bool has_images(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string ending = entry->path().extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    const ImageFormat* format = format_of_ending(ending);
    if (format != nullptr && format->decode != nullptr && !is_video_file(entry->path())) return true;
  }
  return false;
}

// Videos of a folder, by name: files, and folders of images.
std::vector<std::string> videos_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code none;
    const bool is_folder = entry->is_directory(none);
    if (name[0] != '.' && (is_folder ? has_images(entry->path()) : is_video_file(entry->path()))) names.push_back(name);
  }
  if (error) fail(folder.string(), ": could not be listed: ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> lines_of(const fs::path& file) {
  std::map<std::string, std::string> captions;
  read_json_lines(caption_file(file, kMostLines), file.string(), [&](const std::string& label, const JsonValue& line) {
    labelled(label, [&] {
      const JsonValue *video = line.find("video"), *caption = line.find("caption");
      if (video == nullptr || caption == nullptr)
        fail("has no 'video' or no 'caption', expected {\"video\": \"a.mp4\", \"caption\": \"...\"}");
      if (!captions.emplace(video->as_string(), one_line(caption->as_string())).second)
        fail("'", video->as_string(), "' has two captions, expected one");
    });
  });
  return captions;
}

class VideoFolder final : public VideoSet {
 public:
  VideoFolder(const fs::path& folder, const ClipShape& shape) : folder_(folder), shape_(shape) {
    names_ = videos_in(folder);
    if (names_.empty())
      fail(folder.string(), ": has no video, expected ", video_endings(), " files or folders of images");
    const fs::path lines = folder / kCaptionLines;
    const bool listed = is_there(lines);
    const std::map<std::string, std::string> all = listed ? lines_of(lines) : std::map<std::string, std::string>();
    for (const auto& [video, caption] : all)
      if (!std::binary_search(names_.begin(), names_.end(), video))
        fail(lines.string(), ": video '", video, "' is not in ", folder.string());
    for (const std::string& name : names_) {
      fs::path beside = folder / name;
      beside = is_folder(beside) ? fs::path(beside.string() + ".txt") : beside.replace_extension(".txt");
      if (listed) {
        const auto found = all.find(name);
        if (found == all.end()) fail((folder / name).string(), ": has no line in ", lines.string());
        captions_.push_back(found->second);
      } else {
        if (!is_there(beside))
          fail((folder / name).string(), ": has no caption, expected ", beside.filename().string(),
               " beside it, or a line in ", kCaptionLines);
        captions_.push_back(one_line(caption_file(beside, kMostCaption)));
      }
    }
  }
  [[nodiscard]] std::string name() const override { return folder_.string(); }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(names_.size()); }
  [[nodiscard]] const ClipShape& shape() const override { return shape_; }
  [[nodiscard]] std::string caption(std::int64_t item) const override {
    return captions_[static_cast<std::size_t>(item)];
  }
  [[nodiscard]] std::string item_name(std::int64_t item) const override {
    return (folder_ / names_[static_cast<std::size_t>(item)]).string();
  }
  [[nodiscard]] std::uint32_t checksum() const override {
    std::string all;
    for (std::size_t i = 0; i < names_.size(); ++i) all += names_[i] + '\0' + captions_[i] + '\0';
    return crc32c(std::as_bytes(std::span(all)));
  }

  void clip(std::int64_t item, float* out) const override {
    const std::string path = item_name(item);
    const std::unique_ptr<VideoReader> reader = open_video(path);
    Image now, next;
    double seconds = 0, later = 0;
    if (!reader->next(now, seconds)) fail(path, ": has no frame");
    bool more = reader->next(next, later);
    const double rate = reader->has_rate() ? shape_.fps : 0;
    for (std::int64_t frame = 0; frame < shape_.frames; ++frame) {
      if (frame > 0 && rate == 0) {
        if (!more) too_short(path, frame);
        std::swap(now, next);
        more = reader->next(next, later);
      }
      const double wanted = rate > 0 ? static_cast<double>(frame) / rate : 0;
      while (rate > 0 && more && later <= wanted + 1e-6) {
        std::swap(now, next);
        seconds = later;
        more = reader->next(next, later);
      }
      // The last frame is shown as long as one of the clip.
      if (rate > 0 && !more && wanted > seconds + 1 / rate + 1e-6) too_short(path, frame);
      keep(now, frame, out);
    }
  }

 private:
  [[noreturn]] void too_short(const std::string& path, std::int64_t frames) const {
    fail(path, ": has ", frames, " frames", shape_.fps > 0 ? str(" at ", shape_.fps, " a second") : "", ", expected ",
         shape_.frames, " for a clip");
  }
  // Scaled to cover the clip, the middle cut out.
  void keep(const Image& image, std::int64_t frame, float* out) const {
    const auto rows = static_cast<int>(shape_.rows), columns = static_cast<int>(shape_.columns);
    const double scale = std::max(static_cast<double>(rows) / image.height, static_cast<double>(columns) / image.width);
    const int high = std::min(image.height, static_cast<int>(std::lround(rows / scale)));
    const int wide = std::min(image.width, static_cast<int>(std::lround(columns / scale)));
    const Box box{(image.height - high) / 2, (image.width - wide) / 2, std::max(1, high), std::max(1, wide)};
    thread_local Image fitted;
    thread_local ResampleScratch scratch;
    resize_image(image, box, rows, columns, Interpolation::kBicubic, fitted, scratch);
    const std::int64_t plane = shape_.rows * shape_.columns;
    for (std::int64_t c = 0; c < 3; ++c)
      for (std::int64_t p = 0; p < plane; ++p)
        out[(c * shape_.frames + frame) * plane + p] =
            static_cast<float>(fitted.pixels[static_cast<std::size_t>(3 * p + c)]) / 127.5F - 1.0F;
  }

  fs::path folder_;
  ClipShape shape_;
  std::vector<std::string> names_, captions_;
};

class ClipsInMemory final : public VideoSet {
 public:
  explicit ClipsInMemory(MemoryClips clips) : clips_(std::move(clips)) {}
  [[nodiscard]] std::string name() const override { return clips_.name; }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(clips_.clips.size()); }
  [[nodiscard]] const ClipShape& shape() const override { return clips_.shape; }
  [[nodiscard]] std::string caption(std::int64_t item) const override {
    return clips_.captions.at(static_cast<std::size_t>(item));
  }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return str(clips_.name, ", clip ", item); }
  [[nodiscard]] std::uint32_t checksum() const override { return 0; }
  void clip(std::int64_t item, float* out) const override {
    const std::vector<float>& clip = clips_.clips.at(static_cast<std::size_t>(item));
    if (clip.empty()) fail(item_name(item), ": is damaged");
    std::copy(clip.begin(), clip.end(), out);
  }

 private:
  MemoryClips clips_;
};

fs::path test_part(const fs::path& folder) {
  for (const char* name : {"val", "validation", "test"})
    if (is_folder(folder / name)) return folder / name;
  return {};
}

bool is_garments(const std::string& data) {
  return data == kMovingGarments || data.rfind(str(kMovingGarments, ":"), 0) == 0;
}

fs::path video_folder(const std::string& data) {
  return data.rfind(kFolder, 0) == 0 ? data.substr(std::string(kFolder).size()) : data;
}

}  // namespace

void check(const ClipShape& s) {
  const auto expect = [](const char* field, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) fail("clips: ", field, " is ", value, ", expected 1 to ", most);
  };
  expect("frames", s.frames, 4096), expect("rows", s.rows, 8192), expect("columns", s.columns, 8192);
  if (!(s.fps >= 0 && s.fps <= 1000)) fail("clips: fps is ", s.fps, ", expected 0 (as the files have it) to 1000");
}

VideoSetPtr open_videos(const std::string& data, Split split, const ClipShape& shape) {
  check(shape);
  if (is_garments(data)) {
    const std::string folder = data.substr(std::string(kMovingGarments).size());  // ":FOLDER" or nothing
    return moving_garments("fashion-mnist" + folder, split, shape);
  }
  const fs::path folder = video_folder(data);
  if (!is_folder(folder))
    fail("videos: ", data, " is not there, expected a folder of videos, or ", kMovingGarments, " (or ", kMovingGarments,
         ":FOLDER of Fashion-MNIST)");
  const fs::path train = folder / "train", test = test_part(folder);
  if (split == Split::kTest) {
    if (test.empty()) fail(folder.string(), ": has no val or test folder");
    return std::make_shared<VideoFolder>(test, shape);
  }
  return std::make_shared<VideoFolder>(is_folder(train) ? train : folder, shape);
}

bool has_test_videos(const std::string& data) { return is_garments(data) || !test_part(video_folder(data)).empty(); }

VideoSetPtr videos_in_memory(MemoryClips clips) { return std::make_shared<ClipsInMemory>(std::move(clips)); }

}  // namespace mhla
