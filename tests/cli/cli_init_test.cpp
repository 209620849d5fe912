// Trainings that start from given weights (--init): a run, a folder of mhla convert, a file; with another head, image
// size or context; and what does not fit. A learning rate of 1e-30 changes no weight but those that are 0, so that what
// a training started from can be read from what it leaves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "tests/cli/class_folders.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kStill{"--max-steps", "1", "--lr", "1e-300", "--min-lr", "0", "--warmup-steps", "0"};

// Every tensor of `want`, all of f32, whose name does not start with `without`: the same but for 1e-30 of a step.
void expect_same_tensors(const std::string& got, const std::string& want, const std::string& without = "none") {
  const Safetensors a = Safetensors::read(got), b = Safetensors::read(want);
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < b.size(); ++i) {
    const Safetensors::Entry entry = b.entry(i);
    if (entry.name.rfind(without, 0) == 0) continue;
    const auto at = a.find(std::string(entry.name));
    ASSERT_TRUE(at) << entry.name;
    ASSERT_EQ(a.entry(*at).shape, entry.shape) << entry.name;
    const auto *x = static_cast<const float*>(a.view(*at).data), *y = static_cast<const float*>(b.view(i).data);
    for (std::int64_t k = 0; k < entry.bytes / 4; ++k)
      ASSERT_LE(std::abs(x[k] - y[k]), 1e-28f) << entry.name << " " << k;
  }
}

class CliInit : public ClassifyFixture {
 protected:
  // A training on the images of the fixture from given weights, with the network of those.
  [[nodiscard]] std::vector<std::string> tune(const std::string& init, const std::string& out,
                                              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train",   "classify", "--init",    init,
                                 "--out",   out,        "--data",    "fashion-mnist:" + data,
                                 "--batch", "16",       "--threads", "1"};
    return joined(joined(all, kStill), more);
  }
  std::string trained(const std::string& name, const std::vector<std::string>& more = {}) const {
    const ProgramRun run = run_program(words(folder.path(name), joined({"--max-steps", "4"}, more)));
    EXPECT_EQ(run.code, 0) << run.err;
    return folder.path(name);
  }
};

TEST_F(CliInit, ARunAFolderAndAFileGiveTheSameWeights) {
  const std::string run = trained("run", {"--ema", "0.5"}), weights = run + "/model.safetensors";
  ASSERT_EQ(run_program({"convert", run, folder.path("ours")}).code, 0);
  ASSERT_EQ(run_program({"convert", run, folder.path("published.safetensors"), "--to", "published"}).code, 0);
  const ProgramRun tuned = run_program(tune(run, folder.path("a")));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "init  " + weights)) << tuned.out;
  expect_same_tensors(folder.path("a/model.safetensors"), weights);
  EXPECT_EQ(read_json(folder.path("a/config.json")), read_json(run + "/config.json"));
  ASSERT_EQ(run_program(tune(folder.path("ours"), folder.path("b"))).code, 0);
  expect_same_tensors(folder.path("b/model.safetensors"), weights);
  // A file says nothing of its network.
  const std::vector<std::string> network{"--model", "vit_demo",  "--set", "dims=[16]",
                                         "--set",   "heads=[2]", "--set", "depths=[1]"};
  int number = 0;
  for (const std::string& file : {weights, folder.path("published.safetensors")}) {
    const std::string out = folder.path("file" + std::to_string(number++));
    const ProgramRun from_file = run_program(tune(file, out, network));
    ASSERT_EQ(from_file.code, 0) << from_file.err;
    expect_same_tensors(out + "/model.safetensors", weights);
  }
  ASSERT_EQ(run_program(tune(run, folder.path("ema"), {"--init-weights", "ema"})).code, 0);
  expect_same_tensors(folder.path("ema/model.safetensors"), run + "/ema.safetensors");
}

TEST_F(CliInit, AnotherSizeIsResizedAsConvertDoesIt) {
  const std::string run = trained("run"), out = folder.path("tuned");
  ASSERT_EQ(run_program({"convert", run, folder.path("resized"), "--image", "32x32", "--blocks", "2x2"}).code, 0);
  const ProgramRun tuned = run_program(tune(run, out, {"--set", "image=[32,32]", "--set", "blocks=[[2,2]]"}));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "init  resized to images of 32x32 from 28x28")) << tuned.out;
  expect_same_tensors(out + "/model.safetensors", folder.path("resized/model.safetensors"));
}

TEST_F(CliInit, OtherClassesGetANewHead) {
  write_class_folders(folder.path("three"), {"cat", "dog", "fish"}, 20);
  write_class_folders(folder.path("two"), {"apple", "pear"}, 20);
  const auto on = [](std::vector<std::string> all, const std::string& images) {
    *(std::find(all.begin(), all.end(), "--data") + 1) = "folder:" + images;
    return all;
  };
  const std::string run = folder.path("run"), out = folder.path("tuned");
  ASSERT_EQ(run_program(on(words(run, {"--max-steps", "4"}), folder.path("three"))).code, 0);
  const ProgramRun tuned = run_program(on(tune(run, out), folder.path("two")));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "init  a new head for 2 classes, not the 3 of the weights")) << tuned.out;
  expect_same_tensors(out + "/model.safetensors", run + "/model.safetensors", "head.");
  const Safetensors file = Safetensors::read(out + "/model.safetensors");
  EXPECT_EQ(file.entry(*file.find("head.weight")).shape.at(0), 2);
  EXPECT_EQ(read_json(out + "/config.json").at("classes").as_int(), 2);
  EXPECT_EQ(read_json(out + "/classes.json").at(std::size_t{1}).as_string(), "pear");
  const ProgramRun rest = run_program({"train", "classify", "--resume", "--out", out, "--max-steps", "2"});
  EXPECT_EQ(rest.code, 0) << rest.err;
}

TEST_F(CliInit, SoftmaxBecomesMhla) {
  const std::string run = trained("run", {"--attention", "softmax"}), out = folder.path("tuned");
  const ProgramRun tuned = run_program(tune(run, out, {"--attention", "mhla"}));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "init  mhla attention from the weights of softmax")) << tuned.out;
  const Safetensors a = Safetensors::read(out + "/model.safetensors"),
                    b = Safetensors::read(run + "/model.safetensors");
  const auto bias = a.find("blocks.0.attn.qkv.bias"), theirs = b.find("blocks.0.attn.qkv.bias");
  ASSERT_TRUE(bias && theirs);
  EXPECT_EQ(std::memcmp(a.view(*bias).data, b.view(*theirs).data, 48 * sizeof(float)), 0);
}

TEST_F(CliInit, WhatDoesNotFitIsNamed) {
  const std::string run = trained("run"), out = folder.path("tuned");
  expect_refused(tune(run, out, {"--set", "heads=[4]"}), {"whose heads is [2], but the network has [4]"});
  expect_refused(tune(run, out, {"--set", "dims=[32]"}), {"whose dims is [16], but the network has [32]"});
  expect_refused(tune(run, out, {"--model", "vit_demo"}), {"whose dims is [16], but the network has "});
  expect_refused(tune(run + "/model.safetensors", out, {"--model", "vit_demo"}),
                 {"model.safetensors: ", " has shape [16", "expected ["});
  expect_refused(tune(folder.path("none"), out), {"--init is " + folder.path("none") + ", which is not there"});
  expect_refused(tune(data, out), {"which has not both config.json and model.safetensors"});
  expect_refused(tune(run, out, {"--init-weights", "ema"}), {"has no average of its weights"});
  expect_refused(tune(run, out, {"--init-weights", "last"}), {"init_weights is last, expected model, ema or best"});
  expect_refused(tune(run, run), {"has a run already"});
  expect_refused(tune(run, run, {"--overwrite"}), {"expected another folder than --out"});
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(CliInit, AResumedRunNeedsTheFolderNoMore) {
  const std::string run = trained("run"), out = folder.path("tuned"), other = trained("other", {"--seed", "5"});
  ASSERT_EQ(run_program(tune(run, out)).code, 0);
  const JsonValue origin = read_json(out + "/train.json").at("origin");
  EXPECT_EQ(origin.at("init").as_string(), run);
  EXPECT_GE(origin.at("init_crc32c").as_int(), 0);
  const auto resume = [&](const std::string& steps, const std::vector<std::string>& more) {
    return joined({"train", "classify", "--resume", "--out", out, "--max-steps", steps}, more);
  };
  EXPECT_EQ(run_program(resume("2", {"--init", run})).code, 0);
  expect_refused(resume("3", {"--init", other}), {"--init is " + other + ", but the run was started from " + run});
  expect_refused({"train", "classify", "--resume", "--out", other, "--max-steps", "6", "--init", run},
                 {"but the run was started from random weights"});
  fs::rename(run, folder.path("moved"));
  EXPECT_EQ(run_program(resume("3", {"--init", folder.path("moved")})).code, 0);  // the same bytes
  fs::remove_all(folder.path("moved"));
  const ProgramRun rest = run_program(resume("4", {}));
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_FALSE(has(rest.out, "init  ")) << rest.out;
}

class CliInitLm : public LmFixture {
 protected:
  // On text, from given weights, with the network of those.
  [[nodiscard]] std::vector<std::string> tune(const std::string& init, const std::string& out,
                                              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train",  "lm", "--init",  init, "--out",     out,
                                 "--data", data, "--batch", "4",  "--threads", "1"};
    return joined(joined(all, kStill), more);
  }
  std::string trained(const std::string& name, const std::string& tokenizer) const {
    std::vector<std::string> all = words(folder.path(name), {"--max-steps", "4"});
    *(std::find(all.begin(), all.end(), "--tokenizer") + 1) = tokenizer;
    const ProgramRun run = run_program(all);
    EXPECT_EQ(run.code, 0) << run.err;
    return folder.path(name);
  }
  static const float* mix_of(const Safetensors& file, std::int64_t rows) {
    const auto at = file.find("model.layers.0.attn.mix");
    if (!at || file.entry(*at).shape.back() != rows) return nullptr;
    return static_cast<const float*>(file.view(*at).data);
  }
};

TEST_F(CliInitLm, WeightsAndTokenizerComeAlong) {
  const std::string run = trained("run", "train:280"), out = folder.path("tuned");
  const ProgramRun tuned = run_program(tune(run, out));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  expect_same_tensors(out + "/model.safetensors", run + "/model.safetensors");
  EXPECT_EQ(file_text(out + "/tokenizer.fingerprint"), file_text(run + "/tokenizer.fingerprint"));
  EXPECT_EQ(read_json(out + "/config.json"), read_json(run + "/config.json"));
  // A copy of the model, and tokens that are there already.
  ASSERT_EQ(run_program({"convert", run, folder.path("ours"), "--to", "ours"}).code, 0);
  std::vector<std::string> again = tune(folder.path("ours"), folder.path("again"));
  *(std::find(again.begin(), again.end(), "--data") + 1) = run + "/tokens";
  const ProgramRun copied = run_program(again);
  ASSERT_EQ(copied.code, 0) << copied.err;
  expect_same_tensors(folder.path("again/model.safetensors"), run + "/model.safetensors");
  // Without the folder.
  fs::remove_all(folder.path("ours"));
  const ProgramRun rest = run_program({"train", "lm", "--resume", "--out", folder.path("again"), "--max-steps", "2"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  // Another tokenizer.
  expect_refused(tune(run, folder.path("none"), {"--tokenizer", "bytes"}), {"trained with another tokenizer"});
  expect_refused(tune(run, folder.path("none"), {"--tokenizer", "train:300"}), {"which has a tokenizer"});
  EXPECT_FALSE(fs::exists(folder.path("none")));
  expect_refused(tune(run, folder.path("none"), {"--set", "vocab=400"}), {"whose vocab is ", "the network has 400"});
  std::vector<std::string> recall = tune(run, folder.path("none"));
  *(std::find(recall.begin(), recall.end(), "--data") + 1) = "mqar";
  expect_refused(joined(recall, {"--mqar-vocab", "16", "--mqar-pairs", "2"}), {"trained on text"});
}

TEST_F(CliInitLm, AnotherContextCutsOrExtendsMix) {
  const std::string run = trained("run", "bytes");
  const Safetensors before = Safetensors::read(run + "/model.safetensors");
  const float* mix = mix_of(before, 4);
  ASSERT_NE(mix, nullptr);
  const ProgramRun longer = run_program(tune(run, folder.path("longer"), {"--context", "128"}));
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_TRUE(has(longer.out, "init  mixing matrices extended to 8 rows from 4")) << longer.out;
  const ProgramRun shorter = run_program(tune(run, folder.path("shorter"), {"--context", "32"}));
  ASSERT_EQ(shorter.code, 0) << shorter.err;
  EXPECT_TRUE(has(shorter.out, "init  mixing matrices cut to 2 rows from 4")) << shorter.out;
  const Safetensors more = Safetensors::read(folder.path("longer/model.safetensors")),
                    fewer = Safetensors::read(folder.path("shorter/model.safetensors"));
  const float *large = mix_of(more, 8), *small = mix_of(fewer, 2);
  ASSERT_TRUE(large != nullptr && small != nullptr);
  for (int i = 0; i < 4; ++i) {
    for (int b = 0; b <= i; ++b) {
      EXPECT_EQ(large[i * 8 + b], mix[i * 4 + b]) << i << " " << b;
      if (i < 2) {
        EXPECT_EQ(small[i * 2 + b], mix[i * 4 + b]) << i << " " << b;
      }
    }
  }
  EXPECT_EQ(large[7 * 8 + 7], mix[3 * 4 + 3]);  // by the distance of chunks
  expect_refused(tune(run, folder.path("none"), {"--set", "chunk=32"}), {"whose chunk is 16, but the network has 32"});
}

}  // namespace
}  // namespace mhla
