// mhla inspect and mhla convert, as a user runs them.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "mhla/testing/tensor.h"
#include "tests/cli/expect.h"

namespace mhla {
namespace {

const std::string kGolden = MHLA_SOURCE_DIR "/tests/golden/";

// The parameters of one golden case, under their published names.
void write_case(const std::string& file, const std::string& name, const std::string& path,
                const std::string& front = "") {
  const Safetensors golden = Safetensors::read(kGolden + file);
  const std::string prefix = name + "/param.";
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const std::string full(golden.entry(i).name);
    if (full.compare(0, prefix.size(), prefix) == 0)
      views.push_back({front + full.substr(prefix.size()), golden.view(i)});
  }
  ASSERT_FALSE(views.empty()) << name;
  write_safetensors(path, views);
}

std::map<std::string, std::string> contents(const std::string& path) {  // name to shape and bytes
  const Safetensors file = Safetensors::read(path);
  std::map<std::string, std::string> found;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const ConstView view = file.view(i);
    found[std::string(file.entry(i).name)] =
        shape_text(file.entry(i).shape) + std::string(static_cast<const char*>(view.data), file.entry(i).bytes);
  }
  return found;
}

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "LibTorch was not found when mhla was built";
  }
  ProgramRun expect_done(const std::vector<std::string>& arguments) {
    ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << run.out << run.err;
    return run;
  }
  // The recorded DeiT as a folder of ours.
  std::string deit_folder() {
    write_case("classification.safetensors", "deit_mhla_small", folder.path("deit.safetensors"));
    write_file(folder.path("deit.json"),
               R"({"model": "deit_tiny", "official": true, "image": [28, 28], "pad": [32, 32], "patch": 2, "dims": [48],
                   "depths": [2], "heads": [3], "classes": 10})");
    expect_done({"convert", folder.path("deit.safetensors"), folder.path("deit"), "--model", folder.path("deit.json")});
    return folder.path("deit");
  }
  TemporaryFolder folder;
};

TEST(Inspect, ListsWhatIsThere) {
  TemporaryFolder folder;
  Tensor x(DType::kF32, {2, 3});
  x.fill(0.5);
  x.set(1, -2.0);
  write_safetensors(folder.path("x.safetensors"), {{"layer.x", x.view()}}, {{"made", "here"}});
  const ProgramRun plain = run_program({"inspect", folder.path("x.safetensors")});
  EXPECT_EQ(plain.code, 0) << plain.err;
  for (const char* word : {"layer.x", "f32", "[2, 3]", "1 tensors, 6 numbers", "metadata made: here"})
    EXPECT_TRUE(has(plain.out, word)) << word << " in " << plain.out;
  const ProgramRun json = run_program({"inspect", folder.path("x.safetensors"), "--values", "--json"});
  const JsonValue row = parse_json(json.out, "row");
  EXPECT_EQ(row.at("numbers").as_int(), 6);
  const JsonValue& tensor = row.at("tensors").at(std::size_t{0});
  EXPECT_EQ(tensor.at("least").as_double(), -2.0);
  EXPECT_EQ(tensor.at("most").as_double(), 0.5);
  EXPECT_EQ(tensor.at("not_finite").as_int(), 0);
}

TEST(Inspect, SaysWhatIsWrong) {
  TemporaryFolder folder;
  EXPECT_EQ(run_program({"inspect", folder.path("nothing")}).code, 2);
  const ProgramRun empty = run_program({"inspect", folder.path()});
  EXPECT_EQ(empty.code, 2);
  EXPECT_TRUE(has(empty.err, "has no model.safetensors")) << empty.err;
  write_file(folder.path("short.safetensors"), std::string("abc"));
  EXPECT_EQ(run_program({"inspect", folder.path("short.safetensors")}).code, 2);
}

TEST_F(WeightsTest, LayersAreNamed) {
  write_case("lm_layer.safetensors", Safetensors::read(kGolden + "lm_layer.safetensors").metadata().begin()->first,
             folder.path("lm.safetensors"), "model.layers.0.attn.");
  const ProgramRun run = expect_done({"inspect", folder.path("lm.safetensors")});
  EXPECT_TRUE(has(run.out, "1 attention layers of family lm")) << run.out;
  const ProgramRun deit = expect_done({"inspect", deit_folder()});
  EXPECT_TRUE(has(deit.out, "2 attention layers of family mhla: blocks.0.attn. to blocks.1.attn.")) << deit.out;
  EXPECT_TRUE(has(deit.out, "attention      \"mhla\"")) << deit.out;
}

TEST_F(WeightsTest, AttentionLayersGoOutAndComeBack) {
  for (const char* file : {"classification", "dit_module", "lm_layer", "video_module"}) {
    SCOPED_TRACE(file);
    const std::string name = Safetensors::read(kGolden + file + ".safetensors").metadata().begin()->first;
    const std::string theirs = folder.path("theirs.safetensors"), ours = folder.path("ours.safetensors"),
                      back = folder.path("back.safetensors");
    write_case(std::string(file) + ".safetensors", name, theirs, "blocks.4.attn.");
    expect_done({"convert", theirs, ours});
    EXPECT_EQ(contents(ours).count("blocks.4.attn.mix"), 1u);
    expect_done({"convert", ours, back, "--to", "published"});
    EXPECT_EQ(contents(back), contents(theirs));
    EXPECT_EQ(Safetensors::read(back).metadata().count("mhla.family"), 0u);
  }
}

TEST_F(WeightsTest, ModelsGoOutAndComeBack) {
  const std::string ours = deit_folder();
  expect_done({"convert", ours, folder.path("back.safetensors"), "--to", "published"});
  EXPECT_EQ(contents(folder.path("back.safetensors")), contents(folder.path("deit.safetensors")));
  // Larger images, and blocks that do not divide the tokens.
  const ProgramRun run = expect_done({"convert", ours, folder.path("large"), "--blocks", "3x3", "--json"});
  EXPECT_EQ(parse_json(run.out, "row").at("model").as_string(), "deit_tiny");
  EXPECT_TRUE(has(contents(folder.path("large/model.safetensors")).at("blocks.0.attn.mix"), "[9, 9]"));
  expect_done({"convert", ours, folder.path("square"), "--blocks", "3"});
  EXPECT_EQ(contents(folder.path("square/model.safetensors")), contents(folder.path("large/model.safetensors")));
}

TEST_F(WeightsTest, AFullDiskIsExitCode1) {
  const std::string ours = deit_folder();
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"convert", ours, folder.path("x")},
        std::vector<std::string>{"convert", ours, folder.path("x.safetensors"), "--to", "published"}}) {
    const FullDisk disk(8192);  // less than the weights
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_TRUE(has(run.err, "could not be written: File too large")) << run.err;
    EXPECT_FALSE(std::filesystem::exists(folder.path("x")) || std::filesystem::exists(folder.path("x.safetensors")));
  }
  EXPECT_EQ(run_program({"convert", ours, folder.path("none/x.safetensors"), "--to", "published"}).code, 2);
  EXPECT_EQ(run_program({"convert", ours, "/dev/null/x"}).code, 2);
}

TEST_F(WeightsTest, MistakesAreNamed) {
  const std::string ours = deit_folder();
  const auto said = [&](const std::vector<std::string>& arguments, const char* words) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 2) << run.out << run.err;
    EXPECT_TRUE(has(run.err, words)) << run.err;
  };
  said({"convert", folder.path("none"), folder.path("x")}, "does not exist");
  said({"convert", ours, folder.path("x"), "--blocks", "3x3x3"}, "is not a Wan transformer, expected rows and columns");
  said({"convert", ours, folder.path("x"), "--blocks", "3x0"}, "--blocks is '3x0', expected numbers from 1 to");
  said({"convert", ours, folder.path("x"), "--attention", "gla"}, "gla");
  said({"convert", ours, folder.path("x"), "--family", "lm"}, "are for attention layers");
  said({"convert", folder.path("deit.safetensors"), folder.path("x"), "--model", "deit_tinny"},
       "model is 'deit_tinny', expected one of");
  said({"convert", folder.path("deit.safetensors"), folder.path("x"), "--model", "deit_tiny"}, "missing: ");
  EXPECT_FALSE(std::filesystem::exists(folder.path("x")));
  write_case("lm_layer.safetensors", Safetensors::read(kGolden + "lm_layer.safetensors").metadata().begin()->first,
             folder.path("lm.safetensors"));
  said({"convert", folder.path("lm.safetensors"), folder.path("y.safetensors"), "--to", "published"},
       "does not say which family");
  said({"convert", folder.path("lm.safetensors"), folder.path("y.safetensors"), "--family", "video"},
       "video: missing: ");
  EXPECT_FALSE(std::filesystem::exists(folder.path("y.safetensors")));
}

}  // namespace
}  // namespace mhla
