// Sequences over several processes, which are threads here: the bits of one process through autograd, and rows across
// the cut with their gradients.
#include "mhla/ops/context_parallel.h"

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

// What the threads exchange.
class Table {
 public:
  explicit Table(std::int64_t size) : rows_(static_cast<std::size_t>(size)) {}
  std::vector<at::Tensor> gather(std::int64_t rank, const at::Tensor& own) {
    std::unique_lock lock(mutex_);
    rows_[static_cast<std::size_t>(rank)] = own;
    meet(lock);
    std::vector<at::Tensor> all = rows_;
    meet(lock);  // before anybody brings the next
    return all;
  }

 private:
  void meet(std::unique_lock<std::mutex>& lock) {
    const std::int64_t turn = turn_;
    if (++here_ == static_cast<std::int64_t>(rows_.size())) {
      here_ = 0, ++turn_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return turn_ != turn; });
    }
  }
  std::vector<at::Tensor> rows_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::int64_t here_ = 0, turn_ = 0;
};

class Threads : public ContextGroup {
 public:
  Threads(Table& table, std::int64_t rank, std::int64_t size) : table_(table), rank_(rank), size_(size) {}
  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  at::Tensor gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) override {
    if (own.size(0) != counts[static_cast<std::size_t>(rank_)]) fail("gather: ", own.size(0), " rows");
    return at::cat(table_.gather(rank_, own), 0);
  }
  at::Tensor exchange(const at::Tensor& own, const std::vector<std::int64_t>& send,
                      const std::vector<std::int64_t>& receive) override {
    const auto me = static_cast<std::size_t>(rank_);
    std::vector<at::Tensor> mine;
    for (const at::Tensor& cut : table_.gather(rank_, at::tensor(send, at::kLong))) counts_.push_back(cut);
    const std::vector<at::Tensor> all = table_.gather(rank_, own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto* cut = counts_[rank].data_ptr<std::int64_t>();
      mine.push_back(all[rank].narrow(0, std::accumulate(cut, cut + me, std::int64_t{0}), cut[me]));
      if (cut[me] != receive[rank]) fail("exchange: ", cut[me], " numbers of ", rank, ", expected ", receive[rank]);
    }
    counts_.clear();
    return at::cat(mine);
  }

 private:
  Table& table_;
  std::int64_t rank_, size_;
  std::vector<at::Tensor> counts_;
};

template <class F>
void on_threads(std::int64_t size, const F& work) {
  Table table(size);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Threads group(table, rank, size);
      work(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

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
  shape.on_cpu = false;
  EXPECT_EQ(plan_context(shape, whole, 4).reason, "the phases of the operator run on the CPU only");
  EXPECT_EQ(
      message_of([&] { plan_context(shape, whole, 3); }),
      "context_parallel is 3: no method fits. summaries: the phases of the operator run on the CPU only | heads: 3 "
      "processes do not divide 4 heads");
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

TEST(SharedAttention, RefusesWhatCannotBeCut) {
  Case c;
  c.form = Form::kCausal, c.N = 64, c.layout = Layout::line(32), c.normalizer = Normalizer::kNone;
  const CaseInputs case_inputs(c);
  Table table(1);
  Threads group(table, 0, 1), many(table, 0, 3);
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
