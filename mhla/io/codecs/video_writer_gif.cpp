// Moving GIFs (GIF89a): every frame has a palette of its own, it repeats for ever, and the settings are a comment.
// Times are hundredths of a second, so the delays of neighbours differ by one where the rate asks for it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "mhla/io/codecs/video_palette.h"
#include "mhla/io/codecs/video_writer.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

// Bytes in blocks of up to 255 with their length before them, ended by an empty one.
void put_blocks(const std::string& bytes, std::string& out) {
  for (std::size_t at = 0; at < bytes.size(); at += 255) {
    const std::string block = bytes.substr(at, 255);
    out += static_cast<char>(block.size());
    out += block;
  }
  out += '\0';
}

void put_16(int value, std::string& out) {
  out += static_cast<char>(value & 255);
  out += static_cast<char>(value >> 8 & 255);
}

// Codes of growing width, the low bits first.
class BitString {
 public:
  void put(int code, int width) {
    held_ |= static_cast<std::uint32_t>(code) << count_;
    count_ += width;
    for (; count_ >= 8; count_ -= 8, held_ >>= 8) bytes_ += static_cast<char>(held_ & 255);
  }
  std::string take() {
    if (count_ > 0) bytes_ += static_cast<char>(held_ & 255);
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  std::uint32_t held_ = 0;
  int count_ = 0;
};

// LZW as GIF has it: `bits` of a pixel, at least 2.
std::string lzw(const std::vector<std::uint8_t>& pixels, int bits) {
  constexpr int kMostCodes = 4096;
  const int clear = 1 << bits, stop = clear + 1;
  std::vector<std::int16_t> next(static_cast<std::size_t>(kMostCodes) * 256);  // of a code and a pixel; 0: none
  BitString out;
  int width = bits + 1, known = stop + 1;
  out.put(clear, width);
  int prefix = -1;
  for (const std::uint8_t pixel : pixels) {
    if (prefix < 0) {
      prefix = pixel;
      continue;
    }
    std::int16_t& longer = next[static_cast<std::size_t>(prefix) * 256 + pixel];
    if (longer != 0) {
      prefix = longer;
      continue;
    }
    out.put(prefix, width);
    if (known < kMostCodes) {
      if (known == 1 << width) ++width;  // the reader is one code late
      longer = static_cast<std::int16_t>(known++);
    } else {
      out.put(clear, width);
      std::fill(next.begin(), next.end(), std::int16_t{0});
      width = bits + 1, known = stop + 1;
    }
    prefix = pixel;
  }
  if (prefix >= 0) {
    out.put(prefix, width);
    if (known == 1 << width && width < 12) ++width;
  }
  out.put(stop, width);
  return out.take();
}

class GifWriter final : public VideoWriter {
 public:
  GifWriter(const std::filesystem::path& path, const VideoSettings& settings) : settings_(settings), file_(path) {
    std::string head = "GIF89a";
    put_16(settings.width, head), put_16(settings.height, head);
    head += std::string("\x70\x00\x00", 3);                                  // no palette for all, eight bits a channel
    head += std::string("\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00", 19);  // again and again
    head += "\x21\xfe";
    put_blocks(text_json(settings.text), head);
    put(head);
  }
  void frame(const Image& image) override {
    expect_frame(image, settings_);
    const Indexed frame = indexed(image);
    const int bits = std::max(1, static_cast<int>(std::bit_width(frame.palette.size() - 1)));
    std::string out("\x21\xf9\x04\x04", 4);  // leave the picture where it is
    put_16(delay(number_++), out);
    out += std::string("\x00\x00\x2c\x00\x00\x00\x00", 7);
    put_16(settings_.width, out), put_16(settings_.height, out);
    out += static_cast<char>(0x80 | (bits - 1));
    for (const auto& colour : frame.palette)
      for (const std::uint8_t level : colour) out += static_cast<char>(level);
    out.append(3 * ((std::size_t{1} << bits) - frame.palette.size()), '\0');
    const int size = std::max(2, bits);
    out += static_cast<char>(size);
    put_blocks(lzw(frame.pixels, size), out);
    put(out);
  }
  void end() override {
    put(";");
    file_.commit();
  }

 private:
  [[nodiscard]] int delay(std::int64_t number) const {
    const auto at = [&](std::int64_t i) { return std::llround(100.0 * static_cast<double>(i) / settings_.fps); };
    return static_cast<int>(at(number + 1) - at(number));
  }
  void put(const std::string& bytes) { file_.write(std::as_bytes(std::span(bytes.data(), bytes.size()))); }
  VideoSettings settings_;
  AtomicFile file_;
  std::int64_t number_ = 0;
};

}  // namespace

std::unique_ptr<VideoWriter> open_gif_writer(const std::filesystem::path& path, const VideoSettings& settings) {
  return std::make_unique<GifWriter>(path, settings);
}

}  // namespace mhla
