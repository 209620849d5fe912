// Folders of runs made here by hand: their task, their checkpoints, where their weights are.
#include "mhla/train/runs/run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/train/runs/options_file.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

class RunTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { write_file(folder_ / name, text); }
  void save_checkpoint(std::int64_t step) const {
    CheckpointFolder(folder_ / "checkpoints", 9).save(step, [](const fs::path& to) {
      write_file(to / "model.safetensors", std::string("weights"));
    });
  }
  // The message of what `work` throws.
  template <class Work>
  static std::string refused(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  const fs::path folder_ = fs::temp_directory_path() / ("mhla-run-test-" + std::to_string(::getpid()));
};

TEST_F(RunTest, HasItsTaskByName) {
  write("train.json", R"({"task": "diffusion", "packing": "documents"})");
  EXPECT_EQ(train::Run::open("test", folder_).task(), "diffusion");
  write("train.json", R"({"packing": "documents"})");  // before there was a name
  EXPECT_EQ(train::Run::open("test", folder_).task(), "lm");
  write("train.json", R"({"augment": "none"})");
  EXPECT_EQ(train::Run::open("test", folder_).task(), "classify");
  write("train.json", R"({"task": 3})");
  const std::string said = refused([&] { (void)train::Run::open("test", folder_).task(); });
  EXPECT_NE(said.find("train.json: 'task'"), std::string::npos) << said;
}

TEST_F(RunTest, ListsItsCheckpoints) {
  write("train.json", "{}");
  EXPECT_TRUE(train::Run::open("test", folder_).checkpoints().empty());
  for (const std::int64_t step : {50, 200}) save_checkpoint(step);
  const std::vector<Checkpoint> all = train::Run::open("test", folder_).checkpoints();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].step, 50);
  EXPECT_EQ(all[1].path.filename(), "step-00000200");
}

TEST_F(RunTest, FindsItsWeights) {
  write("train.json", R"({"ema": 0.9})");
  save_checkpoint(50), save_checkpoint(200);
  const train::Run run = train::Run::open("test", folder_);
  const RunWeights model = run.weights("model"), ema = run.weights("ema");
  EXPECT_EQ(model.file, folder_ / "checkpoints" / "step-00000200" / "model.safetensors");
  EXPECT_EQ(ema.prefix, "ema.");
  ASSERT_EQ(model.warnings.size(), 1u);
  EXPECT_NE(model.warnings[0].find("not at its end"), std::string::npos);
  write("checkpoints/step-00000200/model.safetensors", "damaged");  // of the same length: by its checksum
  const RunWeights before = run.weights("model");
  EXPECT_EQ(before.folder.filename(), "step-00000050");
  EXPECT_EQ(before.warnings.size(), 2u);
  write("model.safetensors", "weights");
  EXPECT_EQ(run.weights("model").file, folder_ / "model.safetensors");
  EXPECT_TRUE(run.weights("model").warnings.empty());
  EXPECT_NE(refused([&] { (void)run.weights("best"); }).find("test: --weights is best"), std::string::npos);
}

TEST_F(RunTest, AFolderThatIsNoRunIsNamed) {
  EXPECT_NE(refused([&] { train::Run::open("test", folder_ / "none"); }).find("is no folder of a run"),
            std::string::npos);
  EXPECT_NE(refused([&] { train::Run::open("test", folder_); }).find("has no train.json"), std::string::npos);
  save_checkpoint(50);
  EXPECT_NE(refused([&] { train::Run::open("test", folder_); }).find("is a copy of it"), std::string::npos);
}

struct SomeOptions {
  static constexpr const char* kTask = "some";
  std::int64_t depth = 3;
  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("depth", o.depth, "blocks");
  }
};

TEST_F(RunTest, OptionsAreWrittenWithTheirTask) {
  const JsonValue written = options_to_json(SomeOptions{});
  EXPECT_EQ(write_json(written), R"({"task": "some", "depth": 3})");
  SomeOptions read{1};
  options_from_json(read, written, "train.json");
  EXPECT_EQ(read.depth, 3);
  options_from_json(read, parse_json(R"({"depth": 4})", "old"), "train.json");
  EXPECT_EQ(read.depth, 4);
  const JsonValue other = parse_json(R"({"task": "other", "depth": 4})", "other");
  EXPECT_EQ(refused([&] { options_from_json(read, other, "train.json"); }),
            "train.json: 'task' is other, expected some");
}

}  // namespace
}  // namespace mhla::train
