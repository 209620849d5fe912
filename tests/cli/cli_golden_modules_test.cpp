// mhla verify --golden on whole modules: every recorded file comes back, every spoiled tensor is found, and what cannot
// be judged says why. They run in the engine, which is there where LibTorch is.
#include <cmath>
#include <cstdlib>

#include "mhla/io/json.h"
#include "tests/cli/golden_fixture.h"

namespace mhla {
namespace {

const std::string kFolder = MHLA_SOURCE_DIR "/tests/golden";

struct Recorded {
  const char *file, *name;
};
constexpr Recorded kModules[] = {{"dit_module", "dit_gaussian_6x6_b3"},
                                 {"classification", "cls_exp_8x8_w2"},
                                 {"classification", "linear_attention"},
                                 {"classification", "deit_mhla_small"},
                                 {"video_module", "video_2"},
                                 {"lm_layer", "lm_layer_relu_gate1_T150"}};

class CliGoldenModules : public GoldenTest {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  // One case alone.
  static Golden recorded(const Recorded& which) {
    Golden golden = read_golden(kFolder + "/" + which.file + ".safetensors");
    std::erase_if(golden.tensors, [&](const auto& item) { return item.first.rfind(str(which.name) + "/", 0) != 0; });
    std::erase_if(golden.metadata, [&](const auto& item) { return item.first != which.name; });
    return golden;
  }
  static std::string str(const char* text) { return text; }
};

TEST_F(CliGoldenModules, EveryRecordedFileComesBackThroughEveryBackend) {
  const ProgramRun run = run_program({"verify", "--golden", kFolder, "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, std::map<std::string, int>> rows;  // family, backend
  for (const std::string& line : run.out.empty() ? std::vector<std::string>{} : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() != "check") continue;
    EXPECT_TRUE(row.at("ok").as_bool()) << line;
    EXPECT_LE(row.at("error").as_double(), row.at("family").as_string() == "LM layer" ? 3e-4 : 2e-5) << line;
    ++rows[row.at("family").as_string()][row.at("backend").as_string()];
  }
  EXPECT_EQ(rows.size(), 7u);
  for (const auto& [family, backends] : rows) {
    EXPECT_EQ(backends.count("simd"), 1u) << family;
    EXPECT_EQ(backends.count("ref"), 1u) << family;
  }
  EXPECT_EQ(rows["DeiT model"]["simd"], 45);  // logits, image, 43 parameters
}

// One tensor of every kind at a time would start the program 24 times: all kinds of a case at once, counted.
TEST_F(CliGoldenModules, EverySpoiledTensorIsFound) {
  for (const Recorded& which : kModules) {
    Golden golden = recorded(which);
    int spoiled = 0;
    for (const char* kind : {"/out", "/grad.in.", "/grad.param.", "/init.mixing"}) {
      for (auto& [name, tensor] : golden.tensors) {
        if (name.rfind(str(which.name) + kind, 0) != 0) continue;
        double largest = 0.0;
        for (std::int64_t i = 0; i < tensor.numel(); ++i) largest = std::max(largest, std::abs(tensor.at(i)));
        tensor.set(0, tensor.at(0) + 1e-3 * largest);
        ++spoiled;
        break;
      }
    }
    const ProgramRun run = verify(golden);
    EXPECT_EQ(run.code, 1) << which.name << run.err;
    EXPECT_NE(run.out.find(", " + std::to_string(spoiled) + " failed"), std::string::npos) << run.out;
  }
}

TEST_F(CliGoldenModules, WhatCannotBeJudgedSaysWhy) {
  const auto without = [&](const Recorded& which, const std::string& tensor) {
    Golden golden = recorded(which);
    EXPECT_EQ(golden.tensors.erase(str(which.name) + "/" + tensor), 1u) << tensor;
    return verify(golden);
  };
  const auto with_config = [&](const Recorded& which, const std::string& config) {
    Golden golden = recorded(which);
    golden.metadata[which.name] = config;
    return verify(golden);
  };
  const Recorded dit = kModules[0], video = kModules[4], lm = kModules[5];
  expect_refusal(without(dit, "param.to_out.0.bias"), {dit.name, "missing: to_out.0.bias"});
  expect_refusal(without(dit, "grad.param.lepe.weight"), {"grad.param.lepe.weight is missing"});
  expect_refusal(without(dit, "dout"), {"dout is missing"});
  expect_refusal(without(video, "in.x"), {"in.x is missing"});
  expect_refusal(without(video, "out"), {"out is missing"});
  expect_refusal(with_config(dit, R"({"dim": 24, "heads": 2, "block_size": 9, "embed_len": 35, "qk_norm": true})"),
                 {"'embed_len' is 35", "square"});
  expect_refusal(with_config(dit, R"({"dim": 24, "heads": 2, "block_size": 9, "embed_len": 36, "surprise": 1})"),
                 {"'surprise'", "no option"});
  expect_refusal(with_config(dit, R"({"dim": 24, "heads": 2, "block_size": 9, "embed_len": 36, "qk_norm": false})"),
                 {"'qk_norm' does not agree"});
  expect_refusal(with_config(lm, R"({"hidden_size": 64, "num_heads": 2, "feature_map": "softmax"})"), {"'softmax'"});
  expect_refusal(with_config(lm, R"({"hidden_size": 64, "num_heads": 2, "use_output_gate": false})"),
                 {"use_output_gate"});
  Golden golden = recorded(lm);
  golden.tensors[str(lm.name) + "/noise"] = ones({2});
  expect_refusal(verify(golden), {"tensor noise is none of"});
}

TEST_F(CliGoldenModules, AMissingLibraryIsNamed) {
  setenv("MHLA_ENGINE", "/nowhere/libmhla_engine.so", 1);
  expect_refusal(verify(recorded(kModules[0])), {"MHLA_ENGINE points to /nowhere/libmhla_engine.so"});
  unsetenv("MHLA_ENGINE");
}

}  // namespace
}  // namespace mhla
