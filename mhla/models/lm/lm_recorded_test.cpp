// Whole language models against recorded numbers: logits in one pass and token by token, gradients, and what is
// refused.
#include "mhla/models/lm/lm_recorded.h"

#include <gtest/gtest.h>

#include "mhla/models/recorded_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

constexpr const char* kLmCases = "language/lm";

TEST(LmRecorded, LogitsAndGradientsComeBack) { expect_recorded_cases(kLmCases, 11, lm_recorded(), 2e-5); }

// All cases but the single chunk end inside a chunk or with the context, and have gradients and a stream.
TEST(LmRecorded, CasesHaveWhatTheyAreFor) {
  for (const std::string& name : recorded_names(golden_file(kLmCases))) {
    const RecordedCase c = read_recorded(golden_file(kLmCases), name);
    const std::int64_t tokens = c.index("in.tokens").size(1);
    EXPECT_TRUE(tokens % c.integer("chunk") != 0 || tokens == c.integer("context")) << name;
    EXPECT_LT(c.integer("prompt"), tokens) << name;
    for (const char* tensor : {"out", "out.streamed", "dout", "grad.param.model.layers.0.attn.qkv.weight"})
      EXPECT_TRUE(c.has(tensor)) << name << " " << tensor;
  }
}

TEST(LmRecorded, SayWhatIsWrong) {
  const auto said = [](const std::function<void(RecordedCase&)>& change) {
    RecordedCase c = read_recorded(golden_file(kLmCases), "lm");
    change(c);
    return message_of([&] { recompute(lm_recorded(), "lm", c); });
  };
  const auto set = [](const char* key, const JsonValue& value) {
    return [=](RecordedCase& c) { c.config.set(key, value); };
  };
  const auto put = [](const char* name, const torch::Tensor& value) {
    return [=](RecordedCase& c) { c.tensors[name] = value; };
  };
  const auto without = [](const char* name) { return [=](RecordedCase& c) { c.tensors.erase(name); }; };
  EXPECT_EQ(said(set("vocabs", 17)), "metadata: 'vocabs' is unknown, nearest is 'vocab'");
  EXPECT_EQ(said(set("heads", 3)), "metadata: config: dim is 8, expected a multiple of heads = 3");
  EXPECT_EQ(said(set("prompt", 14)), "metadata 'prompt' is 14, expected at most the 13 tokens of in.tokens");
  EXPECT_EQ(said(set("prompt", 0)), "metadata 'prompt' is 0, expected a positive integer");
  EXPECT_EQ(said(set("vocab", 18)), "param.model.embeddings.weight has shape [17, 8], expected [18, 8]");
  EXPECT_EQ(
      said(set("layers", 1)).rfind("load_weights: missing: nothing; left over: model.layers.1.attn.gate.weight", 0),
      0u);
  EXPECT_EQ(said(without("in.tokens")), "in.tokens is missing");
  EXPECT_EQ(said(without("param.model.embeddings.weight")), "param.model.embeddings.weight is missing");
  EXPECT_EQ(said(without("param.model.norm.weight")), "load_weights: missing: model.norm.weight; left over: nothing");
  EXPECT_EQ(said(put("param.model.norm.weight", torch::ones({9}))),
            "load_weights: missing: nothing; left over: nothing; model.norm.weight has shape [9], expected [8]");
  EXPECT_EQ(said(put("dout", torch::ones({2, 13}))), "dout has shape [2, 13], expected [2, 13, 17]");
  EXPECT_EQ(said(put("in.tokens", torch::ones({13}))),
            "in.tokens has shape [13], expected [B, T] with at least one token");
  EXPECT_EQ(said(put("in.tokens", torch::ones({2, 0}))),
            "in.tokens has shape [2, 0], expected [B, T] with at least one token");
  EXPECT_EQ(said(put("in.tokens", torch::ones({2, 17}))),
            "plan_length: 17 tokens need 5 chunks of 4, mix has 4 rows: expected at most 16 tokens, or a length policy "
            "truncate_left, rechunk or extend");
  EXPECT_EQ(said(put("in.tokens", torch::full({2, 13}, 1.5))), "in.tokens has fractions, expected integers");
  EXPECT_EQ(said(put("in.tokens", torch::full({2, 13}, 17))), "in.tokens has 17, expected 0 to 16");
  EXPECT_EQ(said(put("in.tokens", torch::full({2, 13}, -1))), "in.tokens has -1, expected 0 to 16");
}

}  // namespace
}  // namespace mhla
