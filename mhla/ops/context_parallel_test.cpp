// Sequences over several processes, which are threads here: the bits of one process through autograd, and rows across
// the cut with their gradients.
#include "mhla/ops/context_parallel.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

// What the threads exchange.
class Table {
 public:
  explicit Table(std::int64_t size) : rows_(static_cast<std::size_t>(size)) {}
  at::Tensor gather(std::int64_t rank, const at::Tensor& own) {
    std::unique_lock lock(mutex_);
    rows_[static_cast<std::size_t>(rank)] = own;
    meet(lock);
    const at::Tensor all = at::cat(rows_, 0);
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
    return table_.gather(rank_, own);
  }

 private:
  Table& table_;
  std::int64_t rank_, size_;
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

TEST(SharedAttention, HasTheBitsOfOneProcess) {
  for (const bool normalized : {false, true}) {
    Case c;
    c.form = Form::kCausal, c.B = 2, c.N = 330, c.H = 4, c.Hkv = 2, c.D = 16, c.E = 24, c.layout = Layout::line(32);
    c.normalizer = normalized ? Normalizer::kPaper : Normalizer::kNone;
    const CaseInputs case_inputs(c);
    AttentionInputs whole = inputs_of(case_inputs);
    const std::vector<at::Tensor> leaves = require_gradients(whole);
    const at::Tensor dout = tensor_of(case_inputs.dout), out = run_op(c, whole);
    const std::vector<at::Tensor> want = torch::autograd::grad({out}, leaves, {dout});
    for (const std::int64_t size : {1, 3}) {
      std::vector<at::Tensor> got(static_cast<std::size_t>(size)), dmix(got);
      std::vector<std::vector<at::Tensor>> gradients(got.size());
      on_threads(size, [&](ContextGroup& group) {
        const TokenRange mine = tokens_of_rank(c.layout.block_size, c.N, group.size(), group.rank());
        const auto part = [&](const at::Tensor& x) { return x.detach().narrow(1, mine.first, mine.count); };
        AttentionInputs in{part(whole.q), part(whole.k), part(whole.v), whole.mix.detach(), {}, {}, {}};
        const std::vector<at::Tensor> inputs = require_gradients(in);
        PhaseOptions options;
        options.causal = true, options.layout = c.layout, options.tokens = c.N, options.normalizer = c.normalizer;
        options.eps = c.eps;
        const at::Tensor y = shared_attention(in, options, group);
        const auto rank = static_cast<std::size_t>(group.rank());
        got[rank] = y.detach();
        gradients[rank] = torch::autograd::grad({y}, inputs, {part(dout)});
      });
      EXPECT_TRUE(at::equal(at::cat(got, 1), out.detach())) << size;
      for (std::size_t i = 0; i < 3; ++i) {
        std::vector<at::Tensor> pieces;
        for (const auto& of_rank : gradients) pieces.push_back(of_rank[i]);
        EXPECT_TRUE(at::equal(at::cat(pieces, 1), want[i])) << "gradient " << i << " of " << size;
      }
      at::Tensor sum = gradients[0][3].clone();
      for (std::size_t rank = 1; rank < gradients.size(); ++rank) sum += gradients[rank][3];
      EXPECT_TRUE(at::equal(sum, want[3])) << "dmix of " << size;
    }
  }
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
