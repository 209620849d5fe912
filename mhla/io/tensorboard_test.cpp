// Event files through a small reader of their own: every frame's checksums, and the fields TensorBoard looks at.
#include "mhla/io/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/protobuf_fixture.h"

namespace mhla {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Bit by bit, from the definition.
std::uint32_t slow_crc32c(std::string_view text) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : text) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, AnyLengthAndAnySplit) {
  std::string text;
  for (int i = 0; i < 70; ++i) text += static_cast<char>(i * 37 + 11);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string head = text.substr(0, length);
    ASSERT_EQ(crc32c(bytes_of(head)), slow_crc32c(head)) << length;
    ASSERT_EQ(crc32c(bytes_of(text.substr(length)), crc32c(bytes_of(head))), slow_crc32c(text)) << length;
  }
}

struct Event {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string version, tag;
  float value = 0;
  int session = 0;  // SessionLog.status
  std::uint64_t height = 0, width = 0, channels = 0;
  std::string picture;
};

std::vector<Event> read_events(const std::filesystem::path& path) {
  const std::vector<std::byte> file = read_file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, text.substr(at, 4).data(), 4);
    return value;
  };
  const auto masked = [](std::string_view part) {
    const std::uint32_t crc = slow_crc32c(part);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  };
  std::vector<Event> events;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, text.substr(at, 8).data(), 8);
    EXPECT_EQ(word(at + 8), masked(text.substr(at, 8)));
    const std::string_view body = text.substr(at + 12, length);
    EXPECT_EQ(word(at + 12 + length), masked(body));
    at += 16 + length;
    Event event;
    walk_message(body, [&](std::uint64_t field, std::uint64_t number, std::string_view bytes) {
      if (field == 1) event.wall_time = std::bit_cast<double>(number);
      if (field == 2) event.step = number;
      if (field == 3) event.version = bytes;
      if (field == 5) {
        walk_message(bytes, [&](std::uint64_t, std::uint64_t, std::string_view value) {
          walk_message(value, [&](std::uint64_t part, std::uint64_t bits, std::string_view tag) {
            if (part == 1) event.tag = tag;
            if (part == 4) {
              walk_message(tag, [&](std::uint64_t of, std::uint64_t size, std::string_view png) {
                if (of == 1) event.height = size;
                if (of == 2) event.width = size;
                if (of == 3) event.channels = size;
                if (of == 4) event.picture = png;
              });
            }
            if (part == 2) event.value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
          });
        });
      }
      if (field == 7) {
        walk_message(bytes, [&](std::uint64_t, std::uint64_t status, std::string_view) {
          event.session = static_cast<int>(status);
        });
      }
    });
    events.push_back(event);
  }
  return events;
}

struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mhla-events-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST(EventFile, ReadsBack) {
  const Folder folder;
  EventFile file(folder.path, 0);
  file.scalar("train/loss", 0, 2.5);
  file.scalar("train/loss", 300, -0.125);
  file.scalar("eval/top1", std::int64_t{1} << 40, 0.75);
  file.flush();
  const std::vector<Event> events = read_events(file.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].tag, "train/loss");
  EXPECT_EQ(events[1].value, 2.5f);
  EXPECT_EQ(events[2].step, 300u);
  EXPECT_EQ(events[2].value, -0.125f);
  EXPECT_EQ(events[3].tag, "eval/top1");
  EXPECT_EQ(events[3].step, std::uint64_t{1} << 40);
  EXPECT_GT(events[3].wall_time, 1.6e9);
}

TEST(EventFile, ImagesReadBack) {
  const Folder folder;
  EventFile file(folder.path, 0);
  const std::string png(300, 'p');
  file.image("samples", 500, 40, 1000, 3, bytes_of(png));
  file.flush();
  const std::vector<Event> events = read_events(file.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].tag, "samples");
  EXPECT_EQ(events[1].step, 500u);
  EXPECT_EQ(events[1].height, 40u);
  EXPECT_EQ(events[1].width, 1000u);
  EXPECT_EQ(events[1].channels, 3u);
  EXPECT_EQ(events[1].picture, png);
}

TEST(EventFile, AResumedRunHasAFileOfItsOwnThatDropsLaterSteps) {
  const Folder folder;
  const EventFile first(folder.path, 0);
  EventFile second(folder.path, 40);
  second.flush();
  EXPECT_NE(first.path(), second.path());
  const std::vector<Event> events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].session, 1);
  EXPECT_EQ(events[1].step, 41u);  // what was written up to step 40 stays
}

TEST(EventFile, AFolderThatIsGoneIsNamed) {
  try {
    EventFile("/no/such/folder", 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace mhla
