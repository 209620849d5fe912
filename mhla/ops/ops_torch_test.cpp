// What the operators owe to LibTorch: shapes without memory, autocast, mixing matrices of 16 bits, and clear words for
// what they do not take.
#include <torch/csrc/autograd/forward_grad.h>

#include <functional>

#include "mhla/core/threads.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/ops/torch_error.h"

namespace mhla::ops {
namespace {

const BidirectionalOptions kLine{.layout = Layout::line(8)};

AttentionInputs random_inputs(std::int64_t N = 20, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(7);
  const auto tokens = [&] { return at::randn({2, N, 3, 16}, dtype); };
  const std::int64_t M = (N + 7) / 8;
  return {tokens(), tokens(), tokens(), at::rand({M, M}, dtype == at::kDouble ? at::kDouble : at::kFloat), {}, {}, {}};
}

AttentionInputs on_meta(const AttentionInputs& in) {
  AttentionInputs meta = in;
  for (at::Tensor* x : {&meta.q, &meta.k, &meta.v, &meta.mix, &meta.q_den, &meta.k_den, &meta.cu_seqlens}) {
    if (x->defined()) *x = at::empty_strided(x->sizes(), x->strides(), x->options().device(at::kMeta));
  }
  return meta;
}

TEST(Meta, HasTheShapesOfTheKernels) {
  AttentionInputs in = random_inputs();
  in.v = at::randn({2, 20, 3, 5});
  for (const bool causal : {false, true}) {
    const auto run = [&](const AttentionInputs& x) {
      return causal ? chunkwise(x, {.chunk = 8}) : bidirectional(x, kLine);
    };
    AttentionInputs meta = on_meta(in), real = in;
    const std::vector<at::Tensor> meta_leaves = require_gradients(meta), leaves = require_gradients(real);
    const at::Tensor meta_out = run(meta), out = run(real);
    EXPECT_TRUE(meta_out.is_meta());
    EXPECT_EQ(meta_out.sizes(), out.sizes());
    EXPECT_EQ(meta_out.strides(), out.strides());
    EXPECT_EQ(meta_out.scalar_type(), out.scalar_type());
    const auto meta_gradients = torch::autograd::grad({meta_out}, meta_leaves, {at::empty_like(meta_out)});
    const auto gradients = torch::autograd::grad({out}, leaves, {at::ones_like(out)});
    ASSERT_EQ(meta_gradients.size(), gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(meta_gradients[i].sizes(), gradients[i].sizes()) << i;
      EXPECT_EQ(meta_gradients[i].strides(), gradients[i].strides()) << i;
    }
  }
}

TEST(Meta, SaysWhatTheKernelSays) {
  AttentionInputs in = random_inputs();
  in.mix = at::rand({2, 2});
  const std::string real = message_of([&] { bidirectional(in, kLine); });
  EXPECT_EQ(real, "bidirectional_forward: mix has shape [2, 2], expected at least [3, 3] (N = 20, C = 8)");
  EXPECT_EQ(message_of([&] { bidirectional(on_meta(in), kLine); }), real);
}

TEST(Meta, LeavesPackedSequencesToTheKernel) {
  AttentionInputs in = random_inputs(40);
  for (at::Tensor* x : {&in.q, &in.k, &in.v}) *x = x->narrow(0, 0, 1);
  in.mix = at::rand({3, 3});  // enough for sequences of 20 tokens, not for one of 40
  in.cu_seqlens = at::tensor({0, 20, 40}, at::kInt);
  EXPECT_EQ(bidirectional(on_meta(in), kLine).sizes(), bidirectional(in, kLine).sizes());
}

TEST(Autocast, CastsTokensAndLeavesMixAlone) {
  AttentionInputs in = random_inputs();
  const std::vector<at::Tensor> leaves = require_gradients(in);
  AttentionInputs cast = in;
  for (at::Tensor* x : {&cast.q, &cast.k, &cast.v}) *x = x->detach().to(at::kBFloat16);
  const at::Tensor want = bidirectional(cast, kLine), want_causal = chunkwise(cast, {.chunk = 8});
  set_autocast(at::kCPU, true);
  const at::Tensor out = bidirectional(in, kLine), out_causal = chunkwise(in, {.chunk = 8});
  set_autocast(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(out, want));
  EXPECT_TRUE(at::equal(out_causal, want_causal));
  const auto gradients = torch::autograd::grad({out}, leaves, {at::ones_like(out)});
  for (const at::Tensor& gradient : gradients) EXPECT_EQ(gradient.scalar_type(), at::kFloat);
}

TEST(Mix, OfSixteenBitsIsWidened) {
  for (const at::ScalarType narrow : {at::kBFloat16, at::kHalf}) {
    AttentionInputs in = random_inputs(20, narrow), wide = in;
    in.mix = in.mix.to(narrow);
    wide.mix = in.mix.to(at::kFloat);
    const auto leaves = require_gradients(in), wide_leaves = require_gradients(wide);
    const at::Tensor out = bidirectional(in, kLine), want = bidirectional(wide, kLine);
    EXPECT_TRUE(at::equal(out, want));
    const at::Tensor dout = at::ones_like(out);
    const at::Tensor dmix = torch::autograd::grad({out}, leaves, {dout})[3];
    EXPECT_EQ(dmix.scalar_type(), narrow);
    EXPECT_TRUE(at::equal(dmix, torch::autograd::grad({want}, wide_leaves, {dout})[3].to(narrow)));
  }
}

TEST(SecondDerivatives, AreRefused) {
  AttentionInputs in = random_inputs();
  const std::vector<at::Tensor> leaves = require_gradients(in);
  for (const bool causal : {false, true}) {
    const at::Tensor out = causal ? chunkwise(in, {.chunk = 8}) : bidirectional(in, kLine);
    const auto first = torch::autograd::grad({out.sum()}, {leaves[0]}, {}, true, /*create_graph=*/true);
    const std::string said = message_of([&] { torch::autograd::grad({first[0].sum()}, {leaves[1]}); });
    EXPECT_TRUE(has(said, "backward: the gradient of a gradient is not implemented")) << said;
  }
}

TEST(ForwardMode, IsRefused) {
  const std::uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  AttentionInputs in = random_inputs();
  in.k = at::_make_dual(in.k, at::ones_like(in.k), static_cast<std::int64_t>(level));
  EXPECT_EQ(message_of([&] { bidirectional(in, kLine); }),
            "bidirectional_forward: forward-mode derivatives are not implemented; use backward()");
  torch::autograd::ForwardADLevel::release_idx(level);
}

struct Mistake {
  const char* what;
  std::function<void(AttentionInputs&, BidirectionalOptions&)> make;
  const char* message;
};

TEST(Errors, NameTheArgument) {
  const Mistake mistakes[] = {
      {"last stride",
       [](auto& in, auto&) {
         in.q = at::randn({2, 20, 16, 3}).transpose(2, 3);
       },
       "bidirectional_forward: q has last stride 3, expected 1"},
      {"integers", [](auto& in, auto&) { in.q = in.q.to(at::kLong); },
       "bidirectional_forward: q has dtype i64, expected f32, bf16, f16 or f64"},
      {"dtypes that differ", [](auto& in, auto&) { in.k = in.k.to(at::kHalf); },
       "bidirectional_forward: k has dtype f16, expected f32"},
      {"complex numbers", [](auto& in, auto&) { in.v = in.v.to(at::kComplexFloat); },
       "bidirectional_forward: v has dtype ComplexFloat, expected float32, bfloat16, float16 or float64"},
      {"rank", [](auto& in, auto&) { in.q = in.q[0]; },
       "bidirectional_forward: q has shape [20, 3, 16], expected [B, N, H, D]"},
      {"heads", [](auto& in, auto&) { in.k = in.k.narrow(2, 0, 2), in.v = in.v.narrow(2, 0, 2); },
       "bidirectional_forward: k has 2 heads, expected a divisor of H = 3"},
      {"a lone q_den", [](auto& in, auto&) { in.q_den = in.q; },
       "bidirectional_forward: only q_den is given, expected q_den and k_den together"},
      {"a number for a tensor", [](auto& in, auto&) { in.q_den = at::ones({}); },
       "bidirectional_forward: q_den is a single number, expected a tensor with axes"},
      {"mix in f64", [](auto& in, auto&) { in.mix = in.mix.to(at::kDouble); },
       "bidirectional_forward: mix has dtype f64, expected f32"},
      {"no layout", [](auto&, auto& options) { options.layout = {}; },
       "bidirectional_forward: no layout is given, expected block_size, or grid and blocks"},
      {"a sparse tensor", [](auto& in, auto&) { in.cu_seqlens = at::ones({3}, at::kInt).to_sparse(); }, "Sparse"},
      {"eps", [](auto&, auto& options) { options.eps = std::nan(""); },
       "bidirectional_forward: eps is nan, expected a finite number"},
  };
  for (const Mistake& mistake : mistakes) {
    AttentionInputs in = random_inputs();
    BidirectionalOptions options = kLine;
    mistake.make(in, options);
    const std::string said = message_of([&] { bidirectional(in, options); });
    EXPECT_TRUE(has(said, mistake.message)) << mistake.what << ": " << said;
  }
}

TEST(Threads, AreSetForAllPools) {
  const std::int64_t before = num_threads(), cores = hardware_threads();
  for (const std::int64_t asked : {std::int64_t{1}, cores, std::int64_t{0}, std::int64_t{1024}}) {
    const ThreadCount count = set_num_threads(asked);
    EXPECT_EQ(num_threads(), asked == 1 ? 1 : cores);
    EXPECT_EQ(at::get_num_threads(), count.threads);
    EXPECT_EQ(count.fewer.empty(), asked <= cores) << count.fewer;
  }
  EXPECT_EQ(message_of([] { set_num_threads(1025); }), "set_num_threads: threads is 1025, expected 0 to 1024");
  set_num_threads(before);
}

TEST(TorchError, IsOneShortLine) {
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& error) {
      return short_reason(error);
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(said([] { at::empty({std::int64_t{1} << 50}); }), "out of memory: 4 PiB could not be allocated");
  const std::string shapes = said([] { at::matmul(at::ones({2, 3}), at::ones({2, 3})); });
  EXPECT_TRUE(has(shapes, "mat1 and mat2 shapes cannot be multiplied")) << shapes;
  EXPECT_FALSE(has(shapes, "Exception raised")) << shapes;
  EXPECT_FALSE(has(shapes, "\n")) << shapes;
  EXPECT_EQ(said([] { throw std::bad_alloc(); }), "out of memory");
  EXPECT_EQ(said([] { throw std::runtime_error("CUDA out of memory. Tried to allocate 2.50 GiB (GPU 0; 1 GiB ...)"); }),
            "out of memory on the GPU: 2.5 GiB could not be allocated");
  EXPECT_EQ(said([] { throw std::runtime_error("one\nException raised from two"); }), "one");
}

}  // namespace
}  // namespace mhla::ops
