// `mhla data encode` of a folder of videos with Wan's autoencoder and umT5: what is written, what `mhla train video`
// and `mhla sample video` make of it, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "mhla/io/file.h"
#include "tests/cli/expect.h"
#include "tests/cli/program.h"
#include "tests/cli/wan_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

// Frames of grey that grows, in YUV 4:4:4.
void write_y4m(const std::string& path, int frames, int side, int level) {
  std::string bytes = "YUV4MPEG2 W" + std::to_string(side) + " H" + std::to_string(side) + " F8:1 Ip A1:1 C444\n";
  for (int frame = 0; frame < frames; ++frame) {
    bytes += "FRAME\n";
    bytes += std::string(static_cast<std::size_t>(side * side), static_cast<char>(level + 9 * frame));
    bytes += std::string(static_cast<std::size_t>(2 * side * side), static_cast<char>(128));
  }
  write_file(path, bytes);
}

class CliEncodeVideo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    write_wan_pipeline(folder.path("wan"));
    fs::create_directories(folder.path("videos"));
    for (int i = 0; i < 4; ++i) {
      const std::string name = folder.path("videos/clip") + std::to_string(i);
      write_y4m(name + ".y4m", 6, 24, 40 + 20 * i);
      write_file(name + ".txt", i == 0 ? "a grey wall" : "a wall in light " + std::to_string(i));
    }
    if (has(encode({"--frames", "5", "--size", "16x16", "--caption-tokens", "2"}, "probe").err,
            "need libmhla_sentencepiece"))
      GTEST_SKIP() << "built without SentencePiece";
  }
  ProgramRun encode(std::vector<std::string> more, const std::string& out = "latents") {
    std::vector<std::string> all{"data",           "encode",
                                 "--out",          folder.path(out),
                                 "--data",         folder.path("videos"),
                                 "--vae",          folder.path("wan/vae"),
                                 "--text-encoder", folder.path("wan/text_encoder"),
                                 "--threads",      "1"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  void refused(const std::vector<std::string>& more, const std::string& part) {
    const ProgramRun run = encode(more, "refused");
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, part)) << run.err << "\n expected " << part;
  }
  const std::vector<std::string> usual{"--frames", "5", "--size", "16x16", "--fps", "0", "--caption-tokens", "24"};
  TemporaryFolder folder;
};

TEST_F(CliEncodeVideo, LatentsAreTrainedOnAndSampledFrom) {
  std::vector<std::string> words = usual;
  words.insert(words.end(), {"--dtype", "f32", "--shard-items", "3"});
  const ProgramRun run = encode(words);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "4 items of ")) << run.out;
  EXPECT_TRUE(has(run.out, "4 x 2 x 2 x 2 f32 of images of 5 x 16 x 16")) << run.out;
  EXPECT_TRUE(has(run.out, "captions  24 tokens of 16 channels")) << run.out;
  {
    const Safetensors shard = Safetensors::read(folder.path("latents/shard-00000.safetensors"));
    const ConstView latents = shard.view("latents"), states = shard.view("captions"),
                    mask = shard.view("captions_mask");
    const auto* numbers = data_as<float>(latents);
    const std::int64_t each = latents.numel() / 3;
    EXPECT_FALSE(std::equal(numbers, numbers + each, numbers + 2 * each));  // of another clip
    EXPECT_EQ(data_as<std::int64_t>(mask)[0], 1);
    EXPECT_EQ(data_as<std::int64_t>(mask)[23], 0);
    EXPECT_NE(data_as<float>(states)[0], 0.0F);
    EXPECT_EQ(data_as<float>(states)[24 * 16 - 1], 0.0F);  // padding
  }

  // Again, with a shard that is damaged: it has the same bytes afterwards.
  const std::string shard = folder.path("latents/shard-00001.safetensors");
  const std::vector<std::byte> bytes = read_file(shard);
  write_file(shard, std::string("damaged"));
  const ProgramRun again = encode(words);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(has(again.out, "1 of 2 shards are there already")) << again.out;
  EXPECT_EQ(read_file(shard), bytes);
  EXPECT_EQ(run_program({"data", "info", "--data", folder.path("latents")}).code, 0);

  const ProgramRun train = run_program({"train",          "video",
                                        "--data",         folder.path("latents"),
                                        "--init",         folder.path("wan/transformer"),
                                        "--attention",    "mhla",
                                        "--set",          "blocks=[1,1,1]",
                                        "--max-steps",    "2",
                                        "--batch",        "2",
                                        "--eval-times",   "2",
                                        "--threads",      "1",
                                        "--hold-out",     "0.5",
                                        "--warmup-steps", "1",
                                        "--out",          folder.path("run")});
  ASSERT_EQ(train.code, 0) << train.err;
  const ProgramRun sample = run_program({"sample", "video", "--model", folder.path("run"), "--text-encoder",
                                         folder.path("wan/text_encoder"), "--prompt", "a grey wall", "--steps", "2",
                                         "--guidance", "1", "--threads", "1", "--out", folder.path("clip.gif")});
  ASSERT_EQ(sample.code, 0) << sample.err;
  EXPECT_TRUE(has(sample.out, "5 frames of 16x16")) << sample.out;
}

TEST_F(CliEncodeVideo, RefusalsNameTheNearest) {
  refused({"--frames", "6", "--size", "16x16"}, "--frames is 6, expected one and a multiple of 4: 5 or 9");
  refused({"--frames", "5", "--size", "20x16"}, "--size is 20x16, expected multiples of 8: 16 or 24 instead of 20");
  refused({"--frames", "5", "--size", "16x16", "--flip"}, "--flip is given, but --vae is of videos");
  refused({"--frames", "5", "--size", "16x16", "--fps", "0", "--caption-tokens", "3"}, "the caption has ");
  refused({"--frames", "9", "--size", "16x16", "--fps", "0"}, "clip0.y4m");  // too short
}

}  // namespace
}  // namespace mhla
