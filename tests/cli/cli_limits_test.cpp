// Sizes that no machine has, in flags and in files: each is refused within seconds, before memory is taken, by its
// limit or by an estimate. 12 GB of address space stand for a small machine.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;  // which take terabytes of address space
#else
    false;
#endif

ProgramRun run_small(const std::vector<std::string>& arguments) {
  return run_program(arguments, {}, Reader::kListens, [] {
    const rlimit small{12000000ull << 10, 12000000ull << 10};  // ulimit -v 12000000
    setrlimit(RLIMIT_AS, &small);
  });
}

void expect_too_large(const std::vector<std::string>& arguments, const std::string& part) {
  const ProgramRun run = run_small(arguments);
  std::string line;
  for (const std::string& word : arguments) line += word + " ";
  EXPECT_EQ(run.code, 2) << line << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << line << run.err;
  EXPECT_TRUE(has(run.err, part)) << line << run.err;
  EXPECT_FALSE(has(run.err, "Exception raised")) << line << run.err;
  EXPECT_LT(run.cpu_seconds, 5.0) << line;  // of its own: the machine may be busy with other tests
  EXPECT_LT(run.seconds, 60.0) << line;
}

constexpr const char* kEstimate = "of memory (";

class CliLimits : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers need the address space";
  }
  TemporaryFolder folder;
};

TEST_F(CliLimits, SizesOfTheOperator) {
  const auto refused = [](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {"bench", "op"});
    expect_too_large(more, part);
  };
  for (const char* flag : {"--batch", "--n", "--h", "--hkv", "--d", "--e", "--block-size", "--chunk"}) {
    for (const char* size : {"0", "-1", "1000000000000"}) refused({flag, size}, str("is ", size, ", expected 1 to "));
  }
  refused({"--n", "1000000000", "--block-size", "1000000"}, kEstimate);
  refused({"--n", "100000000", "--block-size", "1"}, kEstimate);
  refused({"--n", "4096", "--batch", "1000000", "--h", "64"}, kEstimate);
  refused({"--form", "decode", "--n", "64", "--chunk", "16000000", "--h", "4096"}, kEstimate);
  refused({"--shape", "lm_2048", "--form", "decode", "--sequences", "1000000"}, kEstimate);
  refused({"--grid", "100000x100000", "--blocks", "4x4"}, "expected 0 to 1073741824");
  refused({"--grid", "99999999999x2", "--blocks", "4x4"}, "--grid is '99999999999x2', expected numbers from 1 to");
}

TEST_F(CliLimits, OfDataAndText) {
  expect_too_large({"bench", "data", "--batch", "1000000"}, kEstimate);
  expect_too_large({"bench", "data", "--batch", "100000000"}, "expected 1 to 1048576");
  expect_too_large({"bench", "data", "--size", "16384", "--batch", "64"}, kEstimate);
  expect_too_large({"bench", "text", "--vocab", "100000000000"}, "expected 257 to 16777216");
  write_file(folder.path("text.txt"), std::string("to be or not to be\n"));
  expect_too_large({"data", "tokenize", "--data", folder.path("text.txt"), "--tokenizer", "train:100000000000", "--out",
                    folder.path("tokens")},
                   "of at most 16777216 tokens");
  EXPECT_FALSE(fs::exists(folder.path("tokens")));
}

class CliModelLimits : public CliLimits {
 protected:
  void SetUp() override {
    CliLimits::SetUp();
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    data = folder.path("data");
    fs::create_directory(data);
    write_idx(data, "train", 80);
    write_idx(data, "t10k", 20);
    write_file(folder.path("text.txt"), std::string(4000, 'a') + "\n" + std::string(4000, 'b') + "\n");
  }
  void classify(const std::vector<std::string>& more, const std::string& part) const {
    std::vector<std::string> words{"train", "classify",        "--model", "vit_demo", "--data", "fashion-mnist:" + data,
                                   "--out", folder.path("run")};
    if (more.front() != "--batch") words.insert(words.end(), {"--batch", "16"});
    words.insert(words.end(), more.begin(), more.end());
    expect_too_large(words, part);
    EXPECT_FALSE(fs::exists(folder.path("run/checkpoints")));
  }
  void lm(const std::vector<std::string>& more, const std::string& part) const {
    std::vector<std::string> words{
        "train",       "lm",    "--model", "mhla_10m",       "--data", folder.path("text.txt"),
        "--tokenizer", "bytes", "--out",   folder.path("lm")};
    words.insert(words.end(), more.begin(), more.end());
    expect_too_large(words, part);
    EXPECT_FALSE(fs::exists(folder.path("lm/checkpoints")));
  }
  std::string data;
};

TEST_F(CliModelLimits, OfClassifiers) {
  classify({"--set", "depths=[1000000000]"}, "depths is 1000000000, expected 1 to 4096");
  classify({"--set", "dims=[300000000]"}, "dims is 300000000, expected 1 to 65536");
  classify({"--set", "heads=[100000]"}, "heads is 100000, expected 1 to 4096");
  classify({"--set", "mlp_ratio=1e9"}, "mlp_ratio is 1e+09, which gives an MLP of");
  classify({"--set", "image=[1000000,1000000]"}, "image is 1000000, expected 1 to 16384");
  classify({"--set", "patch=100000"}, "patch is 100000, expected 1 to 1024");
  classify({"--set", "blocks=[[100000,100000]]"}, "blocks is 100000, expected 1 to 1024");
  classify({"--set", "lepe=100001"}, "lepe is 100001, expected 0 to 255");
  classify({"--set", "dims=[30000]", "--set", "depths=[100]"}, kEstimate);
  classify({"--set", "image=[16384,16384]"}, kEstimate);
  classify({"--batch", "100000000"}, "batch is 100000000, expected 1 to 1048576");
  classify({"--threads", "100000"}, "threads is 100000, expected 0 to 1024");
}

TEST_F(CliModelLimits, OfLanguageModels) {
  lm({"--set", "layers=1000000000"}, "layers is 1000000000, expected 1 to 4096");
  lm({"--set", "dim=1000000000"}, "dim is 1000000000, expected 1 to 65536");
  lm({"--set", "vocab=100000000000"}, "vocab is 100000000000, expected 2 to 16777216");
  lm({"--set", "context=1000000000"}, "context is 1000000000, expected 1 to 16777216");
  lm({"--context", "1000000000"}, "context is 1000000000, expected at least 2 and at most 16777216");
  lm({"--set", "chunk=1000000000"}, "chunk is 1000000000, expected 1 to 16777216");
  lm({"--set", "mlp=1000000000"}, "mlp is 1000000000, expected 1 to 1048576");
  lm({"--set", "heads=1000000000"}, "heads is 1000000000, expected 1 to 4096");
  lm({"--set", "expand_v=1000000"}, "expand_v is 1e+06, which gives heads of");
  lm({"--set", "layers=4096"}, kEstimate);
  lm({"--set", "vocab=16777216"}, kEstimate);
  lm({"--set", "context=16777216", "--set", "chunk=1"}, kEstimate);
  lm({"--context", "4000000"}, kEstimate);
  lm({"--batch", "1000000"}, kEstimate);
  for (const char* attention : {"softmax", "linear", "gla", "mamba", "mamba2", "gdn"})
    lm({"--attention", attention, "--set", "layers=4000", "--set", "match=false"}, kEstimate);
}

TEST_F(CliModelLimits, OfBenchModel) {
  const auto refused = [](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {"bench", "model", "--attention", "mhla", "--min-time", "0.01"});
    expect_too_large(more, part);
  };
  refused({"--model", "deit_tiny", "--image", "100000"}, "is 100000, expected 1 to 16384");
  refused({"--model", "deit_tiny", "--image", "16384", "--pass", "train"}, kEstimate);
  refused({"--model", "deit_tiny", "--batch", "1000000", "--pass", "fwd"}, kEstimate);
  refused({"--model", "mhla_10m", "--length", "16777216", "--pass", "fwd"}, kEstimate);
  refused({"--model", "mhla_340m", "--batch", "10000", "--pass", "decode"}, kEstimate);
  refused({"--model", "mhla_340m", "--batch", "64", "--length", "4096", "--pass", "train"}, kEstimate);
}

// What a finished run says about itself is no more trusted than a flag.
TEST_F(CliModelLimits, OfFiles) {
  const std::string run = folder.path("small");
  ASSERT_EQ(run_program({"train", "classify", "--model", "vit_demo", "--data", "fashion-mnist:" + data, "--out", run,
                         "--batch", "16", "--max-steps", "1", "--set", "dims=[48]", "--set", "heads=[2]", "--set",
                         "depths=[1]"})
                .code,
            0);
  expect_too_large({"convert", run, folder.path("large"), "--image", "100000x100000"},
                   "--image is 100000, expected 1 to 16384");
  expect_too_large({"convert", run, folder.path("large"), "--image", "16384x16384"}, kEstimate);
  expect_too_large({"eval", "classify", "--run", run, "--batch", "100000000"}, "expected 1 to 1048576");
  const JsonValue network = read_json(run + "/config.json"), options = read_json(run + "/train.json");
  const auto with = [&](const char* file, const JsonValue& before, const char* key, const JsonValue& value) {
    JsonValue changed = before;
    write_file(run + "/" + file, write_json(changed.set(key, value)));
  };
  const auto refused = [&](const std::string& part) {
    expect_too_large({"eval", "classify", "--run", run}, part);
    expect_too_large({"analyze", "--run", run, "--out", folder.path("page")}, part);
  };
  with("config.json", network, "depths", JsonValue::array({std::int64_t{1} << 40}));
  refused("config.json: config: depths is 1099511627776, expected 1 to 4096");
  with("config.json", network, "dims", JsonValue::array({65536}));
  refused(kEstimate);
  write_file(run + "/config.json", write_json(network));
  with("train.json", options, "batch", std::int64_t{1} << 40);
  refused("batch is 1099511627776, expected 1 to 1048576");
  with("train.json", options, "threads", std::int64_t{1} << 40);
  EXPECT_EQ(run_small({"eval", "classify", "--run", run}).code, 0);  // threads are this command's own
}

}  // namespace
}  // namespace mhla
