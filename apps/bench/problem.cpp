#include "apps/bench/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/cli/host.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"

namespace mhla::apps {
namespace {

// Normal numbers for large tensors: a period of 2^20 values is drawn, then repeated with a shift, so that the
// million-token shapes are ready in a second.
void fill_normal(Tensor& tensor, std::uint64_t seed) {
  constexpr std::int64_t kPeriod = (std::int64_t{1} << 20) - 3;
  Random random(seed);
  const std::int64_t drawn = std::min(tensor.numel(), kPeriod);
  for (std::int64_t i = 0; i < drawn; ++i) tensor.set(i, random.normal());
  const std::int64_t size = size_of(tensor.dtype());
  auto* bytes = static_cast<char*>(tensor.data());
  for (std::int64_t done = drawn; done < tensor.numel(); done += kPeriod) {
    const std::int64_t count = std::min(kPeriod, tensor.numel() - done);
    std::memcpy(bytes + done * size, bytes, static_cast<std::size_t>(count * size));
  }
}

// 1 / (1 + distance in blocks), rows summing to one: positive, strongest at home.
void fill_mix(Tensor& mix) {
  const std::int64_t M = mix.shape().back();
  for (std::int64_t i = 0; i < M; ++i) {
    double sum = 0.0;
    for (std::int64_t b = 0; b < M; ++b) sum += 1.0 / (1.0 + static_cast<double>(std::abs(i - b)));
    for (std::int64_t b = 0; b < M; ++b) mix.set(i * M + b, 1.0 / (1.0 + static_cast<double>(std::abs(i - b))) / sum);
  }
}

template <class Params>
Params inputs_of(const OpViews& t) {
  Params params;
  params.q = t.q;
  params.k = t.k;
  params.v = t.v;
  params.mix = t.mix;
  return params;
}

BidirectionalParams bench_bidirectional(const OpShape& shape, const OpViews& t) {
  auto params = inputs_of<BidirectionalParams>(t);
  params.layout = shape.layout;
  return params;
}

ChunkwiseParams bench_chunkwise(const OpShape& shape, const OpViews& t) {
  auto params = inputs_of<ChunkwiseParams>(t);
  params.chunk = shape.chunk();
  return params;
}

template <class Grads>
Grads grads_of(const OpViews& t) {
  return {t.dout, t.dq, t.dk, t.dv, t.dmix, {}, {}};
}

}  // namespace

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::kForward: return "fwd";
    case Pass::kBackward: return "bwd";
    case Pass::kBoth: return "fwd+bwd";
  }
  return "";
}

Pass parse_pass(const std::string& name) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kBoth})
    if (name == name_of(pass)) return pass;
  fail("--pass is '", name, "', expected fwd, bwd or fwd+bwd");
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    if (name == name_of(dtype)) return dtype;
  fail("--dtype is '", name, "', expected f32, bf16 or f16");
}

std::int64_t tensor_bytes(const OpShape& s, DType dtype, Pass pass) {
  const std::int64_t forward = checked_product({s.B, s.N, s.H + s.Hkv, s.D + s.E, size_of(dtype)}, "bench op: sizes");
  return pass == Pass::kForward ? forward : checked_product({forward, 2}, "bench op: sizes");
}

MemoryEstimate op_memory(const OpShape& s, DType dtype, Pass pass, int sets) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double B = number(s.B), N = number(s.N), H = number(s.H), Hkv = number(s.Hkv), D = number(s.D), E = number(s.E);
  MemoryEstimate needed;
  if (s.form == OpForm::kDecode)  // a few summaries, and keys and values of the open chunk
    return needed.add("states", B * Hkv * (12.0 * D * E + number(s.chunk() * size_of(dtype)) * (D + E)));
  const double M = number(s.blocks()), mix = 4.0 * M * M;
  const double passes = pass == Pass::kForward ? 1.0 : 2.0;
  needed.add("tensors", passes * sets * B * N * (H + Hkv) * (D + E) * number(size_of(dtype)));
  needed.add("mix", passes * sets * mix);
  return needed.add("check in f64", 8.0 * (2.0 * N * D + M * M));
}

OpTensors make_tensors(const OpShape& s, DType dtype, Pass pass, std::uint64_t seed) {
  OpTensors t;
  t.q = Tensor(dtype, {s.B, s.N, s.H, s.D});
  t.k = Tensor(dtype, {s.B, s.N, s.Hkv, s.D});
  t.v = Tensor(dtype, {s.B, s.N, s.Hkv, s.E});
  fill_normal(t.q, seed);
  fill_normal(t.k, seed + 1);
  fill_normal(t.v, seed + 2);
  const DType mix_dtype = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const std::int64_t M = s.blocks();
  t.mix = Tensor(mix_dtype, {M, M});
  fill_mix(t.mix);
  if (pass != Pass::kBackward) t.out = Tensor(dtype, {s.B, s.N, s.H, s.E});
  if (pass == Pass::kForward) return t;
  t.dout = Tensor(dtype, {s.B, s.N, s.H, s.E});
  fill_normal(t.dout, seed + 3);
  t.dq = Tensor(dtype, t.q.shape());
  t.dk = Tensor(dtype, t.k.shape());
  t.dv = Tensor(dtype, t.v.shape());
  t.dmix = Tensor(mix_dtype, t.mix.shape());
  return t;
}

OpViews views_of(OpTensors& t) {
  const auto view = [](Tensor& tensor) { return tensor.given() ? tensor.view() : View(); };
  return {view(t.q),   view(t.k),  view(t.v),  view(t.mix), view(t.dout),
          view(t.out), view(t.dq), view(t.dk), view(t.dv),  view(t.dmix)};
}

void run_pass(const OpShape& shape, Pass pass, const OpViews& t, const RunOptions& run) {
  if (shape.causal()) {
    const ChunkwiseParams params = bench_chunkwise(shape, t);
    if (pass != Pass::kBackward) chunkwise_forward(params, t.out, run);
    if (pass != Pass::kForward) chunkwise_backward(params, grads_of<ChunkwiseGrads>(t), run);
    return;
  }
  const BidirectionalParams params = bench_bidirectional(shape, t);
  if (pass != Pass::kBackward) bidirectional_forward(params, t.out, run);
  if (pass != Pass::kForward) bidirectional_backward(params, grads_of<BidirectionalGrads>(t), run);
}

std::int64_t workspace_bytes(const OpShape& shape, Pass pass, const OpViews& t, const RunOptions& run) {
  std::int64_t forward = 0, backward = 0;
  if (shape.causal()) {
    const ChunkwiseParams params = bench_chunkwise(shape, t);
    if (pass != Pass::kBackward) forward = chunkwise_forward_workspace(params, t.out, run);
    if (pass != Pass::kForward) backward = chunkwise_backward_workspace(params, grads_of<ChunkwiseGrads>(t), run);
  } else {
    const BidirectionalParams params = bench_bidirectional(shape, t);
    if (pass != Pass::kBackward) forward = bidirectional_forward_workspace(params, t.out, run);
    if (pass != Pass::kForward)
      backward = bidirectional_backward_workspace(params, grads_of<BidirectionalGrads>(t), run);
  }
  return std::max(forward, backward);
}

std::int64_t kept_bytes(const OpShape& shape, const OpViews& t, const RunOptions& run) {
  return shape.causal() ? chunkwise_kept(bench_chunkwise(shape, t), t.out, run)
                        : bidirectional_kept(bench_bidirectional(shape, t), t.out, run);
}

BenchProblem::BenchProblem(const OpShape& shape, DType dtype, Pass pass, const std::string& backend, Executor& executor,
                           int sets)
    : shape_(shape), pass_(pass), backend_(backend) {
  run_.candidate = backend_;
  run_.maybe_executor = &executor;
  const CpuFacts cpu = read_cpu_facts();
  const std::int64_t bytes = tensor_bytes(shape, dtype, pass);
  if (sets == 0) {
    const std::int64_t wanted =
        4 * std::max<std::int64_t>(cpu.l2_bytes, std::int64_t{1} << 20) * executor.concurrency();
    sets = static_cast<int>(std::clamp<std::int64_t>((wanted + bytes - 1) / std::max<std::int64_t>(bytes, 1), 1, 8));
  }
  expect_fits("bench op: " + shape.name, op_memory(shape, dtype, pass, sets));
  for (int i = 0; i < sets; ++i)
    sets_.push_back(make_tensors(shape, dtype, pass, 1000 + 10 * static_cast<unsigned>(i)));
  workspace_bytes_ = workspace_bytes(shape_, pass_, views_of(sets_.front()), run_);
  workspace_ = AlignedBuffer::for_workspace(workspace_bytes_);
  run_.workspace = workspace_.bytes();
}

void BenchProblem::run_allocating() {
  RunOptions run = run_;
  run.workspace = {};
  run_pass(shape_, pass_, views_of(sets_.front()), run);
}

void BenchProblem::run(int call) {
  run_pass(shape_, pass_, views_of(sets_[static_cast<std::size_t>(call) % sets_.size()]), run_);
}

}  // namespace mhla::apps
