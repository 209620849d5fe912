// YUV4MPEG2: a line of parameters, then "FRAME" lines with the planes of Y, Cb and Cr behind each.
#include "mhla/io/codecs/video_reader_y4m.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

constexpr std::size_t kLongestLine = 4096;

std::int64_t whole(const std::string& text, const std::string& label, const char* what) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size()) fail(label, ": damaged Y4M: ", what, " is '", text, "', expected a number");
  return value;
}

class Y4mFile final : public VideoReader {
 public:
  Y4mFile(const std::filesystem::path& path, const ImageLimits& limits)
      : file_(open(path)), reader_(file_.get(), path.string(), limits) {}
  bool next(Image& frame, double& seconds) override { return reader_.next(frame, seconds); }

 private:
  static std::FILE* open(const std::filesystem::path& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) fail(path.string(), ": could not be read: ", std::strerror(errno));
    return file;
  }
  std::unique_ptr<std::FILE, CloseFile> file_;
  Y4mReader reader_;
};

std::uint8_t as_byte(double value) { return static_cast<std::uint8_t>(std::clamp(std::lround(value), 0L, 255L)); }

}  // namespace

Y4mReader::Y4mReader(std::FILE* stream, std::string label, const ImageLimits& limits)
    : stream_(stream), label_(std::move(label)) {
  bool end = false;
  std::istringstream head(line(end));
  std::string word, layout = "420jpeg";
  head >> word;
  if (word != "YUV4MPEG2") fail(label_, ": is no Y4M: it does not begin with YUV4MPEG2");
  std::int64_t height = 0, width = 0;
  while (head >> word) {
    const std::string value = word.substr(1);
    if (word[0] == 'W') width = whole(value, label_, "the width");
    if (word[0] == 'H') height = whole(value, label_, "the height");
    if (word[0] == 'C') layout = value;
    if (word == "XCOLORRANGE=FULL") full_range_ = true;
    if (word[0] == 'F') {
      const std::size_t colon = value.find(':');
      const std::int64_t over = whole(value.substr(0, colon), label_, "the rate");
      const std::int64_t under = colon == std::string::npos ? 1 : whole(value.substr(colon + 1), label_, "the rate");
      if (over <= 0 || under <= 0) fail(label_, ": damaged Y4M: the rate is ", value, ", expected frames:seconds");
      rate_ = static_cast<double>(over) / static_cast<double>(under);
    }
  }
  if (height < 1 || width < 1) fail(label_, ": damaged Y4M: frames of ", height, "x", width);
  check_image_size(static_cast<std::uint64_t>(height), static_cast<std::uint64_t>(width), label_, limits);
  if (rate_ == 0) fail(label_, ": damaged Y4M: it has no rate (F)");
  height_ = static_cast<int>(height), width_ = static_cast<int>(width);
  const auto half = [](int size) { return (size + 1) / 2; };
  if (layout == "420" || layout == "420jpeg" || layout == "420mpeg2" || layout == "420paldv")
    chroma_height_ = half(height_), chroma_width_ = half(width_);
  else if (layout == "422")
    chroma_height_ = height_, chroma_width_ = half(width_);
  else if (layout == "444")
    chroma_height_ = height_, chroma_width_ = width_;
  else if (layout != "mono")
    fail(label_, ": Y4M of layout ", layout, ", expected 420, 422, 444 or mono of 8 bits");
}

std::string Y4mReader::line(bool& end) {
  std::string text;
  for (;;) {
    const int byte = std::fgetc(stream_);
    if (byte == EOF && text.empty()) {
      end = true;
      return text;
    }
    if (byte == '\n') return text;
    if (byte == EOF || text.size() == kLongestLine) fail(label_, ": damaged Y4M: a line does not end");
    text.push_back(static_cast<char>(byte));
  }
}

bool Y4mReader::next(Image& frame, double& seconds) {
  bool end = false;
  const std::string head = line(end);
  if (end) return false;
  if (head.rfind("FRAME", 0) != 0) fail(label_, ": damaged Y4M: frame ", frame_, " does not begin with FRAME");
  const auto luma = static_cast<std::size_t>(height_) * static_cast<std::size_t>(width_);
  const auto chroma = static_cast<std::size_t>(chroma_height_) * static_cast<std::size_t>(chroma_width_);
  planes_.resize(luma + 2 * chroma);
  if (std::fread(planes_.data(), 1, planes_.size(), stream_) != planes_.size())
    fail(label_, ": damaged Y4M: frame ", frame_, " is cut short");
  to_rgb(frame);
  seconds = static_cast<double>(frame_++) / rate_;
  return true;
}

void Y4mReader::to_rgb(Image& frame) const {
  frame.resize(height_, width_, 3);
  const std::uint8_t* luma = planes_.data();
  const std::uint8_t* blue = luma + static_cast<std::size_t>(height_) * static_cast<std::size_t>(width_);
  const std::uint8_t* red = blue + static_cast<std::size_t>(chroma_height_) * static_cast<std::size_t>(chroma_width_);
  const int down = chroma_height_ == height_ ? 1 : 2, across = chroma_width_ == width_ ? 1 : 2;
  const double scale = full_range_ ? 1.0 : 255.0 / 219.0, offset = full_range_ ? 0.0 : 16.0;
  const double chroma_scale = full_range_ ? 1.0 : 255.0 / 224.0;
  for (int y = 0; y < height_; ++y) {
    std::uint8_t* out = frame.row(y);
    for (int x = 0; x < width_; ++x) {
      const double Y =
          scale *
          (luma[static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x)] - offset);
      double b = 0, r = 0;
      if (chroma_width_ > 0) {
        const auto at = static_cast<std::size_t>(y / down) * static_cast<std::size_t>(chroma_width_) +
                        static_cast<std::size_t>(x / across);
        b = chroma_scale * (blue[at] - 128.0), r = chroma_scale * (red[at] - 128.0);
      }
      *out++ = as_byte(Y + 1.402 * r);
      *out++ = as_byte(Y - 0.344136 * b - 0.714136 * r);
      *out++ = as_byte(Y + 1.772 * b);
    }
  }
}

std::unique_ptr<VideoReader> open_y4m(const std::filesystem::path& path, const ImageLimits& limits) {
  return std::make_unique<Y4mFile>(path, limits);
}

}  // namespace mhla
