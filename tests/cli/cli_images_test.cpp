// `mhla eval images`: what it computes from folders, .npz files and saved statistics, and what it refuses.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/expect.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliImages : public testing::Test {
 protected:
  // Images of waves, `count` of them, as a folder of PNG files and as an .npz of the same pixels.
  std::string make(const std::string& name, int count, int step) {
    fs::create_directory(folder.path(name));
    std::vector<std::uint8_t> all;
    for (int i = 0; i < count; ++i) {
      Image image;
      image.resize(12, 12, 3);
      for (std::size_t at = 0; at < image.pixels.size(); ++at)
        image.pixels[at] = static_cast<std::uint8_t>((at * static_cast<std::size_t>(step + i) + at / 7) % 251);
      all.insert(all.end(), image.pixels.begin(), image.pixels.end());
      write_file(folder.path(name + "/" + std::to_string(10 + i) + ".png"), encode_png(image));
    }
    NpzWriter npz(folder.path(name + ".npz"));
    npz.add("arr_0", {all.data(), DType::kU8, {count, 12, 12, 3}});
    npz.commit();
    return folder.path(name);
  }
  ProgramRun eval(std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "images"});
    return run_program(more);
  }
  void refused(const std::vector<std::string>& more, const std::string& part) {
    const ProgramRun run = eval(more);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, part)) << run.err;
  }
  TemporaryFolder folder;
};

TEST_F(CliImages, RefusesWhatItCannotJudge) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  const std::string a = make("a", 3, 3), network = "inception:" + folder.path("none.safetensors");
  refused({"--samples", a, "--features", network}, "--reference is missing");
  refused({"--samples", a, "--reference", a, "--features", "resnet"}, "expected inception:FILE");
  refused({"--samples", a, "--reference", a, "--features", network}, "none.safetensors");
  refused({"--samples", a, "--reference", a, "--features", network, "--metrics", "fad"}, "fad");
  const auto samples = [&](const std::string& path, const std::string& part) {
    refused({"--samples", path, "--metrics", "is", "--features", network}, part);
  };
  samples(folder.path("nowhere"), "nowhere");
  fs::create_directory(folder.path("empty"));
  samples(folder.path("empty"), "has no image");
  samples(a + "/10.png", "is no folder, .npz or .safetensors file");
  const std::vector<float> numbers(12);
  for (const char* name : {"arr_0", "other"}) {
    NpzWriter npz(folder.path("bad.npz"));
    npz.add(name, {numbers.data(), DType::kF32, {2, 2, 3}});
    npz.commit();
    samples(folder.path("bad.npz"),
            std::string(name) == "other" ? "has neither arr_0 nor mu" : "arr_0 is f32 [2, 2, 3], expected u8");
  }
}

TEST_F(CliImages, HelpNamesEveryMetric) {
  const ProgramRun help = eval({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"fid", "sfid", "is", "is-shuffled", "kid", "precision", "recall", "density", "coverage"})
    EXPECT_TRUE(has(help.out, name)) << help.out;
}

}  // namespace
}  // namespace mhla
