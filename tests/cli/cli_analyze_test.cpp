// mhla analyze and mhla demo as a user runs them, on images made here: rows, page, JSON, every mistake with its line
// and exit code; the page in headless Chromium where there is one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/browser.h"
#include "tests/cli/dit_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string text_of(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class CliAnalyze : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    fs::create_directory(data());
    write_idx(data(), "train", 80);
    write_idx(data(), "t10k", 40);
  }
  [[nodiscard]] std::string data() const { return folder.path("data"); }
  // A run of one epoch: 14 x 14 tokens, one layer, two heads of 8.
  std::string train(const std::string& name, const std::string& attention, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"train",       "classify",
                                   "--model",     "vit_demo",
                                   "--data",      "fashion-mnist:" + data(),
                                   "--out",       folder.path(name),
                                   "--attention", attention,
                                   "--batch",     "16",
                                   "--threads",   "1",
                                   "--set",       "dims=[16]",
                                   "--set",       "heads=[2]",
                                   "--set",       "depths=[1]",
                                   "--epochs",    "1"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.code, 0) << run.err;
    return folder.path(name);
  }
  TemporaryFolder folder;
};

TEST_F(CliAnalyze, TwoRunsSideBySide) {
  const std::string mhla = train("mhla", "mhla"), softmax = train("softmax", "softmax"), out = folder.path("out");
  const ProgramRun run = run_program({"analyze", "--run", mhla, softmax, "--samples", "10", "--maps", "2", "--queries",
                                      "3,4", "--out", out, "--threads", "1", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, std::vector<JsonValue>> rows;
  for (const std::string& line : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "row");
    rows[row.at("kind").as_string()].push_back(row);
  }
  ASSERT_EQ(rows["run"].size(), 2u);
  EXPECT_EQ(rows["run"][0].at("samples").as_int(), 10);
  EXPECT_GE(rows["run"][0].at("top1").as_double(), 0.0);
  ASSERT_EQ(rows["head"].size(), 4u);  // two runs of one layer with two heads
  for (const JsonValue& head : rows["head"]) {
    const bool is_mhla = head.at("run").as_int() == 0;
    EXPECT_EQ(head.at("rank_bound").as_int(), is_mhla ? 124 : 196);
    EXPECT_LE(head.at("rank").at("mean").as_double(), head.at("rank_bound").as_double());
    EXPECT_EQ(head.at("method").as_string(), is_mhla ? "blocks" : "dense");
    EXPECT_GT(head.at("entropy").at("mean").as_double(), 0.0);
    EXPECT_LE(head.at("entropy").at("mean").as_double(), 1.0 + 1e-9);
  }
  ASSERT_EQ(rows["image"].size(), 2u);
  EXPECT_EQ(rows["image"][0].at("pixels").size(), 784u);
  ASSERT_EQ(rows["map"].size(), 4u);
  for (const JsonValue& map : rows["map"]) {
    double sum = 0.0;
    for (const JsonValue& weight : map.at("weights").items()) sum += weight.as_double();
    EXPECT_NEAR(sum, 1.0, 1e-3);
  }
  ASSERT_EQ(rows["mix"].size(), 1u);
  EXPECT_EQ(rows["mix"][0].at("learned").size(), 256u);
  EXPECT_NE(rows["mix"][0].at("learned"), rows["mix"][0].at("initial"));
  std::int64_t by_blocks = 0;
  for (const JsonValue& growth : rows["growth"]) {
    EXPECT_LE(growth.at("rank").at("mean").as_double(), growth.at("rank_bound").as_double());
    by_blocks += growth.at("by").as_string() == "M" ? 1 : 0;
  }
  EXPECT_GE(by_blocks, 3);
  std::size_t all = 0;
  for (const auto& [kind, list] : rows) all += list.size();
  EXPECT_EQ(read_json(out + "/analysis.json").size(), all);

  const std::string page = text_of(out + "/analysis.html");
  for (const char* loader : {"http", "src=", "<script", "<link", "@import"})
    EXPECT_EQ(count(page, loader), 0) << loader;
  EXPECT_EQ(count(page, "data:image/png;base64,"), 4);
  for (const char* part :
       {"Rank and entropy", "Where a token looks", "Mixing matrices", "as N and M grow", "How it was computed",
        ">layer (1 is the first)<", ">share of log N<", ">token row<", ">weight<", ">key block<", ">tokens N<"})
    EXPECT_TRUE(has(page, part)) << part;
}

TEST_F(CliAnalyze, RunsOfOneAttentionAreToldApart) {
  const std::string learned = train("a", "mhla"), frozen = train("b", "mhla", {"--set", "learn_mix=false"}),
                    uniform = train("c", "mhla", {"--set", "mix_init=uniform"});
  const ProgramRun run = run_program({"analyze", "--run", learned, frozen, uniform, "--samples", "2", "--maps", "0"});
  ASSERT_EQ(run.code, 0) << run.err;
  for (const char* name : {"MHLA linear M=16 ", "MHLA linear M=16 frozen", "MHLA uniform M=16"})
    EXPECT_TRUE(has(run.out, name)) << name << " in " << run.out;
  EXPECT_TRUE(fs::exists(learned + "/analysis/analysis.html"));
}

TEST_F(CliAnalyze, ALineThatIsBeingWrittenIsNoLine) {
  const std::string run = train("run", "mhla");
  std::ofstream(run + "/log.jsonl", std::ios::app) << "{\"kind\": \"st";
  const ProgramRun seen = run_program({"analyze", "--run", run, "--samples", "2", "--maps", "0", "--json"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  EXPECT_GE(parse_json(lines_of(seen.out).at(0), "row").at("top1").as_double(), 0.0);
}

TEST_F(CliAnalyze, AScanHasNoMatrix) {
  const ProgramRun run = run_program({"analyze", "--run", train("gla", "gla"), "--samples", "2"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.err, "gla has no attention matrix to look at")) << run.err;
}

TEST_F(CliAnalyze, RunsAreComparedOnTheSameImages) {
  const std::string first = train("first", "mhla", {"--test-images", "20", "--seed", "0"}),
                    second = train("second", "mhla", {"--test-images", "20", "--seed", "1"});
  const ProgramRun run = run_program({"analyze", "--run", first, second, "--samples", "4", "--threads", "1"});
  EXPECT_EQ(run.code, 0) << run.err;
  JsonValue options = read_json(second + "/train.json");  // as runs were tested before
  write_file(second + "/train.json", write_json(options.set("test_seed", 1)));
  expect_refused({"analyze", "--run", first, second, "--samples", "4"},
                 {"second was tested on other images than ", "first: ", "t10k-images-idx3-ubyte, item "});
}

TEST_F(CliAnalyze, DamagedImagesAreNamedAndCounted) {
  const std::string images = folder.path("images");
  for (const char* name : {"cat", "dog"}) {
    fs::create_directories(images + "/" + name);
    for (int i = 0; i < 10; ++i)
      fs::copy_file(MHLA_SOURCE_DIR "/mhla/io/codecs/fuzz_corpus/image/colour.png",
                    images + "/" + name + "/" + std::to_string(i) + ".png");
  }
  const std::string run = folder.path("run");
  const ProgramRun trained =
      run_program({"train", "classify",   "--model", "vit_demo",      "--data", "folder:" + images, "--out",
                   run,     "--batch",    "4",       "--threads",     "1",      "--max-steps",      "1",
                   "--set", "dims=[16]",  "--set",   "heads=[2]",     "--set",  "depths=[1]",       "--augment",
                   "none",  "--hold-out", "0.5",     "--max-damaged", "1"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string junk = folder.path("junk");
  fs::copy(images, junk, fs::copy_options::recursive);
  write_file(junk + "/cat/3.png", std::string("no image"));
  const std::vector<std::string> words{"analyze", "--run", run, "--data", "folder:" + junk, "--samples", "20"};
  const ProgramRun seen = run_program(words);
  EXPECT_EQ(seen.code, 0) << seen.err;
  EXPECT_EQ(count(seen.err, junk + "/cat/3.png"), 1) << seen.err;
  write_file(junk + "/dog/3.png", std::string("no image"));
  expect_refused(words, {"2 damaged images in ", "more than the 1 that may be left out"});
}

TEST_F(CliAnalyze, AFullDiskIsExitCode1AndLeavesNothing) {
  const std::string run = train("run", "mhla");
  for (const char* out : {"new/analysis", ""}) {
    std::vector<std::string> words{"analyze", "--run", run, "--samples", "2", "--threads", "1"};
    if (*out != 0) words.insert(words.end(), {"--out", folder.path(out)});
    const ProgramRun seen = [&] {
      const FullDisk disk(4096);
      return run_program(words);
    }();
    EXPECT_EQ(seen.code, 1) << seen.err;
    EXPECT_TRUE(has(seen.err, "analysis.json: could not be written: File too large")) << seen.err;
    EXPECT_FALSE(fs::exists(folder.path("new")) || fs::exists(run + "/analysis"));
  }
}

TEST_F(CliAnalyze, MistakesAreNamed) {
  const std::string run = train("run", "mhla");
  expect_refused({"analyze", "--run", folder.path("nothing")}, {"nothing has no train.json"});
  expect_refused({"analyze", "--run", run, "--queries", "3;4"}, {"--queries has '3;4', expected ROW,COLUMN"});
  expect_refused({"analyze", "--run", run, "--queries", "3,14"}, {"--queries has 3,14", "column of 0 to 13"});
  expect_refused({"analyze", "--run", run, "--layer", "1"}, {"--layer is 1, expected -1 to 0"});
  expect_refused({"analyze", "--run", run, "--out", data() + "/train-images-idx3-ubyte"},
                 {"/train-images-idx3-ubyte: could not be written: Not a directory"});
  const std::string other = folder.path("other");
  fs::create_directory(other);
  write_idx(other, "train", 80);
  write_idx(other, "t10k", 40);
  const std::string second = folder.path("second");
  fs::copy(run, second, fs::copy_options::recursive);
  JsonValue options = read_json(second + "/train.json");
  write_file(second + "/train.json",
             write_json(options.set("data", "mnist:" + other).set("origin", JsonValue::object())));
  expect_refused({"analyze", "--run", run, second, "--samples", "2"}, {"second was tested on other images than "});
  fs::resize_file(run + "/model.safetensors", 100);
  expect_refused({"analyze", "--run", run}, {"model.safetensors"});
}

TEST_F(CliAnalyze, DemoEndsWithATableAndAReport) {
  const std::string out = folder.path("demo");
  std::vector<std::string> words{"demo",
                                 "--data",
                                 "fashion-mnist:" + data(),
                                 "--train-images",
                                 "80",
                                 "--epochs",
                                 "1",
                                 "--samples",
                                 "2",
                                 "--threads",
                                 "1",
                                 "--no-speed",
                                 "--out",
                                 out};
  SmallDit small;  // instead of the model that comes with mhla
  small.classes = 10;
  write_dit_folder(folder.path("share/sample/dit_d32_fashion"), small);
  setenv("MHLA_SHARE", folder.path("share").c_str(), 1);
  for (const int time : {1, 2}) {  // the second takes the place of the first
    if (time == 2) words.insert(words.end(), {"--test-images", "20"});
    const ProgramRun run = run_program(words);
    ASSERT_EQ(run.code, 0) << time << run.err;
    for (const char* part : {"MHLA ", "linear ", "softmax ", "entropy", "parameters", "report.html",
                             "images/sheet.png: dit_d32 with softmax attention, dpm++ in 20 steps, guidance 2"})
      EXPECT_TRUE(has(run.out, part)) << part << " in " << run.out;
  }
  unsetenv("MHLA_SHARE");
  EXPECT_EQ(read_image(out + "/images/sheet.png").width, 10 * 10 + 2);
  EXPECT_TRUE(has(text_of(out + "/report.html"), "Generated images"));
  EXPECT_TRUE(has(text_of(out + "/report.html"), "src=\"data:image/png;base64,iVBOR"));
  EXPECT_TRUE(has(text_of(out + "/report.html"), "Three attentions, trained alike"));
  EXPECT_GT(read_json(out + "/report.json").size(), 10u);
  JsonValue options = read_json(out + "/linear/train.json");  // a run of the user's own
  EXPECT_EQ(options.at("test_images").as_int(), 20);
  write_file(out + "/linear/train.json", write_json(options.set("ema", 0.9)));
  expect_refused(words, {"linear is in the way"});
  EXPECT_TRUE(fs::exists(out + "/linear/model.safetensors"));
  fs::remove(out + "/linear/train.json");
  expect_refused(words, {"linear is in the way"});
}

TEST_F(CliAnalyze, ThePageLoadsInChromium) {
  std::string why;
  const std::string browser = chromium_in(folder.path(), why);
  if (browser.empty()) GTEST_SKIP() << why;
  const std::string out = folder.path("out"), log = folder.path("log"), shot = folder.path("page.png");
  ASSERT_EQ(run_program({"analyze", "--run", train("run", "mhla"), "--samples", "2", "--out", out}).code, 0);
  const std::string page = " file://" + out + "/analysis.html";
  ASSERT_EQ(
      std::system((browser + " --window-size=420,900 --screenshot=" + shot + page + " >" + log + " 2>&1").c_str()), 0)
      << text_of(log);
  EXPECT_FALSE(has(text_of(log), "CONSOLE")) << text_of(log);
  EXPECT_GT(fs::file_size(shot), 10000u);
  ASSERT_EQ(std::system((browser + " --dump-dom" + page + " >" + log + " 2>/dev/null").c_str()), 0);
  const std::string dom = text_of(log);
  EXPECT_EQ(count(dom, "<svg "), count(text_of(out + "/analysis.html"), "<svg "));
}

}  // namespace
}  // namespace mhla
