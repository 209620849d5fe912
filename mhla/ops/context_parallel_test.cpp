// Sequences over several processes, which are threads here: the bits of one process through autograd, and rows across
// the cut with their gradients.
#include "mhla/ops/context_parallel.h"

#include "mhla/core/error.h"
#include "mhla/ops/context_fixture.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

PhaseOptions whole_of(const Case& c) {
  PhaseOptions options;
  options.causal = c.form == Form::kCausal, options.layout = c.layout, options.tokens = c.N;
  options.feature_map = c.feature_map, options.normalizer = c.normalizer, options.eps = c.eps, options.scale = c.scale;
  return options;
}

// `bits_of_dmix`: of the sum over the processes; else up to rounding.
void expect_bits_of_one(const Case& c, std::int64_t size, ContextMethod method, bool bits_of_dmix) {
  SCOPED_TRACE(str(describe(c.layout), ", ", c.N, " tokens, ", size, " processes by ", name_of(method)));
  const CaseInputs case_inputs(c);
  AttentionInputs whole = inputs_of(case_inputs);
  const std::vector<at::Tensor> leaves = require_gradients(whole);
  const at::Tensor dout = tensor_of(case_inputs.dout), out = run_op(c, whole);
  const std::vector<at::Tensor> want = torch::autograd::grad({out}, leaves, {dout});
  std::vector<at::Tensor> tokens(static_cast<std::size_t>(size)), got(tokens);
  std::vector<std::vector<at::Tensor>> gradients(got.size());
  on_threads(size, [&](ContextGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const BlockRange range = blocks_of_rank(c.layout, c.N, group.size(), group.rank());
    tokens[rank] = at::tensor(tokens_of_blocks(BlockMap(c.layout, c.N), range.first, range.blocks), at::kLong);
    const auto part = [&](const at::Tensor& x) {
      return x.defined() ? x.detach().index_select(1, tokens[rank]) : at::Tensor();
    };
    AttentionInputs in{
        part(whole.q), part(whole.k), part(whole.v), whole.mix.detach(), part(whole.q_den), part(whole.k_den), {}};
    const std::vector<at::Tensor> inputs = require_gradients(in);
    const at::Tensor y = shared_attention(in, whole_of(c), group, method);
    got[rank] = y.detach();
    gradients[rank] = torch::autograd::grad({y}, inputs, {part(dout)});
  });
  const at::Tensor raster = at::cat(tokens).argsort();
  const auto joined = [&](const std::vector<at::Tensor>& pieces) { return at::cat(pieces, 1).index_select(1, raster); };
  EXPECT_TRUE(at::equal(joined(got), out.detach()));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    std::vector<at::Tensor> pieces;
    for (const auto& of_rank : gradients) pieces.push_back(of_rank[i]);
    if (i != 3) {
      EXPECT_TRUE(at::equal(joined(pieces), want[i])) << "gradient " << i;
      continue;
    }
    const at::Tensor sum = at::stack(pieces).sum(0);
    if (bits_of_dmix)
      EXPECT_TRUE(at::equal(sum, want[i])) << "dmix";
    else
      EXPECT_LE((sum - want[i]).norm().item<double>(), 1e-6 * want[i].norm().item<double>()) << "dmix";
  }
}

TEST(SharedAttention, HasTheBitsOfOneProcess) {
  for (const bool normalized : {false, true}) {
    Case c;
    c.form = Form::kCausal, c.B = 2, c.N = 330, c.H = 4, c.Hkv = 2, c.D = 16, c.E = 24, c.layout = Layout::line(32);
    c.normalizer = normalized ? Normalizer::kPaper : Normalizer::kNone;
    for (const std::int64_t size : {1, 3}) expect_bits_of_one(c, size, ContextMethod::kSummaries, true);
  }
}

TEST(SharedAttention, ByHeadsHasThemToo) {
  Case c;
  c.form = Form::kCausal, c.B = 2, c.N = 330, c.H = 4, c.Hkv = 2, c.D = 16, c.E = 24, c.layout = Layout::line(32);
  c.normalizer = Normalizer::kPaper;
  expect_bits_of_one(c, 2, ContextMethod::kHeads, false);  // one mix: its gradient is a sum over heads
  c.per_head = true;
  expect_bits_of_one(c, 2, ContextMethod::kHeads, true);
  c.form = Form::kBidirectional, c.H = c.Hkv = 4, c.layout = Layout::grid2d(20, 18, 2, 3), c.N = 360;
  expect_bits_of_one(c, 2, ContextMethod::kHeads, true);  // whole rows of blocks: tokens are consecutive
  expect_bits_of_one(c, 4, ContextMethod::kHeads, true);  // more processes than rows of blocks: they are not
  c.normalizer = Normalizer::kOfficial;
  expect_bits_of_one(c, 2, ContextMethod::kAuto, true);  // summaries cannot
}

TEST(ContextPlan, TakesWhatSendsFewerBytes) {
  PhaseOptions whole;
  whole.causal = true, whole.layout = Layout::line(256), whole.tokens = 65536, whole.normalizer = Normalizer::kNone;
  ContextShape shape{.H = 4, .Hkv = 4, .D = 128, .E = 256, .element = 2};
  const ContextPlan heads = plan_context(shape, whole, 4);
  EXPECT_EQ(heads.method, ContextMethod::kHeads);
  EXPECT_EQ(heads.bytes, 144 << 20);  // docs/scaling.md
  whole.layout = Layout::line(1024), whole.tokens = 1 << 20;
  const ContextPlan summaries = plan_context(shape, whole, 4);
  EXPECT_EQ(summaries.method, ContextMethod::kSummaries);
  EXPECT_EQ(summaries.bytes, 768 << 20);
  EXPECT_EQ(summaries.values, 3 * (1 << 20) / 1024 / 4 * 4 * 128 * 256);  // (1 - 1/P) B M Hkv D E
  EXPECT_EQ(plan_context(shape, whole, 3).reason, "3 processes do not divide 4 heads");
  PhaseOptions clip;  // wan_480p: one process has 12 frames, the other 9, and what one sends less forward it sends back
  clip.layout = Layout::grid3d({21, 30, 50}, {7, 3, 5}), clip.tokens = 31500;
  EXPECT_EQ(plan_context({.H = 12, .Hkv = 12, .D = 128, .E = 128}, clip, 2, ContextMethod::kHeads).bytes, 387072000);
  shape.on_cpu = false;
  EXPECT_EQ(plan_context(shape, whole, 4).method, ContextMethod::kHeads);  // through faster kernels there
  EXPECT_EQ(plan_context(shape, whole, 3).method, ContextMethod::kSummaries);
  shape.element = 8;
  EXPECT_EQ(plan_context(shape, whole, 4).reason, "the phases of the operator take f64 on the CPU only");
  whole.normalizer = Normalizer::kOfficial;
  EXPECT_EQ(message_of([&] { plan_context(shape, whole, 3); }),
            "context_parallel is 3: no method fits. summaries: the official normaliser reads the queries of every "
            "block | heads: 3 processes do not divide 4 heads");
}

TEST(RowsBefore, CrossTheCutAndComeBack) {
  const at::Tensor x = at::arange(2 * 9 * 2, at::kFloat).view({2, 9, 2});
  std::vector<at::Tensor> before(3), gradient(3);
  on_threads(3, [&](ContextGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const at::Tensor mine = x.narrow(1, 3 * group.rank(), 3).clone().requires_grad_();
    const at::Tensor y = rows_before(mine, 2, group);
    before[rank] = y.detach();
    const at::Tensor weights = at::full({}, 1.0 + static_cast<double>(group.rank()));
    gradient[rank] = torch::autograd::grad({(y * weights).sum()}, {mine})[0];
  });
  EXPECT_TRUE(at::equal(before[0], at::zeros({2, 2, 2})));
  EXPECT_TRUE(at::equal(before[1], x.narrow(1, 1, 2)));
  EXPECT_TRUE(at::equal(before[2], x.narrow(1, 4, 2)));
  const auto rows = [](const at::Tensor& g) { return g.select(0, 0).select(1, 0); };
  EXPECT_TRUE(at::equal(rows(gradient[0]), at::tensor({0.0f, 2.0f, 2.0f})));  // read by rank 1, whose weight is 2
  EXPECT_TRUE(at::equal(rows(gradient[1]), at::tensor({0.0f, 3.0f, 3.0f})));
  EXPECT_TRUE(at::equal(rows(gradient[2]), at::zeros({3})));
}

// A convolution over a grid whose rows are cut between processes, and a loss of all of its rows, against one process.
TEST(SharedGridConv, ReadsAcrossTheCut) {
  at::manual_seed(1);
  const std::vector<std::int64_t> grid{7, 3, 2};
  const Layout layout = Layout::grid3d({7, 3, 2}, {3, 1, 1});  // 3, 3 and 1 slices
  const at::Tensor x = at::randn({2, 42, 4}), base = at::randn({2, 42, 4}), gate = at::randn({2, 42, 4});
  const at::Tensor weight = at::randn({4, 1, 3, 3, 3}), bias = at::randn({4}), d = at::randn({2, 42, 4});
  const auto leaf = [](const at::Tensor& y) { return y.detach().clone().requires_grad_(); };
  const at::Tensor whole_x = leaf(x), whole_weight = leaf(weight), whole_gate = leaf(gate);
  const at::Tensor want = grid_conv({whole_x, whole_weight, bias, base, whole_gate}, grid);
  const std::vector<at::Tensor> wanted = torch::autograd::grad({want}, {whole_x, whole_gate, whole_weight}, {d});
  std::vector<at::Tensor> got(3), dx(3), dgate(3), dweight(3);
  on_threads(3, [&](ContextGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const TokenRange mine = tokens_of_rank(layout, 42, 3, group.rank());
    const auto part = [&](const at::Tensor& y) { return leaf(y.narrow(1, mine.first, mine.count)); };
    const at::Tensor px = part(x), pgate = part(gate), pweight = leaf(weight);
    const at::Tensor y = shared_grid_conv({px, pweight, bias, part(base), pgate}, grid, group);
    got[rank] = all_rows(y, {18, 18, 6}, group);
    const std::vector<at::Tensor> gradients = torch::autograd::grad({(got[rank] * d).sum()}, {px, pgate, pweight});
    dx[rank] = gradients[0], dgate[rank] = gradients[1], dweight[rank] = gradients[2];
  });
  const auto expect_close = [](const at::Tensor& a, const at::Tensor& b, const char* name) {
    EXPECT_LE((a - b).norm().item<double>(), 1e-6 * b.norm().item<double>()) << name;
  };
  for (const at::Tensor& all : got) expect_close(all, want, "out");
  expect_close(at::cat(dx, 1) / 3, wanted[0], "dx");
  expect_close(at::cat(dgate, 1) / 3, wanted[1], "dgate");
  expect_close((dweight[0] + dweight[1] + dweight[2]) / 3, wanted[2], "dweight");
  EXPECT_EQ(message_of([&] { tokens_of_rank(Layout::grid2d(6, 6, 2, 3), 36, 3, 0); }),
            "tokens_of_rank: 3 processes for 2d grid 6x6 blocks 2x3, expected at most as many as blocks along its "
            "first axis");
}

TEST(SharedAttention, RefusesWhatCannotBeCut) {
  Case c;
  c.form = Form::kCausal, c.N = 64, c.layout = Layout::line(32), c.normalizer = Normalizer::kNone;
  const CaseInputs case_inputs(c);
  ContextTable table(1);
  ThreadContext group(table, 0, 1), many(table, 0, 3);
  AttentionInputs in = inputs_of(case_inputs);
  PhaseOptions options;
  options.causal = true, options.layout = c.layout, options.tokens = c.N, options.normalizer = c.normalizer;
  EXPECT_EQ(message_of([&] { shared_attention(in, options, many); }),
            "blocks_of_rank: 3 processes for 2 blocks, expected 1 to 2");
  in.cu_seqlens = at::tensor({0, 64}, at::kLong);
  EXPECT_EQ(message_of([&] { shared_attention(in, options, group); }),
            "shared_attention: cu_seqlens is given: packed sequences cannot be cut between processes");
}

}  // namespace
}  // namespace mhla::ops
