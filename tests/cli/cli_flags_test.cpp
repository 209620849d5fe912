// Flags: what is mistyped is named with its nearest, sizes that are none are refused by name, one thing has one name.
#include <gtest/gtest.h>

#include "tests/cli/expect.h"

namespace mhla {
namespace {

using Arguments = std::vector<std::string>;

TEST(CliFlags, AMistypedWordIsNamedBeforeWhatIsMissing) {
  expect_refused({"trian"}, {"unknown command 'trian'", "nearest is 'train'"});
  expect_refused({"train", "clasify"}, {"train: unknown command 'clasify'", "nearest is 'classify'"});
  expect_refused({"train", "clasify", "--data", "x", "--out", "y"}, {"'clasify'", "nearest is 'classify'"});
  expect_refused({"bench", "modle"}, {"bench: unknown command 'modle'", "nearest is 'model'"});
  expect_refused({"train", "lm", "--bacth", "3"}, {"train lm: --bacth is unknown, nearest is --batch"});
  expect_refused({"train", "lm", "--bacth=3", "--out", "x"}, {"train lm: --bacth is unknown, nearest is --batch"});
  expect_refused({"generate", "--rnu", "x", "--prompt", "a"}, {"generate: --rnu is unknown, nearest is --run"});
  expect_refused({"eval", "lm", "--rnu", "x"}, {"eval lm: --rnu is unknown, nearest is --run"});
  expect_refused({"convert", "--imgae", "384", "a", "b"}, {"convert: --imgae is unknown, nearest is --image"});
  expect_refused({"train", "classify", "-batch", "3"}, {"-batch is unknown, nearest is --batch"});
  expect_refused({"train", "classify", "--no-deterministc"}, {"nearest is --no-deterministic"});
  expect_refused({"eval", "lm", "--lenght", "3"}, {"--lenght is unknown, nearest is --context"});  // by its older name
  expect_refused({"train", "--batch", "3", "lm", "--out", "x"},
                 {"train lm: --batch is given before 'lm', expected after it"});
  expect_refused({"generate", "--run", "x", "--prompt", "Once", "upon"}, {"unexpected word 'upon'", "quotes"});
  // Where nothing is mistyped, what is missing is said.
  expect_refused({}, {"no command is given, expected one of doctor, verify"});
  expect_refused({"train"}, {"train: no command is given, expected one of classify, lm"});
  expect_refused({"generate"}, {"generate: --run is required"});
  expect_refused({"generate", "--run", "x", "--run", "y"}, {"generate: --run is given more than once"});
  expect_refused({"generate", "--run", "x", "--top-p", "much"}, {"generate: --top-p is 'much', expected a number"});
}

TEST(CliFlags, SizesThatAreNoneAreRefusedByName) {
  for (const char* flag : {"--batch", "--n", "--h", "--hkv", "--d", "--e", "--block-size", "--chunk"}) {
    for (const char* size : {"0", "-3", "x"})
      expect_refused({"bench", "op", flag, size},
                     {std::string("bench op: ") + flag + " is " + size + ", expected 1 to "});
  }
  for (const char* flag : {"--repeat", "--sets", "--layers"})
    expect_refused({"bench", "op", "--n", "16", flag, "0"},
                   {std::string(flag) + " is 0, expected a whole number from 1"});
  for (const char* flag : {"--grid", "--blocks"})
    for (const char* size : {"0", "4x0", "-4", "4x", "x4", "2x2x2x2"})
      expect_refused({"bench", "op", flag, size, flag == std::string("--grid") ? "--blocks" : "--grid", "4x4"},
                     {std::string(flag) + " is '" + size});
  for (const char* flag : {"--image", "--blocks", "--context", "--chunk", "--batch"})
    for (const char* size : {"0", "-3"}) {
      expect_refused({"bench", "model", flag, size}, {std::string("bench model: ") + flag + " is "});
    }
  for (const char* flag : {"--image", "--photo-height", "--photo-width", "--batch"})
    expect_refused({"bench", "data", flag, "0"}, {std::string("bench data: ") + flag + " is "});
  expect_refused({"bench", "text", "--max-bytes", "0"}, {"--max-bytes is 0"});
  expect_refused({"bench", "op", "--n", "16", "--min-time", "nan"}, {"--min-time is nan, expected seconds"});
  expect_refused({"bench", "op", "--n", "16", "--rival-limit", "-1"}, {"--rival-limit is -1, expected seconds"});
}

TEST(CliFlags, AllThreadsIsZeroEverywhere) {
  const Arguments commands[] = {
      {"verify"},     {"bench", "op"}, {"bench", "data"}, {"bench", "model"}, {"data", "info"}, {"eval", "classify"},
      {"eval", "lm"}, {"generate"},    {"analyze"},       {"demo"},           {"train", "lm"},  {"train", "classify"}};
  for (Arguments arguments : commands) {
    arguments.insert(arguments.end(), {"--threads", "0", "--help"});
    const ProgramRun help = run_program(arguments);
    EXPECT_EQ(help.code, 0) << arguments[0] << help.err;
    EXPECT_TRUE(has(help.out, "CPU threads; 0: all")) << help.out;
  }
  expect_refused({"verify", "--threads", "-1"}, {"verify: --threads is -1, expected a whole number from 0 to 1024"});
  const ProgramRun run = run_program(
      {"bench", "op", "--n", "16", "--backend", "ref", "--min-time", "0", "--repeat", "1", "--threads", "0"});
  EXPECT_EQ(run.code, 0) << run.err;
}

// Older names are still taken, and no help shows them.
TEST(CliFlags, OneThingHasOneName) {
  struct Name {
    Arguments command;
    std::string now, before, value;
  };
  const Name names[] = {{{"eval", "lm"}, "--context", "--length", "8"},
                        {{"eval", "lm"}, "--eval-tokens", "--max-tokens", "8"},
                        {{"eval", "lm"}, "--mqar-pairs", "--pairs", "8"},
                        {{"eval", "lm"}, "--seed", "--task-seed", "8"},
                        {{"bench", "model"}, "--context", "--length", "8"},
                        {{"bench", "data"}, "--augment", "--recipe", "small"},
                        {{"bench", "data"}, "--image", "--size", "32x32"},
                        {{"bench", "text"}, "--tokenizer", "--vocab", "300"},
                        {{"bench", "op"}, "--batch", "--sequences", "8"},
                        {{"data", "info"}, "--samples", "--items", "8"},
                        {{"demo"}, "--train-images", "--images", "80"},
                        {{"convert"}, "--model", "--config", "c.json"},
                        {{"analyze"}, "--run", "--runs", "x"}};
  for (const Name& name : names) {
    for (const std::string& flag : {name.now, name.before}) {
      Arguments arguments = name.command;
      arguments.insert(arguments.end(), {flag, name.value, "--help"});
      const ProgramRun help = run_program(arguments);
      EXPECT_EQ(help.code, 0) << flag << help.err;
      EXPECT_TRUE(has(help.out, name.now + " ")) << name.now << help.out;
      EXPECT_FALSE(has(help.out, name.before + " ") || has(help.out, name.before + ",")) << name.before << help.out;
    }
  }
}

TEST(CliFlags, BlocksAreSpelledAlike) {
  const auto blocks_of = [](const std::string& blocks) {
    const ProgramRun run = run_program({"bench", "op", "--grid", "8x8", "--blocks", blocks, "--backend", "ref",
                                        "--min-time", "0", "--repeat", "1", "--threads", "1", "--json"});
    EXPECT_EQ(run.code, 0) << run.err;
    return run.out.substr(run.out.find("\"M\""), 8);
  };
  EXPECT_EQ(blocks_of("2"), blocks_of("2x2"));
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  for (const char* blocks : {"2", "2x2", "2x1"}) {
    const ProgramRun run = run_program({"bench", "model", "--model", "vit_demo", "--attention", "mhla", "--pass", "fwd",
                                        "--batch", "1", "--blocks", blocks, "--min-time", "0.01", "--json"});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_TRUE(has(run.out, blocks == std::string("2x1") ? "\"M\": 2," : "\"M\": 4,")) << run.out;
  }
}

TEST(CliFlags, AnErrorIsPrintedOnce) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  expect_refused({"bench", "model", "--model", "deit_tyni", "--min-time", "0.01"}, {"deit_tyni"});
  expect_refused({"bench", "model", "--model", "vit_demo", "--attention", "mhla", "--pass", "train", "--batch", "1",
                  "--cuda-graph"},
                 {"bench model: --cuda-graph is on, expected a CUDA device, not cpu"});
  expect_refused({"bench", "model", "--model", "mhla_11m", "--min-time", "0.01"}, {"mhla_11m"});
  expect_refused({"bench", "model", "--model", "vit_demo", "--attention", "flat,flatter"}, {"'flat'"});
}

}  // namespace
}  // namespace mhla
