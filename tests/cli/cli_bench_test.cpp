// mhla bench op on sizes of a blink: every field is there, numbers hang together, nothing is timed unverified.
#include <gtest/gtest.h>

#include <cmath>

#include "mhla/io/json.h"
#include "tests/cli/program.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

std::vector<JsonValue> rows_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"bench", "op", "--json", "--min-time", "0", "--repeat", "1", "--threads", "1"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const ProgramRun run = run_program(all);
  EXPECT_EQ(run.code, 0) << run.err;
  std::vector<JsonValue> rows;
  for (const std::string& line : lines_of(run.out)) rows.push_back(parse_json(line, "row"));
  return rows;
}

TEST(CliBench, ARowHasEveryField) {
  const std::vector<JsonValue> rows = rows_of(
      {"--grid", "8x8", "--blocks", "2x2", "--h", "2", "--d", "16", "--backend", "ref", "--pass", "fwd,bwd,fwd+bwd"});
  ASSERT_EQ(rows.size(), 3u);
  for (const JsonValue& row : rows) {
    for (const char* key : {"shape",
                            "form",
                            "dtype",
                            "pass",
                            "backend",
                            "threads",
                            "device",
                            "ms",
                            "best_ms",
                            "spread",
                            "gflops",
                            "gbytes_per_s",
                            "floor_ms",
                            "of_floor",
                            "gemm_gflops",
                            "of_gemm",
                            "rivals",
                            "workspace_bytes",
                            "peak_extra_bytes",
                            "memory_formula"})
      EXPECT_TRUE(row.contains(key)) << key;
    EXPECT_TRUE(row.at("verified").as_bool());
    const double ms = row.at("ms").as_double();
    EXPECT_GT(ms, 0.0);
    EXPECT_LE(row.at("best_ms").as_double(), ms);
    EXPECT_NEAR(row.at("gflops").as_double(), row.at("flops").as_double() / ms * 1e-6,
                1e-9 + 1e-6 * row.at("gflops").as_double());
    EXPECT_NEAR(row.at("of_floor").as_double(), row.at("floor_ms").as_double() / ms, 1e-9);
    if (!row.at("gemm_gflops").is_null()) {
      const double best = row.at("flops").as_double() / row.at("best_ms").as_double() * 1e-6;
      EXPECT_NEAR(row.at("of_gemm").as_double(), best / row.at("gemm_gflops").as_double(), 1e-6);
    } else {
      EXPECT_TRUE(row.contains("gemm_reason"));
    }
    for (const char* rival : {"plain", "linear", "softmax"}) {
      EXPECT_TRUE(row.at("rivals").at(rival).at("ms").is_null());
      EXPECT_FALSE(row.at("rivals").at(rival).at("reason").as_string().empty());
    }
  }
  EXPECT_EQ(rows[0].at("flops").as_double(), 2.0 * (4.0 * 64 * 256 + 2.0 * 16 * 256));
}

TEST(CliBench, EveryFormDtypeAndBackendRuns) {
  const std::vector<JsonValue> causal =
      rows_of({"--n", "70", "--chunk", "16", "--h", "2", "--d", "8", "--dtype", "f32,bf16,f16", "--backend", "all"});
  EXPECT_GE(causal.size(), 3u);
  for (const JsonValue& row : causal) EXPECT_EQ(row.at("form").as_string(), "causal");
  const std::vector<JsonValue> line = rows_of({"--n", "70", "--block-size", "16", "--d", "8", "--backend", "all"});
  for (const JsonValue& row : line) EXPECT_EQ(row.at("M").as_int(), 5);
}

TEST(CliBench, BackendsOnADeviceHaveTheSameFields) {
  const ProgramRun doctor = run_program({"doctor", "--json"});
  const JsonValue cuda = parse_json(lines_of(doctor.out).at(0), "doctor").at("cuda");
  if (cuda.at("devices").items().empty()) GTEST_SKIP() << cuda.at("reason").as_string();
  const std::vector<JsonValue> host =
      rows_of({"--grid", "16x16", "--blocks", "4x4", "--h", "2", "--dtype", "bf16", "--backend", "simd"});
  const std::vector<JsonValue> device =
      rows_of({"--grid", "16x16", "--blocks", "4x4", "--h", "2", "--dtype", "bf16", "--backend", "gpu"});
  ASSERT_EQ(host.size(), 1u);
  ASSERT_FALSE(device.empty());
  for (const JsonValue& row : device) {
    EXPECT_EQ(row.at("device").as_string(), cuda.at("devices").items()[0].at("name").as_string());
    EXPECT_TRUE(row.at("verified").as_bool());
    EXPECT_GT(row.at("ms").as_double(), 0.0);
    EXPECT_GT(row.at("copy_gbytes_per_s").as_double(), 100.0);
    EXPECT_TRUE(row.at("gemm_gflops").is_null() && row.contains("gemm_reason"));
    EXPECT_EQ(row.at("flops").as_double(), host[0].at("flops").as_double());
    for (const auto& [key, value] : host[0].members()) EXPECT_TRUE(row.contains(key) || key == "gemm_reason") << key;
  }
}

TEST(CliBench, NamedShapesTakeABatch) {
  const std::vector<JsonValue> rows = rows_of({"--shape", "dit_s_256,deit_t_224", "--batch", "1", "--backend", "ref"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("shape").as_string(), "dit_s_256");
  EXPECT_EQ(rows[0].at("B").as_int(), 1);
  EXPECT_EQ(rows[0].at("H").as_int(), 6);
  EXPECT_EQ(rows[0].at("M").as_int(), 16);
  EXPECT_EQ(rows[1].at("H").as_int(), 3);
}

TEST(CliBench, ARivalEitherRunsOrSaysWhyNot) {
  const std::vector<JsonValue> rows =
      rows_of({"--grid", "8x8", "--blocks", "2x2", "--h", "2", "--d", "16", "--backend", "ref", "--rivals", "all"});
  ASSERT_EQ(rows.size(), 1u);
  for (const char* rival : {"plain", "linear", "softmax"}) {
    const JsonValue& result = rows[0].at("rivals").at(rival);
    if (result.at("ms").is_null()) {
      EXPECT_TRUE(result.at("ratio").is_null());
      EXPECT_FALSE(result.at("reason").as_string().empty());
    } else {
      EXPECT_NEAR(result.at("ratio").as_double(), result.at("ms").as_double() / rows[0].at("ms").as_double(), 1e-6);
    }
  }
}

// The tensors grow with N, the scratch memory does not: it is the summaries' formula and a fixed part per thread.
TEST(CliBench, ExtraMemoryStaysWithinItsFormula) {
  for (const char* const form : {"--block-size", "--chunk"}) {
    std::vector<double> workspaces;
    for (const char* const tokens : {"1024", "4096", "16384"}) {
      const std::string block = std::to_string(std::stoi(tokens) / 16);  // 16 blocks, whatever N
      const std::vector<JsonValue> rows =
          rows_of({"--n", tokens, form, block, "--h", "2", "--d", "64", "--backend", "simd"});
      ASSERT_EQ(rows.size(), 1u);
      const double bound = rows[0].at("memory_formula_bytes").as_double();
      workspaces.push_back(rows[0].at("workspace_bytes").as_double());
      EXPECT_LE(workspaces.back(), bound) << form << tokens;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
      EXPECT_LE(rows[0].at("peak_extra_bytes").as_double(), bound) << form << tokens;
#endif
    }
    EXPECT_LE(workspaces.back(), workspaces.front() * 1.25) << form;
  }
}

// Summaries too large for one core's cache: several heads are visited together, and the formula knows it.
TEST(CliBench, ExtraMemoryOfHeadsVisitedTogetherIsInTheFormula) {
  const std::vector<JsonValue> rows =
      rows_of({"--n", "2048", "--block-size", "16", "--h", "6", "--d", "64", "--backend", "simd", "--pass", "fwd,bwd"});
  ASSERT_EQ(rows.size(), 2u);
  for (const JsonValue& row : rows) {
    const double workspace = row.at("workspace_bytes").as_double(), bound = row.at("memory_formula_bytes").as_double();
    EXPECT_GT(workspace, 5 * row.at("summaries_bytes").as_double());  // else this test does not see a shared visit
    EXPECT_LE(workspace, bound);
  }
}

TEST(CliBench, DecodeReportsBothLevelsAndTheLatency) {
  const std::vector<JsonValue> rows = rows_of(
      {"--form", "decode", "--n", "64", "--chunk", "16", "--h", "1", "--d", "64", "--e", "64", "--backend", "ref"});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("level").as_string(), "cache");
  EXPECT_EQ(rows[1].at("level").as_string(), "memory");
  EXPECT_GT(rows[1].at("states").as_int(), rows[0].at("states").as_int());
  for (int i = 0; i < 2; ++i) EXPECT_GT(rows[static_cast<std::size_t>(i)].at("of_bandwidth").as_double(), 0.0);
  EXPECT_GE(rows[2].at("slowest_over_median").as_double(), 1.0);
}

TEST(CliBench, TimesSana) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  const std::vector<std::string> all{"bench",     "model", "--model",    "sana_600m", "--batch", "1",
                                     "--image",   "4",     "--blocks",   "2",         "--pass",  "fwd",
                                     "--threads", "1",     "--min-time", "0.01",      "--json",  "--attention"};
  const ProgramRun run = run_program(joined(all, {"mhla"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const JsonValue row = parse_json(lines_of(run.out).at(0), "row");
  EXPECT_EQ(row.at("tokens").as_int(), 16);
  EXPECT_EQ(row.at("M").as_int(), 4);
  EXPECT_GT(row.at("parameters").as_int(), 500'000'000);
  for (const auto& [attention, part] : {std::pair("plain", "attention is plain, expected mhla, softmax or linear"),
                                        std::pair("gla", "attention is 'gla', expected linear, mhla or softmax")}) {
    const ProgramRun refused = run_program(joined(all, {attention}));
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
}

TEST(CliBench, AProfileAccountsForTheWholeStep) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  for (const char* pass : {"fwd", "train"}) {
    const ProgramRun run =
        run_program({"bench", "model", "--model", "vit_demo", "--attention", "mhla,softmax", "--pass", pass, "--batch",
                     "2", "--threads", "1", "--min-time", "0.01", "--profile", "--json"});
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_NE(run.err.find("where it goes"), std::string::npos) << run.err;
    for (const std::string& line : lines_of(run.out)) {
      const JsonValue profile = parse_json(line, "row").at("profile");
      double sum = 0;
      for (const char* part : {"attention", "products", "elementwise", "optimizer", "copies", "waiting"})
        sum += profile.at(part).as_double();
      EXPECT_NEAR(sum, profile.at("ms").as_double(), 1e-6 * sum) << line;
      EXPECT_GT(profile.at("attention").as_double(), 0) << line;
      EXPECT_GT(profile.at("products").as_double(), 0.1 * sum) << line;
      EXPECT_EQ(profile.at("optimizer").as_double() > 0, pass == std::string("train")) << line;
      EXPECT_LT(profile.at("waiting").as_double(), 0.5 * sum) << line;
      const JsonValue::Array& rows = profile.at("rows").items();
      for (std::size_t i = 2; i < rows.size(); ++i)  // the last may be the time between operators
        if (rows[i].at("part").as_string() != "waiting") {
          EXPECT_LE(rows[i].at("ms").as_double(), rows[i - 1].at("ms").as_double()) << line;
        }
    }
  }
}

}  // namespace
}  // namespace mhla
