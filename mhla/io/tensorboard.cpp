// Fields used:
//   Event    1 wall_time double | 2 step varint | 3 file_version string | 5 summary Summary | 7 session_log SessionLog
//   Summary  1 value Value;  Value 1 tag string, 2 simple_value float, 4 image Image;  SessionLog 1 status (1 is START)
//   Image    1 height, 2 width, 3 colorspace (channels) varint | 4 encoded_image_string bytes
#include "mhla/io/tensorboard.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/protobuf.h"

namespace mhla {
namespace {

using namespace protobuf;

enum EventField { kFileVersion = 3, kSummary = 5, kSessionLog = 7 };

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path new_name(const std::filesystem::path& folder) {
  static std::atomic<int> counter{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == 0) host = {'h', 'o', 's', 't'};
  return folder / str("events.out.tfevents.", static_cast<std::int64_t>(now_seconds()), ".", host.data(), ".",
                      ::getpid(), ".", counter++);
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step)
    : path_(new_name(folder)), file_(std::make_unique<AppendFile>(path_)) {
  write_event(0, kFileVersion, "brain.Event:2");
  // A reader forgets what other files have from this step on: what comes, not what was there.
  if (first_step > 0) write_event(first_step + 1, kSessionLog, std::string("\x08\x01", 2));
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value) {
  std::string scalar, summary;
  put_bytes(scalar, 1, tag);
  put_float(scalar, 2, static_cast<float>(value));
  put_bytes(summary, 1, scalar);
  write_event(step, kSummary, summary);
}

void EventFile::image(std::string_view tag, std::int64_t step, int height, int width, int channels,
                      std::span<const std::byte> png) {
  std::string image, value, summary;
  put_int(image, 1, height), put_int(image, 2, width), put_int(image, 3, channels);
  put_bytes(image, 4, {reinterpret_cast<const char*>(png.data()), png.size()});
  put_bytes(value, 1, tag);
  put_bytes(value, 4, image);
  put_bytes(summary, 1, value);
  write_event(step, kSummary, summary);
}

void EventFile::write_event(std::int64_t step, int field, std::string_view body) {
  std::string event, record;
  put_double(event, 1, now_seconds());
  put_int(event, 2, step);
  put_bytes(event, field, body);
  put_little_endian(record, static_cast<std::uint64_t>(event.size()));
  put_little_endian(record, masked_crc(record));
  record += event;
  put_little_endian(record, masked_crc(event));
  file_->write(record);
}

void EventFile::flush() { file_->flush(); }

}  // namespace mhla
