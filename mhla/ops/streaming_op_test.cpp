// The streaming state as PyTorch sees it, through its registered methods: bits of one causal pass, forks, rollback,
// pickling, refusals.
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

constexpr std::int64_t kH = 4, kHkv = 2, kD = 16, kE = 24, kChunk = 8, kRows = 6;

// Calls a method of the class by name, as Python does.
class State {
 public:
  explicit State(const at::Tensor& mix, std::int64_t batch = 2)
      : object_(
            make(c10::Stack{c10::IValue(), mix, batch, kH, kHkv, kD, kE, kChunk, static_cast<std::int64_t>(at::kFloat),
                            "relu", "none", 1e-6, c10::IValue(), "error", false, c10::IValue()})) {}
  explicit State(c10::IValue object) : object_(std::move(object)) {}

  template <class... Arguments>
  c10::IValue call(const char* method, Arguments&&... arguments) const {
    c10::Stack stack{object_, c10::IValue(std::forward<Arguments>(arguments))...};
    type()->getMethod(method).run(stack);
    return stack.empty() ? c10::IValue() : stack.back();
  }
  [[nodiscard]] at::Tensor append(const AttentionInputs& in, std::int64_t begin, std::int64_t end) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, end - begin); };
    return call("append", part(in.q), part(in.k), part(in.v), c10::IValue(), c10::IValue()).toTensor();
  }
  [[nodiscard]] std::vector<std::int64_t> positions() const { return call("positions").toIntVector(); }
  [[nodiscard]] State pickled() const {
    c10::IValue saved = call("__getstate__");
    c10::Stack stack{empty(), std::move(saved)};
    c10::IValue loaded = stack[0];
    type()->getMethod("__setstate__").run(stack);
    return State(loaded);
  }

 private:
  static c10::ClassTypePtr type() { return torch::getCustomClass("__torch__.torch.classes.mhla.StreamingState"); }
  static c10::IValue empty() { return c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type()), 1); }
  static c10::IValue make(c10::Stack stack) {
    c10::IValue object = stack[0] = empty();
    type()->getMethod("__init__").run(stack);
    return object;
  }
  c10::IValue object_;
};

AttentionInputs random_tokens(std::int64_t T) {
  at::manual_seed(5);
  return {at::randn({2, T, kH, kD}),
          at::randn({2, T, kHkv, kD}),
          at::randn({2, T, kHkv, kE}),
          at::rand({kRows, kRows}),
          {},
          {},
          {}};
}

at::Tensor one_pass(const AttentionInputs& in) {
  return chunkwise(in, {.chunk = kChunk, .feature_map = FeatureMap::kRelu});
}

TEST(Streaming, HasTheBitsOfOnePass) {
  const AttentionInputs in = random_tokens(37);
  const at::Tensor want = one_pass(in);
  const State state(in.mix);
  std::vector<at::Tensor> parts;
  const std::int64_t cuts[] = {0, 5, 6, 7, 8, 21, 21, 24, 37};
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) parts.push_back(state.append(in, cuts[i], cuts[i + 1]));
  EXPECT_TRUE(at::equal(at::cat(parts, 1), want));
  EXPECT_EQ(state.positions(), (std::vector<std::int64_t>{37, 37}));
}

TEST(Streaming, ForksAndGoesBack) {
  const AttentionInputs in = random_tokens(30);
  const at::Tensor want = one_pass(in);
  const State state(in.mix);
  (void)state.append(in, 0, 20);
  const State fork(state.call("select", std::vector<std::int64_t>{1, 0}));
  EXPECT_TRUE(at::equal(state.append(in, 20, 30), want.narrow(1, 20, 10)));
  AttentionInputs swapped = in;
  for (at::Tensor* x : {&swapped.q, &swapped.k, &swapped.v}) *x = x->flip(0);
  EXPECT_TRUE(at::equal(fork.append(swapped, 20, 30), want.narrow(1, 20, 10).flip(0)));
  state.call("rollback", std::int64_t{6});
  EXPECT_TRUE(at::equal(state.append(in, 24, 30), want.narrow(1, 24, 6)));
  state.call("reset");
  EXPECT_TRUE(at::equal(state.append(in, 0, 30), want));
}

TEST(Streaming, IsPickled) {
  const AttentionInputs in = random_tokens(30);
  const State state(in.mix);
  (void)state.append(in, 0, 19);
  const State loaded = state.pickled();
  EXPECT_EQ(loaded.positions(), state.positions());
  EXPECT_TRUE(at::equal(loaded.append(in, 19, 30), state.append(in, 19, 30)));
}

TEST(Streaming, SaysWhatIsWrong) {
  const AttentionInputs in = random_tokens(60);
  const State state(in.mix);
  EXPECT_TRUE(has(message_of([&] { (void)state.append(in, 0, 60); }), "streaming_append: state 0 is at position 0"));
  EXPECT_EQ(state.positions(), (std::vector<std::int64_t>{0, 0}));
  EXPECT_TRUE(
      has(message_of([&] { state.call("rollback", std::int64_t{1}); }), "rollback: tokens is 1, expected 0 to 0"));
  EXPECT_TRUE(
      has(message_of([&] { state.call("select", std::vector<std::int64_t>{2}); }), "sequence is 2, expected 0 to 1"));
  AttentionInputs learned = in;
  learned.q = in.q.clone().requires_grad_();
  EXPECT_TRUE(
      has(message_of([&] { (void)state.append(learned, 0, 1); }), "q requires a gradient, but streaming has none"));
  EXPECT_TRUE(has(message_of([&] { State(in.mix, 0); }), "StreamingState: batch is 0, expected at least 1"));
}

}  // namespace
}  // namespace mhla::ops
