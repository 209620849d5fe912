// Videos frame by frame: Y4M in its layouts, animated GIF with its disposals, folders of images, ffmpeg as a process,
// and what is damaged.
#include "mhla/io/codecs/video_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "mhla/core/error.h"
#include "mhla/io/codecs/codecs_fixture.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class VideoFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / str("mhla_video_", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  fs::path folder_;
};

struct Frames {
  std::vector<Image> images;
  std::vector<double> seconds;
};
Frames all_of(const fs::path& path) {
  Frames frames;
  const auto reader = open_video(path);
  Image image;
  for (double seconds = 0; reader->next(image, seconds);)
    frames.images.push_back(image), frames.seconds.push_back(seconds);
  return frames;
}

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

using Pixel = std::array<int, 3>;
Pixel pixel(const Image& image, int y, int x) {
  const std::uint8_t* at = image.row(y) + 3 * x;
  return {at[0], at[1], at[2]};
}

TEST_F(VideoFiles, Y4mInItsLayouts) {
  // BT.601, limited: (81, 90, 240) is red, (145, 54, 34) green, (41, 240, 110) blue, (235, 128, 128) white.
  const std::string head = "YUV4MPEG2 W2 H2 F30000:1001 Ip A1:1 ";
  const Frames whole =
      all_of(write("a.y4m", head + "C444\nFRAME\n" + bytes({81, 145, 41, 235, 90, 54, 240, 128, 240, 34, 110, 128}) +
                                "FRAME Ip\n" + bytes({16, 16, 16, 16, 128, 128, 128, 128, 128, 128, 128, 128})));
  ASSERT_EQ(whole.images.size(), 2u);
  const auto near = [](const Pixel& got, const Pixel& want) {
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], want[i], 2) << got[0] << " " << got[1] << " " << got[2];
  };
  near(pixel(whole.images[0], 0, 0), {255, 0, 0});
  near(pixel(whole.images[0], 0, 1), {0, 255, 0});
  near(pixel(whole.images[0], 1, 0), {0, 0, 255});
  near(pixel(whole.images[0], 1, 1), {255, 255, 255});
  near(pixel(whole.images[1], 1, 1), {0, 0, 0});
  EXPECT_NEAR(whole.seconds[1], 1001.0 / 30000.0, 1e-12);
  // 4:2:0 of 3 x 3: chroma of 2 x 2, the right column by itself. Red on the left two columns, blue on the right.
  const Frames half =
      all_of(write("b.y4m", "YUV4MPEG2 W3 H3 F16:1\nFRAME\n" + bytes({81, 81, 41, 81, 81, 41, 81, 81, 41}) +
                                bytes({90, 240, 90, 240}) + bytes({240, 110, 240, 110})));
  for (int y = 0; y < 3; ++y) {
    near(pixel(half.images[0], y, 0), {255, 0, 0}), near(pixel(half.images[0], y, 1), {255, 0, 0});
    near(pixel(half.images[0], y, 2), {0, 0, 255});
  }
  const Frames grey = all_of(write("c.y4m", "YUV4MPEG2 W2 H1 F1 Cmono XCOLORRANGE=FULL\nFRAME\n" + bytes({7, 200})));
  EXPECT_EQ(pixel(grey.images[0], 0, 0), (Pixel{7, 7, 7}));
  EXPECT_EQ(pixel(grey.images[0], 0, 1), (Pixel{200, 200, 200}));
}

TEST_F(VideoFiles, DamagedY4m) {
  const auto said = [&](const std::string& text) { return message_of([&] { all_of(write("x.y4m", text)); }); };
  EXPECT_TRUE(has(said("RIFF"), "a line does not end"));
  EXPECT_TRUE(has(said("RIFF\n"), "does not begin with YUV4MPEG2"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W2 H2 F25:1 C420p10\n"), "layout 420p10, expected 420, 422, 444 or mono"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W0 H2 F25:1\n"), "frames of 2x0"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W2 Hx F25:1\n"), "the height is 'x'"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W2 H2\n"), "has no rate"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W2 H2 F25:0\n"), "the rate is 25:0"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W1 H1 F1 Cmono\nFRAME\n"), "frame 0 is cut short"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W1 H1 F1 Cmono\nFRAME\n1what\n"), "frame 1 does not begin with FRAME"));
  EXPECT_TRUE(has(said("YUV4MPEG2 W999999 H999999 F25:1\n"), "999999"));
  EXPECT_TRUE(has(message_of([&] { open_video(folder_ / "none.y4m"); }), "is not there"));
}

// A GIF of 2 x 1 with the palette black, red, green, blue; frames are (control, left, width, colours). Pixels are
// written as LZW codes with a clear code before each, which needs no dictionary.
struct GifFrame {
  int disposal, transparent, hundredths, left, width;
  std::vector<int> colours;
};
std::string gif_of(const std::vector<GifFrame>& frames) {
  std::string gif = "GIF89a" + bytes({2, 0, 1, 0, 0x81, 0, 0, 0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255});
  for (const GifFrame& f : frames) {
    gif += bytes({0x21, 0xF9, 4, f.disposal << 2 | (f.transparent >= 0 ? 1 : 0), f.hundredths & 255, f.hundredths >> 8,
                  std::max(0, f.transparent), 0});
    gif += bytes({0x2C, f.left, 0, 0, 0, f.width, 0, 1, 0, 0, 2});
    unsigned bits = 0;
    int count = 0;
    std::string data;
    const auto put = [&](unsigned code) {  // three bits each: 4 clears, 5 ends
      bits |= code << count, count += 3;
      while (count >= 8) data += static_cast<char>(bits & 255), bits >>= 8, count -= 8;
    };
    for (const int colour : f.colours) put(4), put(static_cast<unsigned>(colour));
    put(5);
    if (count > 0) data += static_cast<char>(bits & 255);
    gif += bytes({static_cast<int>(data.size())}) + data + bytes({0});
  }
  return gif + ";";
}

TEST_F(VideoFiles, GifFramesAreDrawnOverTheOnesBefore) {
  if (format_of_ending(".gif")->decode == nullptr) GTEST_SKIP() << "giflib was missing";
  const Pixel black{0, 0, 0}, red{255, 0, 0}, green{0, 255, 0}, blue{0, 0, 255};
  const Frames frames = all_of(write("a.gif", gif_of({{0, -1, 4, 0, 2, {1, 2}},   // red green, stays
                                                      {3, -1, 1, 1, 1, {3}},      // blue on the right, put back
                                                      {2, 0, 50, 0, 2, {3, 0}},   // blue; 0 is transparent; cleared
                                                      {1, -1, 5, 1, 1, {1}}})));  // red on the right
  ASSERT_EQ(frames.images.size(), 4u);
  EXPECT_EQ(pixel(frames.images[0], 0, 0), red);
  EXPECT_EQ(pixel(frames.images[0], 0, 1), green);
  EXPECT_EQ(pixel(frames.images[1], 0, 0), red);
  EXPECT_EQ(pixel(frames.images[1], 0, 1), blue);
  EXPECT_EQ(pixel(frames.images[2], 0, 0), blue);
  EXPECT_EQ(pixel(frames.images[2], 0, 1), green);
  EXPECT_EQ(pixel(frames.images[3], 0, 0), black);
  EXPECT_EQ(pixel(frames.images[3], 0, 1), red);
  EXPECT_EQ(frames.seconds, (std::vector<double>{0, 0.04, 0.14, 0.64}));  // 1/100 counts as 1/10
  const std::string whole = gif_of({{0, -1, 4, 0, 2, {1, 2}}});
  EXPECT_TRUE(has(message_of([&] { all_of(write("b.gif", whole.substr(0, whole.size() - 4))); }), "damaged GIF"));
  EXPECT_TRUE(has(message_of([&] { all_of(write("c.gif", gif_of({}))); }), "it has no frame"));
  EXPECT_TRUE(has(message_of([&] {
                    all_of(write("d.gif", gif_of({{0, -1, 4, 0, 2, {1, 2}}, {0, -1, 4, 1, 2, {1, 2}}})));
                  }),
                  "reaches beyond the first"));
}

TEST_F(VideoFiles, FoldersOfImages) {
  const Image first = noise_image(3, 4, 3, 1), second = noise_image(3, 4, 1, 2);
  const auto png = [](const Image& image) {
    const std::vector<std::byte> data = encode_png(image);
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
  };
  write("clip/002.png", png(second)), write("clip/001.png", png(first)), write("clip/notes.txt", "x");
  EXPECT_FALSE(open_video(folder_ / "clip")->has_rate());
  const Frames frames = all_of(folder_ / "clip");
  ASSERT_EQ(frames.images.size(), 2u);
  EXPECT_TRUE(frames.images[0] == first);
  EXPECT_EQ(frames.images[1].channels, 3);
  write("clip/003.png", png(noise_image(4, 4, 3, 1)));
  EXPECT_TRUE(has(message_of([&] { all_of(folder_ / "clip"); }), "003.png: is 4x4, expected 3x4"));
  fs::create_directories(folder_ / "empty");
  EXPECT_TRUE(has(message_of([&] { open_video(folder_ / "empty"); }), "has no image"));
}

// Another PATH while it lives.
struct OtherPath {
  explicit OtherPath(const std::string& path) : before(std::getenv("PATH")) { ::setenv("PATH", path.c_str(), 1); }
  ~OtherPath() { ::setenv("PATH", before.c_str(), 1); }
  std::string before;
};

TEST_F(VideoFiles, OthersGoThroughFfmpeg) {
  EXPECT_TRUE(needs_ffmpeg("a.mp4"));
  EXPECT_TRUE(is_video_file("A.MP4"));
  EXPECT_FALSE(needs_ffmpeg("a.y4m"));
  const fs::path clip = write("a.mp4", "YUV4MPEG2 W2 H1 F1 Cmono\nFRAME\n12FRAME\n34");
  {
    const OtherPath none((folder_ / "nothing").string());
    EXPECT_TRUE(has(message_of([&] { open_video(clip); }), "a.mp4: reading it needs the program ffmpeg"));
  }
  // A program of this name that copies its input.
  const auto program = [&](const std::string& text) {
    const fs::path path = write("bin/ffmpeg", "#!/bin/sh\n" + text);
    ::chmod(path.c_str(), 0755);
    return (folder_ / "bin").string() + ":" + std::getenv("PATH");
  };
  {
    const OtherPath own(program("cat \"${5#file:}\"\n"));
    EXPECT_EQ(all_of(clip).images.size(), 2u);
    Image image;
    double seconds = 0;
    EXPECT_TRUE(open_video(clip)->next(image, seconds));  // left before the end
  }
  {
    const OtherPath own(program("echo 'no such codec' >&2; exit 3\n"));
    EXPECT_TRUE(has(message_of([&] { open_video(clip); }), "a.mp4: ffmpeg could not read it: no such codec"));
  }
  {
    const OtherPath own(program("cat \"${5#file:}\"; echo broken >&2; exit 1\n"));
    EXPECT_TRUE(has(message_of([&] { all_of(clip); }), "a.mp4: ffmpeg could not read it: broken"));
  }
}

}  // namespace
}  // namespace mhla
