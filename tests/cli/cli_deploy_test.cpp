// What happens to a model after its training: converted copies that score as the run did, mhla predict on a user's own
// images, mhla export.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/onnx_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliDeploy : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    data = folder.path("data");
    fs::create_directory(data);
    write_idx(data, "train", 80), write_idx(data, "t10k", 40);
  }
  // A run of `mhla train classify`, normalised as nothing does by default.
  std::string train(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train",         "classify", "--model",         "vit_demo", "--data",
                                 "mnist:" + data, "--out",    folder.path(name), "--batch",  "8",
                                 "--threads",     "1",        "--augment",       "none",     "--set",
                                 "dims=[16]",     "--set",    "heads=[2]",       "--set",    "depths=[1]",
                                 "--lr",          "0.01",     "--warmup-steps",  "0",        "--normalize",
                                 "half"};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramRun run = run_program(all);
    EXPECT_EQ(run.code, 0) << run.err;
    return folder.path(name);
  }
  static JsonValue rows_of(const std::vector<std::string>& arguments) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    JsonValue rows = JsonValue::array();
    for (const std::string& line : lines_of(run.out)) rows.push(parse_json(line, "row"));
    return rows;
  }
  [[nodiscard]] JsonValue score(const std::string& run, const std::string& weights = "model") const {
    const JsonValue rows = rows_of({"eval", "classify", "--run", run, "--data", "mnist:" + data, "--json", "--threads",
                                    "1", "--batch", "8", "--weights", weights});  // sums of one order
    return JsonValue()
        .set("loss", rows.at(std::size_t{0}).at("loss"))
        .set("top1", rows.at(std::size_t{0}).at("top1"))
        .set("confusion", rows.at(std::size_t{0}).at("confusion"));
  }
  // The test images as PNG files; returns the folder.
  [[nodiscard]] std::string pngs(const std::string& name, std::size_t count = 40) const {
    const std::vector<std::byte> bytes = read_file(data + "/t10k-images-idx3-ubyte");
    for (std::size_t i = 0; i < count; ++i) {
      Image image;
      image.resize(28, 28, 1);
      std::memcpy(image.pixels.data(), bytes.data() + 16 + i * 784, 784);
      char file[64];
      std::snprintf(file, sizeof file, "%s/%02zu.png", i % 2 == 0 ? "a/b" : "c", i);
      fs::create_directories(fs::path(folder.path(name) + "/" + file).parent_path());
      write_file(folder.path(name) + "/" + file, encode_png(image));
    }
    return folder.path(name);
  }
  TemporaryFolder folder;
  std::string data;
};

TEST_F(CliDeploy, AConvertedModelScoresAsTheRun) {
  const std::string run = train("run", {"--max-steps", "6", "--ema", "0.9"});
  const JsonValue want = score(run);
  const JsonValue kept = read_json(run + "/preprocess.json");
  EXPECT_EQ(kept.at("mean"), JsonValue::array({0.5}));
  EXPECT_EQ(kept.at("fit").as_string(), "pad");

  const auto convert = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"convert"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramRun done = run_program(arguments);
    EXPECT_EQ(done.code, 0) << done.err;
  };
  const std::string copy = folder.path("copy"), file = folder.path("published.safetensors"), back = folder.path("back");
  convert({run, copy});
  EXPECT_EQ(score(copy), want);
  convert({copy, folder.path("again"), "--to", "ours"});
  EXPECT_EQ(score(folder.path("again")), want);
  // Published names: the file has no folder, so it keeps them in its header.
  convert({run, file, "--to", "published"});
  fs::copy_file(run + "/config.json", folder.path("my.json"));
  convert({file, back, "--config", folder.path("my.json")});
  EXPECT_EQ(score(back), want);
  EXPECT_EQ(read_json(back + "/classes.json"), read_json(run + "/classes.json"));
  // A checkpoint says what its run says.
  const std::string checkpoint = fs::directory_iterator(run + "/checkpoints")->path().string();
  convert({checkpoint, folder.path("step")});
  EXPECT_EQ(read_json(folder.path("step/preprocess.json")), kept);
  EXPECT_EQ(read_json(folder.path("step/classes.json")), read_json(run + "/classes.json"));
}

TEST_F(CliDeploy, RunsMadeBeforeThereWasAFileStillOpen) {
  const std::string run = train("run", {"--max-steps", "4"}), copy = folder.path("copy");
  const JsonValue want = score(run);
  const std::string images = pngs("png", 4);
  const auto said = [&](const std::string& from) {
    return rows_of({"predict", "--run", from, images, "--json", "--threads", "1"});
  };
  const JsonValue answers = said(run), kept = read_json(run + "/preprocess.json");
  fs::remove(run + "/preprocess.json");
  EXPECT_EQ(score(run), want);
  EXPECT_EQ(said(run), answers);
  ASSERT_EQ(run_program({"convert", run, copy}).code, 0);
  EXPECT_EQ(read_json(copy + "/preprocess.json"), kept);
  EXPECT_EQ(score(copy), want);
  fs::remove(copy + "/preprocess.json");  // and a model that says nothing is normalised by the data
  EXPECT_FALSE(score(copy) == want);
  write_file(copy + "/preprocess.json", std::string(R"({"fit": "stretch"})"));
  expect_refused({"eval", "classify", "--run", copy, "--data", "mnist:" + data},
                 {copy + "/preprocess.json: fit is 'stretch', expected one of pad, resize, center_crop"});
  write_file(copy + "/preprocess.json", std::string(R"({"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]})"));
  expect_refused({"predict", "--run", copy, images}, {"mean has 3 values, expected 1 or one for each of 1 channels"});
}

TEST_F(CliDeploy, AConvertedLanguageModelIsReadAsTheRun) {
  const std::string text = folder.path("text.txt"), run = folder.path("run"), copy = folder.path("copy");
  std::string words;
  for (int i = 0; i < 400; ++i) words += i % 3 == 0 ? "to be or\n\n" : "not to be ";
  write_file(text, words);
  const auto train_lm = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all{"train",       "lm",       "--model",        "mhla_10m", "--out", out,
                                 "--batch",     "4",        "--threads",      "1",        "--set", "dim=32",
                                 "--set",       "layers=1", "--set",          "mlp=64",   "--set", "chunk=16",
                                 "--max-steps", "3",        "--warmup-steps", "0"};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramRun done = run_program(all);
    EXPECT_EQ(done.code, 0) << done.err;
  };
  // A shorter context than the model has rows for, and windows over all documents.
  train_lm(run, {"--data", text, "--tokenizer", "bytes", "--context", "32", "--packing", "concatenate", "--valid",
                 "0.2", "--set", "context=128"});
  const auto eval = [&](const std::string& from) {
    // Batches of the run: on some CPUs products of oneDNN round by their number of rows.
    const JsonValue row =
        rows_of({"eval", "lm", "--run", from, "--data", run + "/tokens", "--batch", "4", "--json", "--threads", "1"})
            .at(std::size_t{0});
    EXPECT_EQ(row.at("length").as_int(), 32);
    EXPECT_EQ(row.at("packing").as_string(), "concatenate");
    return row.at("loss").as_double();
  };
  ASSERT_EQ(run_program({"convert", run, copy}).code, 0);
  EXPECT_DOUBLE_EQ(eval(copy), eval(run));
  // Through published names the tokenizer is beside the config.json that describes the file.
  ASSERT_EQ(run_program({"convert", run, folder.path("p.safetensors"), "--to", "published"}).code, 0);
  ASSERT_EQ(
      run_program({"convert", folder.path("p.safetensors"), folder.path("back"), "--config", run + "/config.json"})
          .code,
      0);
  EXPECT_DOUBLE_EQ(eval(folder.path("back")), eval(run));
  // Ids that are no text.
  const std::string recall = folder.path("recall"), recalled = folder.path("recalled");
  train_lm(recall,
           {"--data", "mqar", "--context", "32", "--mqar-pairs", "2", "--mqar-vocab", "16", "--mqar-items", "64"});
  ASSERT_EQ(run_program({"convert", recall, recalled}).code, 0);
  const auto asked = [&](const std::string& from) {
    return run_program({"eval", "lm", "--run", from, "--task", "mqar", "--items", "20", "--threads", "1", "--json"});
  };
  const ProgramRun want = asked(recall), got = asked(recalled);
  EXPECT_EQ(want.code, 0) << want.err;
  EXPECT_EQ(got.code, 0) << got.err;
  const auto figures = [](const ProgramRun& one) { return parse_json(lines_of(one.out).at(0), "row").at("figures"); };
  EXPECT_EQ(figures(got), figures(want));
}

TEST_F(CliDeploy, PredictsWhatEvaluationCounts) {
  const std::string run = train("run", {"--epochs", "4", "--ema", "0.5"}), images = pngs("png");
  for (const char* weights : {"model", "ema"}) {
    const JsonValue confusion = score(run, weights).at("confusion");
    // One by one, and all at once in batches of another size.
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> seen;
    const JsonValue rows =
        rows_of({"predict", "--run", run, images, "--json", "--threads", "2", "--batch", "7", "--weights", weights});
    ASSERT_EQ(rows.size(), 40u);
    std::string last;
    for (const JsonValue& row : rows.items()) {
      const std::string& path = row.at("image").as_string();
      EXPECT_LT(last, path);  // sorted
      last = path;
      const std::int64_t number = std::stoll(path.substr(path.size() - 6, 2));
      ++seen[{number % 10, row.at("top").at(std::size_t{0}).at("class").as_int()}];
      ASSERT_EQ(row.at("top").size(), 5u);
      double sum = 0;
      for (const JsonValue& one : row.at("top").items()) sum += one.at("probability").as_double();
      EXPECT_LE(sum, 1.0001);
    }
    for (std::size_t i = 0; i < 10; ++i)
      for (std::size_t j = 0; j < 10; ++j)
        EXPECT_EQ((seen[{i, j}]), confusion.at(i).at(j).as_int()) << weights << ", class " << i << " seen as " << j;
    const JsonValue single = rows_of({"predict", "--run", run, last, "--json", "--threads", "1", "--weights", weights});
    const JsonValue &alone = single.at(std::size_t{0}), &among = rows.at(std::size_t{39});
    EXPECT_EQ(alone.at("image").as_string(), among.at("image").as_string());
    for (std::size_t i = 0; i < 5; ++i) {
      const JsonValue &one = alone.at("top").at(i), &same = among.at("top").at(i);
      EXPECT_EQ(one.at("class").as_int(), same.at("class").as_int());
      // On some CPUs products of oneDNN round by their number of rows.
      EXPECT_NEAR(one.at("probability").as_double(), same.at("probability").as_double(), 1e-5);
    }
  }
}

TEST_F(CliDeploy, PredictReadsWhatItCanAndNamesTheRest) {
  const std::string run = train("run", {"--max-steps", "2"}), images = pngs("png", 2), a = images + "/a/b/00.png";
  const std::string bad = folder.path("bad.png"), none = folder.path("none.jpg"), empty = folder.path("empty");
  write_file(bad, std::string("no image"));
  fs::create_directory(empty);
  const ProgramRun mixed = run_program({"predict", "--run", run, a, bad, none, empty, images + "/c", "--top", "2"});
  EXPECT_EQ(mixed.code, 2);
  ASSERT_EQ(lines_of(mixed.out).size(), 2u) << mixed.out;
  EXPECT_TRUE(has(mixed.out, a + ": ")) << mixed.out;
  EXPECT_TRUE(has(mixed.out, images + "/c/01.png: ")) << mixed.out;
  const std::vector<std::string> told = lines_of(mixed.err);
  ASSERT_EQ(told.size(), 4u) << mixed.err;
  for (const std::string& part : {bad + ": begins with", none + ": ", empty + ": has no image, expected .jpg, .jpeg",
                                  std::string("predict: 3 inputs could not be read")})
    EXPECT_TRUE(has(mixed.err, part)) << part << " in " << mixed.err;
  const ProgramRun json = run_program({"predict", "--run", run, bad, a, "--json"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(parse_json(lines_of(json.out).at(0), "row").at("kind").as_string(), "failed");
  EXPECT_EQ(parse_json(lines_of(json.out).at(1), "row").at("image").as_string(), a);
  // Nothing to do.
  expect_refused({"predict", "--run", run, empty}, {empty + ": has no image, expected .jpg, .jpeg"});
  expect_refused({"predict", "--run", run}, {"images is required"});
  expect_refused({"predict", "--run", empty, a}, {empty + " has no train.json"});
  expect_refused({"predict", "--run", run, "-", "-"}, {"- is given more than once"});
  // stdin, and images of any size and colour.
  Image colour;
  colour.resize(50, 31, 3);
  write_file(folder.path("colour.jpg"), encode_jpeg(colour));
  const ProgramRun photo = run_program({"predict", "--run", run, folder.path("colour.jpg"), "--top", "99"});
  EXPECT_EQ(photo.code, 0) << photo.err;
  const std::string line = std::string(MHLA_PROGRAM) + " predict --run " + run + " --top 1 - <" + a + " >" +
                           folder.path("out") + " && " + MHLA_PROGRAM + " predict --run " + run + " --top 1 " + a +
                           " >" + folder.path("named");
  ASSERT_EQ(std::system(line.c_str()), 0);
  const auto text = [&](const char* name) {
    const std::vector<std::byte> bytes = read_file(folder.path(name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text("out"), "-" + text("named").substr(a.size()));
  EXPECT_NE(std::system((std::string(MHLA_PROGRAM) + " predict --run " + run + " - </dev/null 2>/dev/null").c_str()),
            0);
  write_file(run + "/config.json", std::string("\"x\""));
  const ProgramRun odd = run_program({"predict", "--run", run, a});
  EXPECT_EQ(odd.code, 2);
  EXPECT_TRUE(has(odd.err, run + "/config.json: JSON value is a string, expected an object")) << odd.err;
}

TEST_F(CliDeploy, PredictTakesUnfinishedRunsAndConvertedFolders) {
  const std::string run = train("run", {"--max-steps", "4", "--checkpoint-every", "2"}), images = pngs("png", 3);
  const auto said = [&](const std::string& from) {
    return rows_of({"predict", "--run", from, images, "--json", "--threads", "1"});
  };
  const JsonValue want = said(run);
  ASSERT_EQ(run_program({"convert", run, folder.path("copy")}).code, 0);
  EXPECT_EQ(said(folder.path("copy")), want);
  fs::remove(run + "/model.safetensors");  // as a run that was stopped
  const ProgramRun stopped = run_program({"predict", "--run", run, images, "--json", "--threads", "1"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_TRUE(has(stopped.err, "the run is not at its end")) << stopped.err;
  EXPECT_TRUE(has(stopped.out, write_json(want.at(std::size_t{0})))) << stopped.out;
  // Names of classes, or numbers.
  const std::string copy = folder.path("copy");
  write_file(copy + "/classes.json", std::string(R"(["a","b","c","d","e","f","g","h","i","j"])"));
  EXPECT_EQ(said(copy).at(std::size_t{0}).at("top").at(std::size_t{0}).at("name").as_string().size(), 1u);
  write_file(copy + "/classes.json", std::string(R"(["a"])"));
  expect_refused({"predict", "--run", copy, images}, {"has 1 names, expected the 10 classes of the model"});
}

TEST_F(CliDeploy, ExportsToOnnx) {
  const std::string run = train("run", {"--max-steps", "4"}), out = folder.path("model.onnx");
  const JsonValue row = rows_of({"export", "--run", run, "--out", out, "--json"}).at(std::size_t{0});
  EXPECT_EQ(row.at("input").as_string(), "images");
  const OnnxFile file = read_onnx(out);
  EXPECT_EQ(file.inputs.at("images"), (std::vector<std::string>{"batch", "1", "28", "28"}));
  EXPECT_EQ(parse_json(file.metadata.at("mhla.preprocess"), "preprocess"), read_json(run + "/preprocess.json"));
  EXPECT_EQ(parse_json(file.metadata.at("mhla.classes"), "classes"), read_json(run + "/classes.json"));
  EXPECT_EQ(file.tensors.count("blocks.0.attn.mix"), 1u);
  ASSERT_EQ(run_program({"export", "--to", "onnx", "--run", run, "--out", out, "--with-normalize"}).code, 0);
  EXPECT_EQ(read_onnx(out).inputs.count("pixels"), 1u);
  expect_refused({"export", "--run", run, "--out", run + "/model.safetensors"}, {"expected a file called *.onnx"});
  expect_refused({"export", "--run", run, "--out", folder.path("none/model.onnx")},
                 {"none/model.onnx: could not be written: No such file or directory"});
  expect_refused({"export", "--to", "torchscript", "--run", run, "--out", out}, {"--to"});
  {
    const FullDisk disk(4096);
    const ProgramRun full = run_program({"export", "--run", run, "--out", folder.path("full.onnx")});
    EXPECT_EQ(full.code, 1) << full.err;
    EXPECT_TRUE(has(full.err, "could not be written: File too large")) << full.err;
  }
  EXPECT_FALSE(fs::exists(folder.path("full.onnx")));
  const std::string other = train("gla", {"--max-steps", "2", "--attention", "gla"});
  expect_refused({"export", "--run", other, "--out", out}, {"attention of the model is gla, expected mhla, linear"});
}

// By onnxruntime, where MHLA_ONNX_PYTHON, or else python3, has it.
TEST_F(CliDeploy, OnnxRuntimeAgrees) {
  const char* given = std::getenv("MHLA_ONNX_PYTHON");
  const std::string python = given != nullptr ? given : "python3";
  if (std::system((python + " -c 'import onnx, onnxruntime, numpy, PIL' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no onnx, onnxruntime, numpy and Pillow (MHLA_ONNX_PYTHON names another)";
  const std::string images = pngs("png", 4), out = folder.path("model.onnx");
  for (const char* attention : {"mhla", "linear", "softmax"}) {
    const std::string run = train(attention, {"--epochs", "2", "--attention", attention, "--set", "lepe=3"});
    for (const bool normalize : {false, true}) {
      std::vector<std::string> words{"export", "--run", run, "--out", out};
      if (normalize) words.emplace_back("--with-normalize");
      ASSERT_EQ(run_program(words).code, 0);
      const std::string check = python + " " MHLA_SOURCE_DIR "/scripts/onnx_check.py --mhla " MHLA_PROGRAM " --run " +
                                run + " --model " + out + " " + images + "/a/b/00.png " + images + "/c/01.png";
      EXPECT_EQ(std::system(check.c_str()), 0) << attention;
    }
  }
}

}  // namespace
}  // namespace mhla
