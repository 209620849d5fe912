// Event files that TensorBoard reads: TFRecord frames (length, masked CRC-32C, bytes, masked CRC-32C) of Event
// messages in protobuf's wire format, of which only scalars, images and the two markers below are written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/file.h"

namespace mhla {

class EventFile {
 public:
  // A new file "events.out.tfevents.<seconds>.<host>.<process>.<count>" in `folder`. With `first_step` > 0 a marker
  // tells TensorBoard to drop what earlier files of the folder say about that step and later ones: a resumed run.
  EventFile(const std::filesystem::path& folder, std::int64_t first_step);
  void scalar(std::string_view tag, std::int64_t step, double value);
  // `png`: the bytes of a PNG of this size with 1 (grey) or 3 channels.
  void image(std::string_view tag, std::int64_t step, int height, int width, int channels,
             std::span<const std::byte> png);
  void flush();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void write_event(std::int64_t step, int field, std::string_view body);
  std::filesystem::path path_;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace mhla
