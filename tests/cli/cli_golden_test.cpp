// mhla verify --golden on good, spoiled and empty files of the causal operator: the recorded one with something
// changed, or new cases whose expected values come from the reference. Whole modules are in cli_golden_modules_test.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "tests/cli/golden_fixture.h"

namespace mhla {
namespace {

const std::string kRecorded = MHLA_SOURCE_DIR "/tests/golden/causal_op.safetensors";

// A case of other sizes, names and options; expected values by the reference in f64.
void add_case(Golden& golden, const std::string& name, std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t Hkv,
              std::int64_t K, std::int64_t V, std::int64_t chunk, std::int64_t L, const std::string& config) {
  Random random(9);
  const auto make = [&](const char* tensor, std::vector<std::int64_t> shape) -> Tensor& {
    Tensor& made = golden.tensors[name + "/" + tensor] = Tensor(DType::kF32, std::move(shape));
    return made.uniform(random, 0.0, 1.0);
  };
  const Tensor& q = make("in.q", {B, T, H, K});
  const Tensor& k = make("in.k", {B, T, Hkv, K});
  const Tensor& v = make("in.v", {B, T, Hkv, V});
  const Tensor& mix = make("in.mix", {L, L});
  const Tensor& dout = make("dout", {B, T, H, V});
  const Tensor q64 = q.to(DType::kF64), k64 = k.to(DType::kF64), v64 = v.to(DType::kF64), mix64 = mix.to(DType::kF64),
               dout64 = dout.to(DType::kF64);
  ChunkwiseParams params;
  params.q = q64.view(), params.k = k64.view(), params.v = v64.view(), params.mix = mix64.view();
  params.chunk = chunk;
  params.feature_map = FeatureMap::kIdentity;
  const JsonValue options = parse_json(config, name);
  if (options.contains("scale")) params.scale = options.at("scale").as_double();
  Tensor out(DType::kF64, {B, T, H, V}), dq(DType::kF64, q.shape()), dk(DType::kF64, k.shape()),
      dv(DType::kF64, v.shape()), dmix(DType::kF64, mix.shape());
  chunkwise_forward(params, out.view());
  ChunkwiseGrads grads;
  grads.dout = dout64.view();
  grads.dq = dq.view(), grads.dk = dk.view(), grads.dv = dv.view(), grads.dmix = dmix.view();
  chunkwise_backward(params, grads);
  golden.tensors[name + "/out"] = out.to(DType::kF32);
  golden.tensors[name + "/grad.in.q"] = dq.to(DType::kF32);
  golden.tensors[name + "/grad.in.k"] = dk.to(DType::kF32);
  golden.tensors[name + "/grad.in.v"] = dv.to(DType::kF32);
  golden.tensors[name + "/grad.in.mix"] = dmix.to(DType::kF32);
  golden.metadata[name] = config;
}

class CliGolden : public GoldenTest {
 protected:
  static Golden recorded() { return read_golden(kRecorded); }
};

TEST_F(CliGolden, TheRecordedFileComesBackThroughEveryBackend) {
  const ProgramRun run = run_program({"verify", "--golden", kRecorded, "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::map<std::string, int> by_backend;
  for (const std::string& line : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() == "summary") {
      EXPECT_EQ(row.at("failed").as_int(), 0);
      EXPECT_EQ(row.at("cases").as_int(), 3);
      continue;
    }
    EXPECT_TRUE(row.at("ok").as_bool()) << line;
    EXPECT_LE(row.at("error").as_double(), 1e-5) << line;
    ++by_backend[row.at("backend").as_string()];
  }
  EXPECT_GE(by_backend.size(), 1u);
  for (const auto& [backend, rows] : by_backend) EXPECT_EQ(rows, 15) << backend;  // 3 cases of out and 4 gradients
  EXPECT_EQ(by_backend.count("ref"), 1u);
}

TEST_F(CliGolden, UnknownNamesShapesAndOptionsWork) {
  Golden golden;
  add_case(golden, "a/name with a slash", 1, 1, 1, 1, 1, 1, 64, 1, R"({"chunk": 64})");
  add_case(golden, "grouped", 2, 37, 4, 2, 5, 9, 8, 12,
           R"({"B": 2, "T": 37, "H": 4, "K": 5, "V": 9, "chunk": 8, "blocks": 5, "scale": 0.5, "seed": 3})");
  add_case(golden, "more blocks than needed", 1, 20, 2, 2, 4, 4, 4, 9, R"({"chunk": 4, "blocks": 7})");
  golden.metadata["format"] = "pt";
  const ProgramRun run = verify(golden);
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("3 cases, 15 tensors checked, 0 failed"), std::string::npos) << run.out;
}

TEST_F(CliGolden, EverySpoiledTensorIsFound) {
  for (const char* name : {"out", "grad.in.q", "grad.in.k", "grad.in.v", "grad.in.mix"}) {
    Golden golden = recorded();
    Tensor& tensor = golden.tensors.at(std::string("chunk_T65_C16/") + name);
    double largest = 0.0;
    for (std::int64_t i = 0; i < tensor.numel(); ++i) largest = std::max(largest, std::abs(tensor.at(i)));
    tensor.set(0, tensor.at(0) + 2e-4 * largest);
    const ProgramRun run = verify(golden);
    EXPECT_EQ(run.code, 1) << name << run.err;
    EXPECT_NE(run.out.find("15 tensors checked, 1 failed"), std::string::npos) << run.out;
    EXPECT_EQ(run.err, "");
  }
}

TEST_F(CliGolden, NanAndInfinityNeverPass) {
  for (const double poison : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Golden golden = recorded();
    golden.tensors.at("chunk_T65_C16/out").set(7, poison);
    EXPECT_EQ(verify(golden).code, 1);
    golden = recorded();
    golden.tensors.at("chunk_T65_C16/in.q").set(7, poison);  // the result becomes NaN, the expectation is not
    EXPECT_EQ(verify(golden).code, 1);
    golden.tensors.at("chunk_T65_C16/out").fill(poison);  // NaN against NaN is no agreement
    EXPECT_EQ(verify(golden).code, 1);
  }
}

TEST_F(CliGolden, WhatCannotBeJudgedIsAnErrorThatSaysWhy) {
  const std::string name = "chunk_T65_C16";
  const auto with_config = [&](const std::string& config) {
    Golden golden = recorded();
    golden.metadata[name] = config;
    return verify(golden);
  };
  expect_refusal(with_config(R"({"chunk": 16, "B": 3})"), {name, "'B' is 3", "has 2"});
  expect_refusal(with_config(R"({"chunk": 16, "T": 64})"), {"'T' is 64", "has 65"});
  expect_refusal(with_config(R"({"chunk": 16, "H": 2})"), {"'H' is 2"});
  expect_refusal(with_config(R"({"chunk": 16, "K": 9})"), {"'K' is 9"});
  expect_refusal(with_config(R"({"chunk": 16, "V": 9})"), {"'V' is 9"});
  expect_refusal(with_config(R"({"chunk": 16, "blocks": 4})"), {"'blocks' is 4", "make 5"});
  expect_refusal(with_config(R"({"chunk": 16, "blocks": 33})"), {"in.mix", "at least 33"});
  expect_refusal(with_config(R"({"chunk": 0})"), {"'chunk' is 0", "positive"});
  expect_refusal(with_config(R"({"chunk": "16"})"), {"chunk"});
  expect_refusal(with_config(R"({"chunk": 16, "gate": true})"), {"'gate'", "not an option"});
  expect_refusal(with_config(R"({"chunk": 16, "scale": "big"})"), {"scale"});
  expect_refusal(with_config(R"({"unheard": 1})"), {"unheard", "no family"});
  expect_refusal(with_config("not JSON {"), {name});
  expect_refusal(with_config("[16]"), {"JSON object"});

  for (const char* missing : {"in.q", "in.mix", "out", "dout", "grad.in.k"}) {
    Golden golden = recorded();
    golden.tensors.erase(name + "/" + missing);
    expect_refusal(verify(golden), {name, missing, "missing"});
  }
  Golden golden = recorded();
  golden.tensors[name + "/in.v"] = ones({2, 64, 1, 8});
  expect_refusal(verify(golden), {"in.v", "[2, 64, 1, 8]", "[2, 65, 1, 8]"});
  golden = recorded();
  golden.tensors[name + "/out"] = ones({2, 65, 1, 7});
  expect_refusal(verify(golden), {"out", "[2, 65, 1, 7]"});
  golden = recorded();
  golden.tensors[name + "/in.extra"] = ones({1});
  expect_refusal(verify(golden), {"in.extra"});
  golden = recorded();
  golden.metadata.erase(name);
  expect_refusal(verify(golden), {name, "no metadata"});
  golden = recorded();
  golden.metadata["ghost"] = R"({"chunk": 16})";
  expect_refusal(verify(golden), {"ghost", "no tensors"});
}

TEST_F(CliGolden, EveryFileOfAFolderIsTried) {
  recorded().write(folder.path("b_good.safetensors"));
  write_file(folder.path("a_broken.safetensors"), std::string("\x10\0\0\0\0\0\0\0{\"x\":", 13));
  write_file(folder.path("notes.txt"), std::string("not a golden file"));
  const ProgramRun run = run_program({"verify", "--golden", folder.path(), "--backend", "ref"});
  expect_refusal(run, {"a_broken.safetensors"});
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_NE(run.out.find("2 files, 3 cases, 15 tensors checked, 0 failed, 1 not judged"), std::string::npos) << run.out;
}

TEST_F(CliGolden, NothingCheckedIsAFailure) {
  const ProgramRun empty = run_program({"verify", "--golden", folder.path()});
  EXPECT_EQ(empty.code, 1);
  EXPECT_NE(empty.err.find("nothing was checked"), std::string::npos) << empty.err;
  Golden nothing;
  nothing.write(folder.path("empty.safetensors"));
  EXPECT_EQ(run_program({"verify", "--golden", folder.path("empty.safetensors")}).code, 1);
}

TEST_F(CliGolden, ATruncatedFileIsRefused) {
  const std::vector<std::byte> bytes = read_file(kRecorded);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, bytes.size() - 1}) {
    write_file(folder.path("cut.safetensors"), std::span(bytes).first(size));
    expect_refusal(run_program({"verify", "--golden", folder.path("cut.safetensors")}), {"cut.safetensors"});
  }
}

}  // namespace
}  // namespace mhla
