// Videos as files: every kind read back by the library or program that everybody reads it with.
#include "mhla/io/codecs/video_writer.h"

#include <gtest/gtest.h>
#ifdef MHLA_GIF
#include <gif_lib.h>
#endif
#ifdef MHLA_WEBPMUX
#include <webp/demux.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mhla/io/codecs/video_palette.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

// A square of one colour moves over a ground; `many` puts more than 256 colours behind it.
Image moving(int height, int width, int number, bool many) {
  Image image;
  image.resize(height, width, 3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      std::uint8_t* pixel = image.row(y) + 3 * x;
      pixel[0] = static_cast<std::uint8_t>(many ? 255 * x / width : 20), pixel[1] = 40;
      pixel[2] = static_cast<std::uint8_t>(many ? 255 * y / height : 200);
      if (x / 8 == number && y / 8 == 1) pixel[0] = 250, pixel[1] = 240, pixel[2] = 10;
    }
  }
  return image;
}

class VideoWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::path(testing::TempDir()) / ("video_writer_" + std::to_string(::rand()));
    fs::create_directories(folder);
    settings.height = 32, settings.width = 48, settings.frames = 5, settings.fps = 16;
    settings.text = {{"prompt", "a \"red\" ball <b> & more"}, {"seed", "7"}};
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path write(const std::string& name, bool many = false) {
    fs::path path = folder / name;
    const std::unique_ptr<VideoWriter> writer = open_video_writer(path, settings);
    for (int i = 0; i < settings.frames; ++i) {
      EXPECT_FALSE(fs::exists(path) && !is_frames_folder(path));
      writer->frame(moving(settings.height, settings.width, i, many));
    }
    writer->end();
    return path;
  }
  std::string bytes_of(const fs::path& path) {
    const std::vector<std::byte> bytes = read_file(path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  fs::path folder;
  VideoSettings settings;
};

TEST_F(VideoWriterTest, Y4mHasPlanesOfTheUsualMatrix) {
  settings.fps = 23.976;
  const fs::path path = write("clip.y4m");
  const std::string bytes = bytes_of(path), head = "YUV4MPEG2 W48 H32 F23976:1000 Ip A1:1 C444\n";
  ASSERT_EQ(bytes.substr(0, head.size()), head);
  ASSERT_EQ(bytes.size(), head.size() + 5 * (6 + 3 * 32 * 48));
  const auto* first = reinterpret_cast<const unsigned char*>(bytes.data()) + head.size() + 6;
  // R 20, G 40, B 200 by ITU-R 601: Y 60.9, Cb 201.2, Cr 107.8.
  EXPECT_EQ(first[0], 61);
  EXPECT_EQ(first[32 * 48], 201);
  EXPECT_EQ(first[2 * 32 * 48], 108);
  EXPECT_TRUE(has(bytes_of(path.string() + ".json"), R"("seed": "7")"));
}

TEST_F(VideoWriterTest, AFolderHasAPngOfEveryFrame) {
  settings.frames = 6;
  write("clip");
  settings.frames = 5;
  const fs::path path = write("clip");  // a shorter one replaces it
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(read_image(path / ("frame-0000" + std::to_string(i) + ".png")), moving(32, 48, i, false));
  EXPECT_FALSE(fs::exists(path / "frame-00005.png"));
  const std::vector<std::byte> bytes = read_file(path / "frame-00002.png");
  EXPECT_EQ(decode_png_text(bytes, "png"), settings.text);
  EXPECT_TRUE(fs::exists(path / "video.json"));
}

#ifdef MHLA_GIF
TEST_F(VideoWriterTest, GifsComeBackByGiflib) {
  for (const bool many : {false, true}) {
    settings.height = 160, settings.width = 200;  // the dictionary fills up and is cleared
    const fs::path path = write(many ? "many.gif" : "clip.gif", many);
    int error = 0;
    GifFileType* gif = DGifOpenFileName(path.c_str(), &error);
    ASSERT_NE(gif, nullptr);
    ASSERT_EQ(DGifSlurp(gif), GIF_OK) << GifErrorString(gif->Error);
    ASSERT_EQ(gif->ImageCount, 5);
    int hundredths = 0;
    for (int i = 0; i < 5; ++i) {
      const Image want = moving(160, 200, i, many);
      const SavedImage& frame = gif->SavedImages[i];
      const ColorMapObject* map = frame.ImageDesc.ColorMap;
      ASSERT_NE(map, nullptr);
      int worst = 0;
      for (int pixel = 0; pixel < 160 * 200; ++pixel) {
        ASSERT_LT(frame.RasterBits[pixel], map->ColorCount);
        const GifColorType colour = map->Colors[frame.RasterBits[pixel]];
        const std::uint8_t* rgb = want.pixels.data() + 3 * pixel;
        for (const int off : {colour.Red - rgb[0], colour.Green - rgb[1], colour.Blue - rgb[2]})
          worst = std::max(worst, std::abs(off));
      }
      EXPECT_LE(worst, many ? 24 : 0) << i;
      GraphicsControlBlock control{};
      ASSERT_EQ(DGifSavedExtensionToGCB(gif, i, &control), GIF_OK);
      hundredths += control.DelayTime;
    }
    EXPECT_EQ(hundredths, 31);  // 5 / 16 s
    EXPECT_TRUE(has(bytes_of(path), R"("prompt": "a \"red\" ball <b> & more")"));
    DGifCloseFile(gif, &error);
  }
}
#endif

TEST_F(VideoWriterTest, PalettesOfManyColoursAreNear) {
  Image noise;
  noise.resize(64, 64, 3);
  std::uint32_t state = 1;
  for (std::uint8_t& level : noise.pixels)
    level = static_cast<std::uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  const Indexed made = indexed(noise);
  EXPECT_EQ(made.palette.size(), 256u);
  double off = 0;
  for (std::size_t i = 0; i < noise.pixels.size(); ++i)
    off += std::abs(made.palette[made.pixels[i / 3]][i % 3] - noise.pixels[i]);
  EXPECT_LE(off / static_cast<double>(noise.pixels.size()), 13.0);  // one grey for all would be 64 off
}

#ifdef MHLA_WEBPMUX
TEST_F(VideoWriterTest, WebpComesBackByLibwebp) {
  const std::string bytes = bytes_of(write("clip.webp"));
  const WebPData data{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  WebPAnimDecoder* decoder = WebPAnimDecoderNew(&data, nullptr);
  ASSERT_NE(decoder, nullptr);
  WebPAnimInfo info{};
  ASSERT_NE(WebPAnimDecoderGetInfo(decoder, &info), 0);
  EXPECT_EQ(info.canvas_width, 48u);
  EXPECT_EQ(info.canvas_height, 32u);
  EXPECT_EQ(info.loop_count, 0u);
  int at = 0, frames = 0;
  std::uint8_t* pixels = nullptr;
  while (WebPAnimDecoderHasMoreFrames(decoder) != 0) {
    ASSERT_NE(WebPAnimDecoderGetNext(decoder, &pixels, &at), 0);
    const std::uint8_t* square = pixels + 4 * (12 * 48 + 8 * frames + 4);
    EXPECT_NEAR(square[0], 250, 20);
    EXPECT_NEAR(square[2], 10, 40);
    ++frames;
  }
  EXPECT_EQ(frames, 5);
  EXPECT_EQ(at, 313);  // the end of the last, in milliseconds
  WebPAnimDecoderDelete(decoder);
  EXPECT_TRUE(has(bytes, "a \\\"red\\\" ball &lt;b> &amp; more"));
}
#endif

std::string output_of(const std::string& command) {
  std::string text;
  if (std::FILE* pipe = ::popen(command.c_str(), "r"); pipe != nullptr) {
    char part[4096];
    while (const std::size_t size = std::fread(part, 1, sizeof part, pipe)) text.append(part, size);
    ::pclose(pipe);
  }
  return text;
}

TEST_F(VideoWriterTest, FfprobeKnowsTheMp4) {
  if (std::system("ffprobe -version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "ffprobe is missing, which reads the MP4 back (Debian: ffmpeg)";
  const fs::path path = write("clip.mp4", true);
  const std::string said = output_of("ffprobe -v error -count_frames -show_streams -show_format " + path.string());
  for (const char* line :
       {"width=48\n", "height=32\n", "r_frame_rate=16/1\n", "nb_read_frames=5\n", "pix_fmt=yuv420p\n",
        "color_space=bt709\n", "TAG:comment={\"prompt\": \"a \\\"red\\\" ball <b> & more\""})
    EXPECT_TRUE(has(said, line)) << line << " in " << said;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);  // nothing beside it
  // Colours come back.
  const std::string pixels =
      output_of("ffmpeg -v error -i " + path.string() + " -frames:v 1 -f rawvideo -pix_fmt rgb24 pipe:1");
  const Image want = moving(32, 48, 0, true);
  ASSERT_EQ(pixels.size(), want.pixels.size());
  const std::size_t middle = 3 * (24 * 48 + 24);
  for (std::size_t i = middle; i < middle + 3; ++i)
    EXPECT_NEAR(static_cast<unsigned char>(pixels[i]), want.pixels[i], 12) << i - middle;
}

TEST_F(VideoWriterTest, AFileThatIsNotEndedIsNotThere) {
  std::vector<const char*> names{"clip.gif", "clip.y4m"};
  if (std::system("ffmpeg -version >/dev/null 2>&1") == 0) names.push_back("clip.mp4");
  for (const char* name : names) {
    open_video_writer(folder / name, settings)->frame(moving(32, 48, 0, false));
    EXPECT_TRUE(fs::is_empty(folder)) << name;
  }
}

TEST_F(VideoWriterTest, SaysWhatCannotBeWritten) {
  const auto said = [&](const std::string& name) {
    return message_of([&] { check_video_output(folder / name, settings, "sample video"); });
  };
  EXPECT_TRUE(has(said("clip.avi"), "ends in .avi, expected .mp4, .webp, .gif, .y4m, or a name without an ending"));
  fs::create_directories(folder / "taken.gif");
  EXPECT_TRUE(has(said("taken.gif"), "is a folder"));
  settings.fps = 60;
  EXPECT_TRUE(has(said("clip.gif"), "expected at most 50 for .gif"));
  settings.fps = 0;
  EXPECT_TRUE(has(said("clip.y4m"), "0 frames a second, expected 0.1 to 240"));
  settings.fps = 16, settings.width = 47;
  EXPECT_TRUE(has(said("clip.mp4"), "expected even numbers for .mp4"));
  EXPECT_TRUE(has(message_of([&] { open_video_writer(folder / "a.gif", settings)->frame(moving(32, 48, 0, false)); }),
                  "a frame is 32 x 48 with 3 channels, expected 32 x 47 with 3"));
  settings.width = 48;
  const std::string kept = std::getenv("PATH");
  ::setenv("PATH", folder.c_str(), 1);
  EXPECT_TRUE(has(said("clip.mp4"), ".mp4 needs the program ffmpeg (Debian: ffmpeg)"));
  ::setenv("PATH", kept.c_str(), 1);
}

}  // namespace
}  // namespace mhla
