// mhla/c.h against the C++ entry points: the same bits for every form and gradient, a status and a message for every
// mistake, and structs of older and newer headers read as they should be.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "mhla/c.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/testing/tensor.h"
#include "tests/c_api_probe.h"

namespace mhla {
namespace {

mhla_tensor c_tensor(const Tensor& tensor) {
  return mhla_dense(tensor.data(), static_cast<std::int32_t>(tensor.dtype()),
                    static_cast<std::int32_t>(tensor.shape().size()), tensor.shape().data());
}

// One small problem with everything in it: two kv heads for four query heads, E != D, a per-head mix, q_den and k_den.
// f64, so that the definition runs without being asked for by name.
struct Inputs {
  std::int64_t B = 2, N = 35, H = 4, Hkv = 2, D = 5, E = 3, M = 4;
  Random random{7};
  Tensor q{DType::kF64, {B, N, H, D}}, k{DType::kF64, {B, N, Hkv, D}}, v{DType::kF64, {B, N, Hkv, E}};
  Tensor q_den{DType::kF64, {B, N, H, D}}, k_den{DType::kF64, {B, N, Hkv, D}};
  Tensor mix{DType::kF64, {H, M, M}}, dout{DType::kF64, {B, N, H, E}};
  Inputs() {
    for (Tensor* tensor : {&q, &k, &v, &q_den, &k_den, &dout}) tensor->normal(random);
    mix.uniform(random, 0.1, 1.0);
  }

  template <class Params>
  void fill(Params& params) const {
    params.q = q.view(), params.k = k.view(), params.v = v.view(), params.mix = mix.view();
    params.maybe_q_den = q_den.view(), params.maybe_k_den = k_den.view();
    params.feature_map = FeatureMap::kElu1;
    params.normalizer = Normalizer::kPaper;
    params.eps = 1e-3;
    params.scale = 0.5;
  }
  template <class CParams>
  void fill_c(CParams& params) const {
    params.q = c_tensor(q), params.k = c_tensor(k), params.v = c_tensor(v), params.mix = c_tensor(mix);
    params.maybe_q_den = c_tensor(q_den), params.maybe_k_den = c_tensor(k_den);
    params.feature_map = MHLA_ELU1;
    params.normalizer = MHLA_NORMALIZER_PAPER;
    params.eps = 1e-3;
    params.scale = 0.5;
  }

  [[nodiscard]] BidirectionalParams bidirectional() const {
    BidirectionalParams params;
    fill(params);
    params.layout = Layout::grid2d(5, 7, 2, 2);
    return params;
  }
  [[nodiscard]] mhla_bidirectional_params c_bidirectional() const {
    mhla_bidirectional_params params;
    mhla_bidirectional_params_init(&params, sizeof params);
    fill_c(params);
    params.layout = {2, 0, 0, {5, 7, 0}, {2, 2, 0}};
    return params;
  }
  [[nodiscard]] ChunkwiseParams chunkwise() const {
    ChunkwiseParams params;
    fill(params);
    params.chunk = 6;
    params.beyond_mix = BeyondMix::kExtend;  // 6 chunks, 4 rows of mix
    return params;
  }
  [[nodiscard]] mhla_chunkwise_params c_chunkwise() const {
    mhla_chunkwise_params params;
    mhla_chunkwise_params_init(&params, sizeof params);
    fill_c(params);
    params.has_scale = 1;
    params.chunk = 6;
    params.beyond_mix = MHLA_BEYOND_MIX_EXTEND;
    return params;
  }
};

struct Gradients {
  Tensor dq, dk, dv, dmix, dq_den, dk_den;
  explicit Gradients(const Inputs& in)
      : dq(DType::kF64, in.q.shape()),
        dk(DType::kF64, in.k.shape()),
        dv(DType::kF64, in.v.shape()),
        dmix(DType::kF64, in.mix.shape()),
        dq_den(DType::kF64, in.q.shape()),
        dk_den(DType::kF64, in.k.shape()) {}
  template <class Grads>
  Grads of(const Inputs& in) {
    return Grads{in.dout.view(), dq.view(), dk.view(), dv.view(), dmix.view(), dq_den.view(), dk_den.view()};
  }
  [[nodiscard]] mhla_grads c(const Inputs& in) const {
    mhla_grads grads;
    mhla_grads_init(&grads, sizeof grads);
    grads.dout = c_tensor(in.dout);
    grads.dq = c_tensor(dq), grads.dk = c_tensor(dk), grads.dv = c_tensor(dv), grads.dmix = c_tensor(dmix);
    grads.maybe_dq_den = c_tensor(dq_den), grads.maybe_dk_den = c_tensor(dk_den);
    return grads;
  }
  void expect_same(const Gradients& want) const {
    EXPECT_TRUE(dq.same_bits(want.dq));
    EXPECT_TRUE(dk.same_bits(want.dk));
    EXPECT_TRUE(dv.same_bits(want.dv));
    EXPECT_TRUE(dmix.same_bits(want.dmix));
    EXPECT_TRUE(dq_den.same_bits(want.dq_den));
    EXPECT_TRUE(dk_den.same_bits(want.dk_den));
  }
};

::testing::AssertionResult fails_with(mhla_status got, mhla_status want, const std::string& part) {
  const std::string message = mhla_last_error();
  if (got == want && message.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << got << ", message '" << message << "', expected '" << part
                                       << "'";
}

TEST(CApi, VersionIsThatOfTheProject) { EXPECT_STREQ(mhla_version(), MHLA_PROJECT_VERSION); }

TEST(CApi, CalledFromC) {
  Random random(3);
  const std::vector<std::int64_t> shape = {1, 24, 1, 8};
  Tensor q(DType::kF32, shape), k(DType::kF32, shape), v(DType::kF32, shape), mix(DType::kF32, {4, 4});
  for (Tensor* tensor : {&q, &k, &v}) tensor->normal(random);
  mix.uniform(random, 0.1, 1.0);
  Tensor got(DType::kF32, shape), want(DType::kF32, shape);
  const auto f32 = [](const Tensor& tensor) { return static_cast<float*>(tensor.data()); };
  for (const char* candidate : {"ref", ""}) {  // "" is the default: the first of the list
    const int status = c_api_probe_forward(f32(q), f32(k), f32(v), f32(mix), 4, 6, 8, candidate, f32(got));
    ASSERT_EQ(status, MHLA_OK) << mhla_last_error();
    BidirectionalParams params;
    params.q = q.view(), params.k = k.view(), params.v = v.view(), params.mix = mix.view();
    params.layout = Layout::grid2d(4, 6, 2, 2);
    bidirectional_forward(params, want.view(), {.candidate = candidate});
    EXPECT_TRUE(got.same_bits(want)) << "candidate '" << candidate << "'";
  }
}

TEST(CApi, BidirectionalGivesTheBitsOfCpp) {
  const Inputs in;
  Tensor got(DType::kF64, in.dout.shape()), want(DType::kF64, in.dout.shape());
  bidirectional_forward(in.bidirectional(), want.view());
  const mhla_bidirectional_params params = in.c_bidirectional();
  const mhla_tensor out = c_tensor(got);
  ASSERT_EQ(mhla_bidirectional_forward(&params, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));

  Gradients got_grads(in), want_grads(in);
  bidirectional_backward(in.bidirectional(), want_grads.of<BidirectionalGrads>(in));
  const mhla_grads grads = got_grads.c(in);
  ASSERT_EQ(mhla_bidirectional_backward(&params, &grads, nullptr), MHLA_OK) << mhla_last_error();
  got_grads.expect_same(want_grads);
}

TEST(CApi, ChunkwiseGivesTheBitsOfCpp) {
  const Inputs in;
  Tensor got(DType::kF64, in.dout.shape()), want(DType::kF64, in.dout.shape());
  chunkwise_forward(in.chunkwise(), want.view());
  const mhla_chunkwise_params params = in.c_chunkwise();
  const mhla_tensor out = c_tensor(got);
  ASSERT_EQ(mhla_chunkwise_forward(&params, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));

  Gradients got_grads(in), want_grads(in);
  chunkwise_backward(in.chunkwise(), want_grads.of<ChunkwiseGrads>(in));
  const mhla_grads grads = got_grads.c(in);
  ASSERT_EQ(mhla_chunkwise_backward(&params, &grads, nullptr), MHLA_OK) << mhla_last_error();
  got_grads.expect_same(want_grads);
}

TEST(CApi, DefaultScaleOfTheCausalFormIsThatOfCpp) {
  const Inputs in;
  ChunkwiseParams cpp;
  cpp.q = in.q.view(), cpp.k = in.k.view(), cpp.v = in.v.view(), cpp.mix = in.mix.view();
  mhla_chunkwise_params c;
  mhla_chunkwise_params_init(&c, sizeof c);
  c.q = c_tensor(in.q), c.k = c_tensor(in.k), c.v = c_tensor(in.v), c.mix = c_tensor(in.mix);
  Tensor got(DType::kF64, in.dout.shape()), want(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  chunkwise_forward(cpp, want.view());
  ASSERT_EQ(mhla_chunkwise_forward(&c, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  c.scale = 3;  // not looked at without has_scale
  ASSERT_EQ(mhla_chunkwise_forward(&c, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  c.has_scale = 1;
  ASSERT_EQ(mhla_chunkwise_forward(&c, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_FALSE(got.same_bits(want));
}

TEST(CApi, LayoutsOfEveryRank) {
  const Inputs in;
  mhla_bidirectional_params c = in.c_bidirectional();
  BidirectionalParams cpp = in.bidirectional();
  Tensor got(DType::kF64, in.dout.shape()), want(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  c.layout = {1, 0, 10, {0, 0, 0}, {0, 0, 0}};
  cpp.layout = Layout::line(10);
  bidirectional_forward(cpp, want.view());
  ASSERT_EQ(mhla_bidirectional_forward(&c, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  c.layout = {3, 0, 0, {5, 1, 7}, {2, 1, 2}};
  cpp.layout = Layout::grid3d({5, 1, 7}, {2, 1, 2});
  bidirectional_forward(cpp, want.view());
  ASSERT_EQ(mhla_bidirectional_forward(&c, &out, nullptr), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  c.layout.rank = 4;
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(&c, &out, nullptr), MHLA_ERROR_ARGUMENT, "layout.rank is 4"));
}

TEST(CApi, WorkspaceOfTheCallerIsEnoughAndALittleLessIsNot) {
  const Inputs in;
  const Tensor q = in.q.to(DType::kF32), k = in.k.to(DType::kF32), v = in.v.to(DType::kF32),
               mix = in.mix.to(DType::kF32);
  BidirectionalParams cpp;
  cpp.q = q.view(), cpp.k = k.view(), cpp.v = v.view(), cpp.mix = mix.view();
  cpp.layout = Layout::grid2d(5, 7, 2, 2);
  mhla_bidirectional_params params;
  mhla_bidirectional_params_init(&params, sizeof params);
  params.q = c_tensor(q), params.k = c_tensor(k), params.v = c_tensor(v), params.mix = c_tensor(mix);
  params.layout = {2, 0, 0, {5, 7, 0}, {2, 2, 0}};
  Tensor got(DType::kF32, in.dout.shape()), want(DType::kF32, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  bidirectional_forward(cpp, want.view());

  std::int64_t bytes = -1;
  ASSERT_EQ(mhla_bidirectional_forward_workspace(&params, &out, nullptr, &bytes), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(bytes, bidirectional_forward_workspace(cpp, got.view()));
  ASSERT_GT(bytes, kAlignment);
  const AlignedBuffer memory(bytes);
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  options.workspace = memory.bytes().data();
  options.workspace_bytes = static_cast<std::size_t>(bytes);
  EXPECT_EQ(mhla_bidirectional_forward(&params, &out, &options), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  options.workspace_bytes -= kAlignment;
  EXPECT_EQ(mhla_bidirectional_forward(&params, &out, &options), MHLA_ERROR_ARGUMENT);
  options.workspace = nullptr;
  EXPECT_TRUE(
      fails_with(mhla_bidirectional_forward(&params, &out, &options), MHLA_ERROR_ARGUMENT, "workspace is null"));
}

// On the CPU nothing is kept.
TEST(CApi, KeepsWhatCppKeeps) {
  const Inputs in;
  const mhla_bidirectional_params params = in.c_bidirectional();
  Tensor got(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  std::int64_t bytes = -1;
  ASSERT_EQ(mhla_bidirectional_kept(&params, &out, nullptr, &bytes), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(bytes, 0);
  const mhla_chunkwise_params causal = in.c_chunkwise();
  ASSERT_EQ(mhla_chunkwise_kept(&causal, &out, nullptr, &bytes), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(bytes, 0);
  const AlignedBuffer memory(2 * kAlignment);
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  const auto refused = [&](const char* why) {
    return fails_with(mhla_bidirectional_forward(&params, &out, &options), MHLA_ERROR_ARGUMENT, why);
  };
  options.kept = memory.bytes().data(), options.kept_bytes = 2 * kAlignment;
  EXPECT_TRUE(refused("bidirectional_forward: kept has 128 bytes, expected 0"));
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward_workspace(&params, &out, &options, &bytes), MHLA_ERROR_ARGUMENT,
                         "kept has 128 bytes, expected 0"));
  options.kept = memory.bytes().data() + 8;
  EXPECT_TRUE(refused("kept is not aligned"));
  options.kept = nullptr;
  EXPECT_TRUE(refused("kept is null, but kept_bytes is 128"));
}

TEST(CApi, MistakesAreNamed) {
  const Inputs in;
  Tensor got(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  mhla_bidirectional_params params = in.c_bidirectional();
  const auto forward = [&] { return mhla_bidirectional_forward(&params, &out, nullptr); };

  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(nullptr, &out, nullptr), MHLA_ERROR_ARGUMENT, "params is null"));
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(&params, nullptr, nullptr), MHLA_ERROR_ARGUMENT, "out is null"));
  params.q.data = nullptr;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "q has null data"));
  params = in.c_bidirectional();
  params.k.dtype = 77;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "k.dtype is 77"));
  params = in.c_bidirectional();
  params.v.rank = 9;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "v has rank 9"));
  params = in.c_bidirectional();
  params.mix.shape[1] = 3;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "mix has shape [4, 3, 4]"));
  params = in.c_bidirectional();
  params.feature_map = 256;  // 0 in eight bits
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "feature_map is 256"));
  params = in.c_bidirectional();
  params.normalizer = -1;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "normalizer is -1"));
  params = in.c_bidirectional();
  params.q.device = -1;
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "q has device -1"));
  params = in.c_bidirectional();
  params.q = mhla_dense(in.q.data(), MHLA_F64, 4, nullptr);
  EXPECT_TRUE(fails_with(forward(), MHLA_ERROR_ARGUMENT, "q has rank -1"));

  params = in.c_bidirectional();
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  options.candidate = "magic";
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(&params, &out, &options), MHLA_ERROR_ARGUMENT, "'magic'"));
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward_workspace(&params, &out, nullptr, nullptr), MHLA_ERROR_ARGUMENT,
                         "bytes is null"));
  EXPECT_TRUE(got.same_bits(Tensor(DType::kF64, in.dout.shape()))) << "a refused call wrote to out";
}

TEST(CApi, LastErrorBelongsToItsThread) {
  ASSERT_EQ(mhla_set_threads(0), MHLA_ERROR_ARGUMENT);
  std::string seen = "unset";
  std::thread([&] { seen = mhla_last_error(); }).join();
  EXPECT_EQ(seen, "");
  EXPECT_TRUE(fails_with(mhla_set_threads(-3), MHLA_ERROR_ARGUMENT, "threads is -3"));
}

// A header of tomorrow has more fields, one of an older library fewer: struct_size distinguishes them.
TEST(CApi, StructsOfOtherVersions) {
  const Inputs in;
  Tensor got(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  struct Tomorrow {
    mhla_bidirectional_params known;
    double unknown;
  } params;
  mhla_bidirectional_params_init(&params.known, sizeof params);
  EXPECT_EQ(params.known.struct_size, sizeof params);
  EXPECT_EQ(params.unknown, 0.0);
  params.known = in.c_bidirectional();
  params.known.struct_size = sizeof params;
  EXPECT_EQ(mhla_bidirectional_forward(&params.known, &out, nullptr), MHLA_OK) << mhla_last_error();
  params.unknown = 1;
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(&params.known, &out, nullptr), MHLA_ERROR_ARGUMENT, "uses fields"));
  params.known.struct_size = 0;
  EXPECT_TRUE(
      fails_with(mhla_bidirectional_forward(&params.known, &out, nullptr), MHLA_ERROR_ARGUMENT, "*_init first"));

  // An init of an older program may touch no byte beyond the struct it knew.
  unsigned char bytes[sizeof(mhla_run_options)];
  std::memset(bytes, 0xab, sizeof bytes);
  const std::size_t old_size = offsetof(mhla_run_options, workspace);
  mhla_run_options_init(reinterpret_cast<mhla_run_options*>(bytes), old_size);
  for (std::size_t i = old_size; i < sizeof bytes; ++i) EXPECT_EQ(bytes[i], 0xab) << i;
}

struct Counter {
  std::int64_t tasks = 0, leave_out = 0;
};

void run_in_reverse(void* context, std::int64_t count, mhla_task_fn task, void* task_data) {
  auto& counter = *static_cast<Counter*>(context);
  for (std::int64_t index = count; index-- > counter.leave_out; ++counter.tasks) task(task_data, index, 0);
}

TEST(CApi, PoolsGiveTheSameBits) {
  const Inputs in;
  const mhla_bidirectional_params params = in.c_bidirectional();
  Tensor got(DType::kF64, in.dout.shape()), want(DType::kF64, in.dout.shape());
  const mhla_tensor out = c_tensor(got);
  bidirectional_forward(in.bidirectional(), want.view());
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  for (const std::int32_t threads : {1, 3}) {
    ASSERT_EQ(mhla_pool_create(threads, &options.pool), MHLA_OK) << mhla_last_error();
    got.fill(0);
    EXPECT_EQ(mhla_bidirectional_forward(&params, &out, &options), MHLA_OK) << mhla_last_error();
    EXPECT_TRUE(got.same_bits(want)) << threads << " threads";
    mhla_pool_destroy(options.pool);
  }
  Counter counter;
  ASSERT_EQ(mhla_pool_from_callback(run_in_reverse, &counter, 1, &options.pool), MHLA_OK) << mhla_last_error();
  got.fill(0);
  EXPECT_EQ(mhla_bidirectional_forward(&params, &out, &options), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(got.same_bits(want));
  EXPECT_GT(counter.tasks, 0);
  counter.leave_out = 1;
  EXPECT_TRUE(fails_with(mhla_bidirectional_forward(&params, &out, &options), MHLA_ERROR_ARGUMENT, "run came back"));
  mhla_pool_destroy(options.pool);
  mhla_pool_destroy(nullptr);

  mhla_pool* none = nullptr;
  EXPECT_TRUE(fails_with(mhla_pool_create(0, &none), MHLA_ERROR_ARGUMENT, "threads is 0"));
  EXPECT_TRUE(fails_with(mhla_pool_from_callback(nullptr, nullptr, 1, &none), MHLA_ERROR_ARGUMENT, "run is null"));
  EXPECT_EQ(none, nullptr);
}

}  // namespace
}  // namespace mhla
