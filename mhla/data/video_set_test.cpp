// Folders of videos: captions beside them or in one file, rate and size of clips, and what is refused.
#include "mhla/data/video_set.h"

#include <cmath>

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

// A Y4M of grey frames: frame f has luma 16 + 10 f everywhere, but for the left quarter, which is black.
std::string grey_video(int frames, int height, int width, const std::string& rate) {
  std::string text = str("YUV4MPEG2 W", width, " H", height, " F", rate, " Cmono\n");
  for (int f = 0; f < frames; ++f) {
    text += "FRAME\n";
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) text += static_cast<char>(x < width / 4 ? 16 : 16 + 10 * f);
  }
  return text;
}

double level(int frame) { return std::lround(255.0 / 219.0 * 10 * frame) / 127.5 - 1; }

TEST(VideoFolder, ClipsHaveTheirRateAndSize) {
  const ScratchFolder folder;
  folder.write_text("b.y4m", grey_video(12, 8, 16, "24:1"));
  folder.write_text("b.txt", " a grey\nramp \n");
  folder.write_text("a.y4m", grey_video(6, 8, 8, "24:1"));
  folder.write_text("a.txt", "short");
  folder.write_text("notes.md", "not read");
  ClipShape shape{.frames = 4, .rows = 4, .columns = 4, .fps = 0};
  const VideoSetPtr all = open_videos("folder:" + folder.path(), Split::kTrain, shape);
  ASSERT_EQ(all->size(), 2);
  EXPECT_EQ(all->caption(0), "short");
  EXPECT_EQ(all->caption(1), "a grey ramp");
  EXPECT_FALSE(has_test_videos(folder.path()));
  // 8 x 16 to 4 x 4: halved, and of eight columns the middle four, which are not black.
  const std::vector<float> clip = clip_of(*all, 1);
  for (int f = 0; f < 4; ++f)
    for (int p = 0; p < 16; ++p)
      for (int c = 0; c < 3; ++c)
        EXPECT_NEAR(clip[static_cast<std::size_t>((c * 4 + f) * 16 + p)], level(f), 1e-6) << f << " " << p;
  // At 8 a second every third frame; at 16 frames 0, 1, 3, 4.
  shape.fps = 8;
  const std::vector<float> slow = clip_of(*open_videos(folder.path(), Split::kTrain, shape), 1);
  for (int f = 0; f < 4; ++f) EXPECT_NEAR(slow[static_cast<std::size_t>(f * 16 + 5)], level(3 * f), 1e-6);
  shape.fps = 16;
  const std::vector<float> faster = clip_of(*open_videos(folder.path(), Split::kTrain, shape), 1);
  const std::array<int, 4> taken{0, 1, 3, 4};
  for (std::size_t f = 0; f < 4; ++f) EXPECT_NEAR(faster[f * 16 + 5], level(taken[f]), 1e-6);
  // A quarter of a second is no clip of half a second.
  shape.fps = 8;
  const VideoSetPtr few = open_videos(folder.path(), Split::kTrain, shape);
  EXPECT_TRUE(has(message_of([&] { clip_of(*few, 0); }), "a.y4m: has 3 frames at 8 a second, expected 4 for a clip"));
  shape.fps = 0, shape.frames = 7;
  const VideoSetPtr longer = open_videos(folder.path(), Split::kTrain, shape);
  EXPECT_TRUE(has(message_of([&] { clip_of(*longer, 0); }), "a.y4m: has 6 frames, expected 7 for a clip"));
}

TEST(VideoFolder, FoldersOfImagesAndALineForEach) {
  const ScratchFolder folder;
  for (const char* part : {"train", "val"})
    for (int f = 0; f < 3; ++f) {
      Image image = noise_image(6, 6, 3, static_cast<std::uint64_t>(f) + (part[0] == 'v' ? 10 : 1));
      folder.write(str(part, "/one/frame", f, ".png"), encode_png(image));
    }
  folder.write_text("train/captions.jsonl", R"({"video": "one", "caption": "noise"})");
  folder.write_text("val/one.txt", "other noise");
  const ClipShape shape{.frames = 3, .rows = 6, .columns = 6, .fps = 16};  // images have no rate
  const VideoSetPtr train = open_videos(folder.path(), Split::kTrain, shape);
  const VideoSetPtr test = open_videos(folder.path(), Split::kTest, shape);
  EXPECT_EQ(train->caption(0), "noise");
  EXPECT_EQ(test->caption(0), "other noise");
  EXPECT_NE(train->checksum(), test->checksum());
  const Image second = noise_image(6, 6, 3, 2);
  const std::vector<float> clip = clip_of(*train, 0);
  for (int p = 0; p < 36; ++p)
    for (int c = 0; c < 3; ++c)
      EXPECT_NEAR(clip[static_cast<std::size_t>((c * 3 + 1) * 36 + p)],
                  second.pixels[static_cast<std::size_t>(3 * p + c)] / 127.5 - 1, 1e-6);
}

TEST(VideoFolder, SaysWhatIsMissing) {
  const ScratchFolder folder;
  const ClipShape shape{.frames = 2, .rows = 4, .columns = 4, .fps = 0};
  const auto refused = [&](Split split = Split::kTrain) {
    return message_of([&] { open_videos(folder.path(), split, shape); });
  };
  EXPECT_TRUE(has(refused(), "has no video, expected .y4m, .gif, .mp4"));
  folder.write_text("a.y4m", grey_video(2, 4, 4, "1:1"));
  EXPECT_TRUE(has(refused(), "a.y4m: has no caption, expected a.txt beside it"));
  folder.write_text("captions.jsonl", R"({"video": "b.y4m", "caption": "x"})");
  EXPECT_TRUE(has(refused(), "video 'b.y4m' is not in"));
  folder.write_text("captions.jsonl", R"({"video": "a.y4m"})");
  EXPECT_TRUE(has(refused(), "has no 'video' or no 'caption'"));
  folder.write_text("captions.jsonl", R"({"video": "a.y4m", "caption": "x"})");
  EXPECT_EQ(refused(), "nothing was thrown");
  EXPECT_TRUE(has(refused(Split::kTest), "has no val or test folder"));
  EXPECT_TRUE(has(message_of([&] { open_videos("nowhere", Split::kTrain, shape); }), "nowhere is not there"));
  EXPECT_TRUE(has(message_of([&] { check(ClipShape{.frames = 0, .rows = 4, .columns = 4, .fps = 0}); }),
                  "frames is 0, expected 1 to 4096"));
}

}  // namespace
}  // namespace mhla
