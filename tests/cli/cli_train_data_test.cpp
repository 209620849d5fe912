// What a run of mhla train classify is trained and tested on: files that are missing, images that cannot be read, test
// images of a run and of other data, and a run that goes on or is repeated where its files are no more.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/class_folders.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliTrainData : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  [[nodiscard]] std::string idx(const std::string& name) const {
    fs::create_directory(folder.path(name));
    write_idx(folder.path(name), "train", 80);
    write_idx(folder.path(name), "t10k", 40);
    return folder.path(name);
  }
  // Folders of `count` images for each class; `junk` is what a file holds instead of an image.
  [[nodiscard]] std::string folders(const std::string& name, const std::vector<std::string>& classes, int count,
                                    const std::string& junk = "") const {
    write_class_folders(folder.path(name), classes, count, junk);
    return folder.path(name);
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& data, const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", "classify",  "--model", "vit_demo",  "--data", data,        "--out",
                                 out,     "--batch",   "8",       "--threads", "1",      "--augment", "none",
                                 "--set", "dims=[16]", "--set",   "heads=[2]", "--set",  "depths=[1]"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string train(const std::string& data, const std::string& name, const std::vector<std::string>& more = {}) const {
    const ProgramRun run = run_program(words(data, folder.path(name), more));
    EXPECT_EQ(run.code, 0) << run.err;
    return folder.path(name);
  }
  // The row of mhla eval classify.
  JsonValue eval(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"eval", "classify", "--run", run, "--json", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramRun done = run_program(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.code == 0 ? parse_json(lines_of(done.out).at(0), "score") : JsonValue().set("images", -1);
  }
  TemporaryFolder folder;
};

TEST_F(CliTrainData, AMissingTestFileIsAnError) {
  const std::string data = idx("data"), run = train("fashion-mnist:" + data, "run", {"--max-steps", "2"});
  fs::remove(data + "/t10k-images-idx3-ubyte");
  expect_refused(words("fashion-mnist:" + data, folder.path("none")), {data, "t10k-images-idx3-ubyte"});
  fs::remove(data + "/t10k-labels-idx1-ubyte");
  expect_refused(words("mnist:" + data, folder.path("none")), {data, "t10k-images-idx3-ubyte"});
  expect_refused(words(data, folder.path("none")), {data, "t10k-images-idx3-ubyte"});
  expect_refused({"eval", "classify", "--run", run}, {data, "t10k-images-idx3-ubyte"});
  const std::string cifar = folder.path("cifar");
  fs::create_directory(cifar);
  for (const char* digit : {"1", "2", "3", "4", "5"})
    write_file(cifar + "/data_batch_" + digit + ".bin", std::string(20 * 3073, '\1'));
  expect_refused(words("cifar10:" + cifar, folder.path("none")), {cifar + "/test_batch.bin: is missing"});
  EXPECT_FALSE(fs::exists(folder.path("none")));
}

TEST_F(CliTrainData, HeldOutImagesAreSaidToBe) {
  const std::string data = folders("pets", {"cat", "dog"}, 20), out = folder.path("run");
  const ProgramRun run = run_program(words("folder:" + data, out, {"--max-steps", "2"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "2 steps on cpu, tested on 4 images held out of the training set")) << run.out;
  const ProgramRun text = run_program({"eval", "classify", "--run", out, "--threads", "1"});
  EXPECT_TRUE(has(text.out, "4 images held out of the training set")) << text.out;
  EXPECT_TRUE(eval(out).at("held_out").as_bool());
  const std::string whole = idx("data"), plain = train("mnist:" + whole, "plain", {"--max-steps", "2"});
  EXPECT_FALSE(has(run_program({"eval", "classify", "--run", plain}).out, "held out"));
}

TEST_F(CliTrainData, ImagesOfWhichNoneCanBeReadEndTheRun) {
  const std::string data = folders("junk", {"cat", "dog"}, 20, "no image");
  const ProgramRun run = run_program(words("folder:" + data, folder.path("run"), {"--max-steps", "2"}));
  EXPECT_EQ(run.code, 2);
  EXPECT_TRUE(has(run.err, "none of the 36 images of " + data + ", train, kept can be read: " + data + "/")) << run.err;
}

// Files that are no images, and images that are damaged: said at the start, and when they come up.
TEST_F(CliTrainData, WhatIsLeftOutIsSaid) {
  const std::string data = folders("pets", {"cat", "dog"}, 20);
  for (const char* name : {"cat/a.heic", "cat/b.heic", "dog/c.HEIC", "dog/notes.txt"})
    write_file(data + "/" + name, std::string("x"));
  write_file(data + "/cat/3.png", std::string("no image"));
  const std::string text = "left out 4 files: 3 .heic, 1 .txt; images end in .jpg, .jpeg, .png";
  const ProgramRun run = run_program(words("folder:" + data, folder.path("run"), {"--epochs", "1"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(lines_of(run.err).at(0), data + ", train, kept: " + text)) << run.err;
  EXPECT_TRUE(has(run.err, "left out: " + data + "/cat/3.png: begins with 6e 6f 20 69")) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 2u) << run.err;  // once each: the test images are held out of the same files
  const ProgramRun eval = run_program({"eval", "classify", "--run", folder.path("run"), "--data", "folder:" + data});
  EXPECT_TRUE(has(eval.err, text)) << eval.err;
  const ProgramRun info = run_program({"data", "info", "--data", data, "--json"});
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(write_json(parse_json(lines_of(info.out).at(0), "row").at("left_out")), R"({".heic": 3, ".txt": 1})");
  EXPECT_TRUE(has(info.err, "  left out   4 files: 3 .heic, 1 .txt; images end in ")) << info.err;
}

TEST_F(CliTrainData, OtherDataNeedsItsTestFilesAlone) {
  const std::string data = idx("data"), run = train("fashion-mnist:" + data, "run", {"--max-steps", "2"});
  const std::string half = folder.path("half");
  fs::create_directory(half);
  write_idx(half, "t10k", 40);
  EXPECT_DOUBLE_EQ(eval(run, {"--data", "fashion-mnist:" + half}).at("loss").as_double(),
                   eval(run).at("loss").as_double());
  write_file(data + "/train-images-idx3-ubyte", std::string("damaged"));  // of no use here, so not looked at
  EXPECT_EQ(eval(run).at("images").as_int(), 40);
}

TEST_F(CliTrainData, AFolderIsTheSameHoweverItIsSpelled) {
  const std::string data = folders("pets", {"cat", "dog"}, 20),
                    run = train("folder:" + data, "run", {"--max-steps", "2"});
  fs::create_directory_symlink(data, folder.path("link"));
  for (const std::string& spelled : {"folder:" + data + "/", data, "folder:" + folder.path("run/../pets"),
                                     "folder:" + folder.path("link"), "folder:" + fs::relative(data).string()})
    EXPECT_EQ(eval(run, {"--data", spelled}).at("images").as_int(), 4) << spelled;
  const std::string others = folders("others", {"cat", "dog"}, 5);
  EXPECT_EQ(eval(run, {"--data", "folder:" + others}).at("images").as_int(), 10);  // all: none was trained on
}

TEST_F(CliTrainData, OtherClassNamesAreOtherData) {
  const std::string data = folders("pets", {"cat", "dog"}, 20),
                    run = train("folder:" + data, "run", {"--max-steps", "2"});
  const std::string others = folders("others", {"cat", "horse"}, 5);
  expect_refused({"eval", "classify", "--run", run, "--data", "folder:" + others},
                 {others, "class 1 is 'horse', expected 'dog'", "classes.json"});
  expect_refused({"train", "classify", "--resume", "--out", run, "--data", "folder:" + others, "--max-steps", "4"},
                 {"class 1 is 'horse', expected 'dog'"});
  ASSERT_EQ(run_program({"convert", run, folder.path("copy"), "--to", "ours"}).code, 0);
  expect_refused({"eval", "classify", "--run", folder.path("copy"), "--data", "folder:" + others},
                 {"class 1 is 'horse', expected 'dog'"});
  fs::remove(run + "/classes.json");  // a run made before there were any
  EXPECT_EQ(eval(run, {"--data", "folder:" + others}).at("images").as_int(), 10);
}

TEST_F(CliTrainData, TestImagesOfARunMadeBeforeStayThose) {
  const std::string data = folders("pets", {"cat", "dog"}, 20);
  const auto log_of = [](const std::string& run) {
    const std::vector<std::byte> bytes = read_file(run + "/log.jsonl");
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const std::string run = train("folder:" + data, "run", {"--max-steps", "2", "--seed", "5", "--test-seed", "5"});
  JsonValue options = read_json(run + "/train.json");
  EXPECT_EQ(options.at("test_seed").as_int(), 5);
  const double before = eval(run).at("loss").as_double();
  write_file(run + "/train.json", write_json(options.set("test_seed", JsonValue())));
  EXPECT_DOUBLE_EQ(eval(run).at("loss").as_double(), before);
  ASSERT_EQ(run_program({"train", "classify", "--resume", "--out", run, "--max-steps", "4"}).code, 0) << log_of(run);
  EXPECT_EQ(read_json(run + "/train.json").at("test_seed").as_int(), 5);
}

TEST_F(CliTrainData, AModelOfAFileGoesWithItsRun) {
  const std::string data = "fashion-mnist:" + idx("data"), file = folder.path("my.json");
  const auto write_model = [&](const char* heads) {
    write_file(file,
               std::string(R"({"model": "vit_demo", "attention": "linear", "dims": [16], "depths": [1], "heads": )") +
                   heads + "}");
  };
  write_model("[2]");
  const std::string out = folder.path("run");
  const std::vector<std::string> begin{"train",   "classify", "--model",   file, "--data",      data, "--out", out,
                                       "--batch", "8",        "--threads", "1",  "--max-steps", "2",  "--set", "cpe=3"};
  ASSERT_EQ(run_program(begin).code, 0);
  const JsonValue network = read_json(out + "/config.json");
  std::vector<std::string> again = begin;  // the same command takes the run up again
  again.emplace_back("--resume"), again.at(13) = "3";
  const ProgramRun same = run_program(again);
  EXPECT_EQ(same.code, 0) << same.err;
  write_model("[4]");
  again.at(13) = "4";
  expect_refused(again, {"is a checkpoint of another model"});
  fs::remove(file);
  const ProgramRun rest = run_program({"train", "classify", "--resume", "--out", out, "--max-steps", "4"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  const ProgramRun elsewhere =
      run_program({"train", "classify", "--config", out + "/train.json", "--out", folder.path("elsewhere")});
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  for (const std::string& run : {out, folder.path("elsewhere")}) EXPECT_EQ(read_json(run + "/config.json"), network);
  // A run made before: train.json names the file.
  JsonValue options = read_json(out + "/train.json");
  write_file(out + "/train.json",
             write_json(options.set("model", file).set("network", parse_json(R"({"cpe": 3})", "network"))));
  const ProgramRun older = run_program({"train", "classify", "--resume", "--out", out, "--max-steps", "5"});
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_EQ(read_json(out + "/config.json"), network);
}

TEST_F(CliTrainData, WhatAKilledRunLeftIsSwept) {
  const std::string data = "mnist:" + idx("data"), run = train(data, "run", {"--max-steps", "2"});
  const std::string dead = run + "/model.safetensors.part4194305-0";  // beyond the largest id of a process
  const std::string living = run + "/model.safetensors.part" + std::to_string(::getpid()) + "-3";
  for (const std::string& path : {dead, living, run + "/notes.part", run + "/notes.part4194305-0x", run + "/.part7-1"})
    write_file(path, std::string("half"));
  ASSERT_EQ(run_program({"train", "classify", "--resume", "--out", run, "--max-steps", "3"}).code, 0);
  EXPECT_FALSE(fs::exists(dead));
  for (const std::string& path : {living, run + "/notes.part", run + "/notes.part4194305-0x", run + "/.part7-1"})
    EXPECT_TRUE(fs::exists(path)) << path;
}

}  // namespace
}  // namespace mhla
