// Small files of every format, written by the tests themselves.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/data/image_set.h"
#include "mhla/data/video_set.h"
#include "mhla/io/codecs/codecs_fixture.h"
#include "mhla/io/codecs/gzip.h"
#include "mhla/testing/messages.h"

namespace mhla {

using ByteList = std::vector<std::uint8_t>;

// A folder of its own that is removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    static int count = 0;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            str("mhla_", test != nullptr ? test->name() : "data", "_", ::getpid(), "_", count++);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name = "") const {
    return (name.empty() ? path_ : path_ / name).string();
  }
  template <class Byte>
  void write(const std::string& name, const std::vector<Byte>& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void write_text(const std::string& name, const std::string& text) const {
    write(name, std::vector<char>(text.begin(), text.end()));
  }

 private:
  std::filesystem::path path_;
};

inline void put_big_endian(ByteList& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

// Pixel p of image i is (31 i + 7 p) mod 251; label i is i mod 10.
inline ByteList idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
  ByteList bytes;
  for (const std::uint32_t value : {0x803u, count, height, width}) put_big_endian(bytes, value);
  for (std::uint32_t i = 0; i < count; ++i)
    for (std::uint32_t p = 0; p < height * width; ++p)
      bytes.push_back(static_cast<std::uint8_t>((31 * i + 7 * p) % 251));
  return bytes;
}

inline ByteList idx_labels(std::uint32_t count) {
  ByteList bytes;
  for (const std::uint32_t value : {0x801u, count}) put_big_endian(bytes, value);
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i % 10));
  return bytes;
}

// Pixel p of plane c of image i is (17 i + 5 c + p) mod 253; CIFAR-100 has a coarse label before the fine one.
inline ByteList cifar_records(int count, int first, int classes) {
  ByteList bytes;
  for (int i = first; i < first + count; ++i) {
    if (classes == 100) bytes.push_back(static_cast<std::uint8_t>(i % 20));
    bytes.push_back(static_cast<std::uint8_t>(i % classes));
    for (int c = 0; c < 3; ++c)
      for (int p = 0; p < 1024; ++p) bytes.push_back(static_cast<std::uint8_t>((17 * i + 5 * c + p) % 253));
  }
  return bytes;
}

// A set in memory of noise, of one size or of many.
inline ImageSetPtr noise_set(int count, int classes, int channels, int height = 12, int width = 10, int vary = 0) {
  MemoryImages images{.name = "noise", .class_names = {}, .images = {}, .labels = {}};
  for (int c = 0; c < classes; ++c) images.class_names.push_back(str("class ", c));
  for (int i = 0; i < count; ++i) {
    const int more = vary == 0 ? 0 : i % vary;
    images.images.push_back(noise_image(height + more, width + 2 * more, channels, static_cast<std::uint64_t>(i) + 1));
    images.labels.push_back(i % classes);
  }
  return images_in_memory(std::move(images));
}

// The numbers of a clip.
inline std::vector<float> clip_of(const VideoSet& set, std::int64_t item) {
  std::vector<float> clip(static_cast<std::size_t>(set.shape().numbers()), NAN);
  set.clip(item, clip.data());
  return clip;
}

}  // namespace mhla
