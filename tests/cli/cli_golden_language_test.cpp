// mhla verify --golden on whole language models: every case comes back, a changed number is found, and a case that
// cannot be judged says why in one line. They run in the engine, which is there where LibTorch is.
#include <cmath>
#include <set>

#include "mhla/io/json.h"
#include "tests/cli/golden_fixture.h"

namespace mhla {
namespace {

const std::string kLmFile = MHLA_SOURCE_DIR "/tests/golden/language/lm.safetensors";

class CliGoldenLanguage : public GoldenTest {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  // The first case only.
  static Golden one() {
    Golden golden = read_golden(kLmFile);
    std::erase_if(golden.tensors, [](const auto& item) { return item.first.rfind("lm/", 0) != 0; });
    std::erase_if(golden.metadata, [](const auto& item) { return item.first != "lm"; });
    return golden;
  }
};

TEST_F(CliGoldenLanguage, EveryCaseComesBackThroughEveryBackend) {
  const ProgramRun run = run_program({"verify", "--golden", MHLA_SOURCE_DIR "/tests/golden/language", "--json"});
  ASSERT_EQ(run.code, 0) << run.out << run.err;
  std::map<std::string, std::set<std::string>> cases;  // by backend
  for (const std::string& line : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() != "check") continue;
    EXPECT_EQ(row.at("family").as_string(), "lm");
    EXPECT_LE(row.at("error").as_double(), 2e-5) << line;
    cases[row.at("backend").as_string()].insert(row.at("case").as_string());
  }
  EXPECT_EQ(cases["simd"].size(), 11u);
  EXPECT_EQ(cases["ref"].size(), 11u);
}

TEST_F(CliGoldenLanguage, AChangedNumberFails) {
  Golden golden = one();
  for (const char* name : {"lm/out", "lm/out.streamed", "lm/grad.param.model.layers.1.attn.mix"}) {
    Tensor& tensor = golden.tensors.at(name);
    double largest = 0.0;
    for (std::int64_t i = 0; i < tensor.numel(); ++i) largest = std::max(largest, std::abs(tensor.at(i)));
    tensor.set(tensor.numel() - 1, tensor.at(tensor.numel() - 1) + 1e-3 * largest);
  }
  const ProgramRun run = verify(golden);
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_NE(run.out.find(", 3 failed"), std::string::npos) << run.out;
}

TEST_F(CliGoldenLanguage, WhatCannotBeJudgedSaysWhyInOneLine) {
  const auto refused = [&](const Golden& golden, const std::vector<std::string>& words) {
    const ProgramRun run = verify(golden);
    expect_refusal(run, words);
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  };
  const auto with_config = [&](const char* key, const JsonValue& value) {
    Golden golden = one();
    JsonValue config = parse_json(golden.metadata.at("lm"), "lm");
    golden.metadata["lm"] = write_json(config.set(key, value));
    return golden;
  };
  const auto without = [&](const std::string& tensor) {
    Golden golden = one();
    EXPECT_EQ(golden.tensors.erase("lm/" + tensor), 1u) << tensor;
    return golden;
  };
  refused(with_config("vocabs", 1), {"case 'lm'", "'vocabs' is unknown, nearest is 'vocab'"});
  refused(with_config("context", 8), {"case 'lm'"});
  refused(without("in.tokens"), {"in.tokens is missing"});
  refused(without("param.model.layers.0.attn.mix"), {"missing: model.layers.0.attn.mix; left over: nothing"});
  refused(without("grad.param.model.norm.weight"), {"grad.param.model.norm.weight is missing"});
  refused(without("dout"), {"grad.param.model.embeddings.weight is no result of this family"});
  Golden golden = one();
  golden.tensors.at("lm/in.tokens").set(3, 17);
  refused(golden, {"in.tokens has 17, expected 0 to 16"});
  golden = one();
  golden.tensors["lm/param.model.norm.weight"] = ones({9});
  refused(golden, {"model.norm.weight has shape [9], expected [8]"});
  golden = one();
  golden.tensors["lm/out"] = ones({2, 13, 16});
  refused(golden, {"out has shape [2, 13, 16], expected [2, 13, 17]"});
}

}  // namespace
}  // namespace mhla
