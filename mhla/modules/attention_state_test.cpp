// Streaming of every causal attention: any split gives what one pass gives, alone or in a batch of sequences at
// different places; forks, joins and files go on where they stood.
#include "mhla/modules/attention_state.h"

#include <gtest/gtest.h>

#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

constexpr std::int64_t kDim = 64;

AnyAttention layer_of(std::string_view name, torch::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(3);
  AttentionConfig c;
  c.dim = kDim, c.heads = 2, c.causal = true, c.chunk = 8, c.max_tokens = 256, c.rope = true;
  AnyAttention layer = make_attention(name, c);
  layer->to(dtype);
  return layer;
}

const std::vector<std::string_view> kCausal{"mhla", "softmax", "linear", "gla", "mamba", "mamba2", "gdn"};

torch::Tensor tokens(std::int64_t B, std::int64_t N) { return torch::randn({B, N, kDim}); }

torch::Tensor in_pieces(Attention& layer, const torch::Tensor& x, AttentionState& state,
                        const std::vector<std::int64_t>& cuts) {
  std::vector<torch::Tensor> parts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    parts.push_back(layer.stream(x.narrow(1, cuts[i], cuts[i + 1] - cuts[i]), state));
  return torch::cat(parts, 1);
}

TEST(AttentionState, AnySplitIsOnePass) {
  const torch::NoGradGuard no_gradient;
  for (const std::string_view name : kCausal) {
    const AnyAttention layer = layer_of(name);
    for (const std::int64_t B : {1, 3}) {
      const torch::Tensor x = tokens(B, 150), want = layer->forward(x);
      for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{0, 150},
                                                    {0, 1, 2, 3, 150},
                                                    {0, 63, 64, 65, 130, 131, 150},
                                                    {0, 0, 70, 70, 150}}) {
        AttentionState state = layer->begin(B);
        EXPECT_LE(distance(in_pieces(*layer, x, state, cuts), want), 1e-5) << name << " B" << B << " " << cuts[1];
        EXPECT_EQ(state.positions, std::vector<std::int64_t>(static_cast<std::size_t>(B), 150)) << name;
      }
    }
  }
}

TEST(AttentionState, SequencesOfABatchStandWhereTheyAre) {
  const torch::NoGradGuard no_gradient;
  for (const std::string_view name : kCausal) {
    const AnyAttention layer = layer_of(name, torch::kDouble);
    const torch::Tensor x = tokens(3, 100).to(torch::kDouble), want = layer->forward(x);
    const std::int64_t lengths[] = {70, 1, 64};
    std::vector<AttentionState> alone;
    std::vector<torch::Tensor> rest;
    for (std::int64_t b = 0; b < 3; ++b) {
      alone.push_back(layer->begin(1));
      layer->stream(x.narrow(0, b, 1).narrow(1, 0, lengths[b]), alone.back());
      rest.push_back(x.narrow(0, b, 1).narrow(1, lengths[b], 30));
    }
    AttentionState batch = join(std::move(alone));
    EXPECT_EQ(batch.positions, (std::vector<std::int64_t>{70, 1, 64}));
    AttentionState fork = select(batch, {2, 0});
    const torch::Tensor next = torch::cat(rest);
    std::vector<std::int64_t> ones;
    for (std::int64_t t = 0; t <= 7; ++t) ones.push_back(t);
    ones.push_back(30);
    const torch::Tensor got = in_pieces(*layer, next, batch, ones);
    for (std::int64_t b = 0; b < 3; ++b)
      EXPECT_LE(distance(got[b], want[b].narrow(0, lengths[b], 30)), 1e-11) << name << " " << b;
    // The fork has not moved, and goes on by itself.
    const torch::Tensor forked = layer->stream(torch::cat({rest[2], rest[0]}), fork);
    EXPECT_LE(distance(forked[0], want[2].narrow(0, 64, 30)), 1e-11) << name;
    EXPECT_LE(distance(forked[1], want[0].narrow(0, 70, 30)), 1e-11) << name;
  }
}

TEST(AttentionState, GoesOnFromAFile) {
  const torch::NoGradGuard no_gradient;
  for (const std::string_view name : kCausal) {
    const AnyAttention layer = layer_of(name);
    const torch::Tensor x = tokens(2, 90);
    AttentionState state = layer->begin(2);
    layer->stream(x.narrow(1, 0, 75), state);
    SavedState saved;
    save(state, "layer.", saved);
    AttentionState loaded = load(saved, "layer.", layer->begin(1), "file");
    EXPECT_EQ(loaded.positions, state.positions) << name;
    const torch::Tensor rest = x.narrow(1, 75, 15);
    EXPECT_TRUE(torch::equal(layer->stream(rest, loaded), layer->stream(rest, state))) << name;
    EXPECT_GT(state.bytes(), 0) << name;
    saved.tensors["layer.positions"] = torch::full({2}, 74, torch::kLong);
    if (name == "softmax" || name == "mhla") {
      EXPECT_TRUE(has(message_of([&] { load(saved, "layer.", layer->begin(1), "file"); }), "expected")) << name;
    }
    saved.tensors.erase("layer.positions");
    EXPECT_EQ(message_of([&] { load(saved, "layer.", layer->begin(1), "file"); }), "file: layer.positions is missing");
  }
  const AnyAttention gla = layer_of("gla"), gdn = layer_of("gdn");
  SavedState saved;
  save(gla->begin(1), "", saved);
  EXPECT_TRUE(has(message_of([&] { load(saved, "", gdn->begin(1), "file"); }), "file: k_tail is missing"));
  saved.tensors["scan"] = torch::zeros({1, 2, 3, 4});
  EXPECT_EQ(message_of([&] { load(saved, "", gla->begin(1), "file"); }),
            "file: scan is Float of shape [1, 2, 3, 4], expected Float of shape [1, 2, 16, 32]");
}

TEST(AttentionState, RefusesWhatHasNoStream) {
  AttentionConfig c;
  c.dim = kDim, c.heads = 2, c.layout = Layout::grid2d(4, 4, 2, 2);
  for (const char* name : {"mhla", "softmax", "mala"}) {
    const AnyAttention layer = make_attention(name, c);
    EXPECT_TRUE(has(message_of([&] { (void)layer->begin(1); }), "causal")) << name;
  }
  const AnyAttention gla = layer_of("gla");
  EXPECT_EQ(message_of([&] { (void)gla->begin(0); }), "begin: batch is 0, expected at least 1");
  EXPECT_EQ(message_of([&] { (void)select(gla->begin(2), {2}); }), "select: sequence is 2, expected 0 to 1");
}

}  // namespace
}  // namespace mhla
