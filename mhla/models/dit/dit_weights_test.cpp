// Weights of diffusion transformers: published names, other sizes, other attentions, folders, and what does not fit.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/models/dit/dit_fixture.h"
#include "mhla/models/weights_file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

void expect_same(const Weights& a, const Weights& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    EXPECT_TRUE(torch::equal(b.at(name), value)) << name;
  }
}

std::vector<DitConfig> of_every_kind() {
  std::vector<DitConfig> all{small_dit("softmax"), small_dit("mhla"), small_dit("linear"), small_dit("gla", "dig_s_2"),
                             small_dit("mhla", "dig_s_2")};
  all[1] = with_variant(all[1], "both"), all[1].head_norm = all[1].qk_norm = true;
  all[3].depth = 4;
  DitConfig official = dit_config("dit_d32", "mhla", /*official=*/true);
  official.image = {8, 8}, official.blocks = {2, 2}, official.dim = 32, official.depth = 2, official.heads = 2;
  official.dwconv = 3;
  all.push_back(official);
  return all;
}

TEST(DitWeights, GoOutAndComeBackUnderPublishedNames) {
  for (const DitConfig& c : of_every_kind()) {
    SCOPED_TRACE(str(c.family, " ", c.attention, " ", c.official));
    Dit model = make_dit(c);
    const Weights published = published_weights(*model);
    EXPECT_EQ(dit_names_of(published), DitNames::kOriginal);
    torch::manual_seed(9);
    Dit other(c);
    load_published(*other, published);
    expect_same(state_of(*other), state_of(*model));
    // The shapes tell what there is, but for the heads.
    DitConfig start = dit_config("dit_d32", "mhla");
    start.heads = c.heads, start.image = c.image, start.blocks = c.blocks;
    DitConfig found = dit_config_for(published, start);
    found.model = c.model, found.mlp_inner = c.mlp_inner;
    EXPECT_EQ(write_json(fields_to_json(found)), write_json(fields_to_json(c)));
  }
}

TEST(DitWeights, HaveTheNamesOfTheirFiles) {
  Dit model = make_dit(of_every_kind()[1]);
  const Weights published = published_weights(*model);
  for (const char* name : {"to_qkv.weight", "to_qkv.bias", "to_out.0.weight", "to_out.0.bias", "lepe.weight",
                           "g.weight", "g_norm", "piece_attn.conv.weight", "q_norm.weight"})
    EXPECT_EQ(published.count(str("blocks.1.attn.", name)), 1u) << name;
  EXPECT_EQ(published.at("blocks.0.attn.piece_attn.conv.weight").sizes(), (std::vector<std::int64_t>{6, 6, 1, 1}));
  EXPECT_EQ(published.count("pos_embed"), 1u);
  Dit dig = make_dit(of_every_kind()[3]);
  const Weights names = published_weights(*dig);
  EXPECT_EQ(names.at("blocks.0.mlp.gate_proj.weight").size(0), 2 * names.at("blocks.0.mlp.down_proj.weight").size(1));
  EXPECT_EQ(names.count("blocks.0.attn.gk_proj.1.bias"), 1u);
  EXPECT_EQ(names.count("blocks.0.dw_conv.weight"), 1u);
}

TEST(DitWeights, GoThroughTheNamesOfDiffusers) {
  DitConfig c = small_dit("softmax");
  c.freq_shift = 1, c.norm2_eps = 1e-5;
  Dit model = make_dit(c);
  const Weights published = published_weights(*model, DitNames::kDiffusers);
  EXPECT_EQ(dit_names_of(published), DitNames::kDiffusers);
  EXPECT_EQ(published.count("transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.weight"), 1u);
  EXPECT_EQ(published.count("pos_embed"), 0u);
  Dit other(c);
  load_published(*other, published);
  expect_same(state_of(*other), state_of(*model));
  DitConfig start = dit_config("dit_d32", "mhla");
  start.heads = c.heads, start.image = c.image, start.blocks = c.blocks;
  DitConfig found = dit_config_for(published, start);
  EXPECT_FALSE(found.own_embedders);
  EXPECT_EQ(found.freq_shift, 1);
  EXPECT_EQ(found.norm2_eps, 1e-5);
  // Blocks that disagree, as diffusers can train them.
  Weights apart = published;
  const std::string name = "transformer_blocks.1.norm1.emb.class_embedder.embedding_table.weight";
  apart[name] = apart[name] + 1;
  EXPECT_TRUE(has(message_of([&] { load_published(*other, apart); }), "differs from that of another block"));
  DitConfig own = dit_config_for(apart, start);
  EXPECT_TRUE(own.own_embedders);
  Dit wide(own);
  wide->eval();
  load_published(*wide, apart);
  expect_same(published_weights(*wide, DitNames::kDiffusers), apart);
  EXPECT_GT(distance(run(wide, inputs_for(c)), run(model, inputs_for(c))), 1e-3);
}

TEST(DitWeights, AreRefusedWhereTheyDoNotFit) {
  DitConfig c = small_dit("mhla");
  Dit model = make_dit(c);
  const Weights before = [&] {
    Weights copy = state_of(*model);
    for (auto& [name, value] : copy) value = value.clone();
    return copy;
  }();
  const auto said = [&](const Weights& weights) { return message_of([&] { load_published(*model, weights); }); };
  Weights published = published_weights(*model);
  published["cls_token"] = torch::zeros({1});
  published.erase("blocks.1.attn.to_qkv.bias");
  EXPECT_EQ(said(published), "load_published: missing: blocks.1.attn.qkv.bias; left over: cls_token");
  published = published_weights(*model);
  published["blocks.0.attn.piece_attn.conv.weight"] = torch::zeros({6, 6});
  EXPECT_TRUE(has(said(published), "piece_attn.conv.weight has shape [6, 6], expected [M, M, 1, 1]"));
  DitConfig softmax = small_dit("softmax");
  EXPECT_TRUE(has(said(published_weights(*make_dit(softmax))), "missing: blocks.0.attn.mix"));
  softmax.freq_shift = 1;
  EXPECT_TRUE(
      has(said(published_weights(*make_dit(softmax), DitNames::kDiffusers)), "expected dit with plain softmax"));
  EXPECT_TRUE(has(said({{"layers.0.weight", torch::zeros({1})}}), "no name starts with 'blocks.'"));
  expect_same(state_of(*model), before);
  // Names of another function.
  EXPECT_TRUE(has(message_of([&] { published_weights(*make_dit(softmax)); }), "freq_shift is 1, expected 0"));
  EXPECT_TRUE(has(message_of([&] { published_weights(*model, DitNames::kDiffusers); }), "freq_shift is 0, expected 1"));
  DitConfig own = small_dit("softmax");
  own.own_embedders = true;
  EXPECT_TRUE(has(message_of([&] { published_weights(*make_dit(own)); }), "own_embedders is true"));
}

// Samples of one colour, without positions and with equal coefficients: neither the size nor the blocks can matter.
TEST(DitWeights, AtAnotherSizeComputeTheSameOnFlatSamples) {
  DitConfig c = small_dit();
  Dit model = make_dit(c);
  {
    const torch::NoGradGuard no_gradient;
    for (const auto& item : model->named_parameters()) {
      if (has(item.key(), ".mix")) item.value().fill_(0.25);
      if (item.key() == "pos_embed") item.value().fill_(0.5);  // not the formula: interpolated
    }
  }
  const torch::Tensor colour = torch::randn({1, 3, 1, 1}), t = torch::tensor({300.0f});
  const torch::Tensor y = torch::tensor({2}, torch::kLong);
  const auto pixel = [&](Dit& any) {
    const auto& image = any->config().image;
    return any->forward(colour.expand({1, 3, image[0], image[1]}), t, y).narrow(2, 0, 2).narrow(3, 0, 2);
  };
  const torch::Tensor want = pixel(model);
  for (const auto& [rows, columns, blocks] :
       {std::tuple{12, 8, std::array<std::int64_t, 2>{3, 2}}, {24, 8, {3, 2}}, {16, 26, {4, 5}}, {2, 2, {1, 1}}}) {
    DitConfig other = c;
    other.blocks = {1, 1};
    other = at_size(other, rows, columns);
    other.blocks = blocks;
    Dit turned = resized(*model, other);
    EXPECT_LE(distance(pixel(turned), want), 1e-5) << rows << "x" << columns;
  }
}

TEST(DitWeights, KeepTheScaleOfPositions) {
  const DitConfig c = small_dit();
  const DitConfig larger = at_size(c, 24, 16);
  EXPECT_EQ(larger.pos_base, (std::array<std::int64_t, 2>{6, 4}));
  Dit model = make_dit(c), turned = resized(*model, larger);
  const torch::Tensor from = dit_positions(c), to = state_of(*turned).at("pos_embed")[0];
  // Row 4, column 2 of 12 x 8 lies where row 2, column 1 of 6 x 4 does.
  EXPECT_LE((to[4 * 8 + 2] - from[2 * 4 + 1]).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(at_size(larger, 12, 8), c);
  DitConfig wider = c;
  wider.dim = 64;
  EXPECT_TRUE(has(message_of([&] { resized(*model, wider); }), "in more than image, blocks and positions"));
}

TEST(DitWeights, OfLinearAttentionStayTheSameFunctionWithUniformMix) {
  DitConfig c = with_variant(small_dit("linear"), "both");
  Dit model = make_dit(c);
  DitConfig mhla = c;
  mhla.attention = "mhla", mhla.mix_init = "uniform";
  Dit turned = with_attention(*model, mhla);
  const DitInputs in = inputs_for(c);
  EXPECT_LE(distance(run(turned, in), run(model, in)), 1e-4);
  mhla.mix_init = "linear";
  Dit local = with_attention(*model, mhla);
  EXPECT_GT(distance(run(local, in), run(model, in)), 1e-3);
}

TEST(DitWeights, OfSoftmaxAttentionGoIntoMhla) {
  DitConfig c = small_dit("softmax");
  Dit model = make_dit(c);
  DitConfig mhla = small_dit("mhla");
  mhla.lepe = 3;
  Dit turned = with_attention(*model, mhla);
  const Weights from = state_of(*model), to = state_of(*turned);
  EXPECT_TRUE(torch::equal(to.at("blocks.1.attn.qkv.weight"), from.at("blocks.1.attn.qkv.weight")));
  EXPECT_TRUE(torch::equal(to.at("blocks.1.attn.out.bias"), from.at("blocks.1.attn.proj.bias")));
  EXPECT_TRUE(torch::equal(to.at("final_layer.linear.weight"), from.at("final_layer.linear.weight")));
  EXPECT_EQ(to.at("blocks.0.attn.lepe.weight").sum().item<double>(), 32.0);  // the identity, as it starts
  EXPECT_TRUE(has(message_of([&] { with_attention(*turned, c); }), "from mhla to softmax"));
  mhla.depth = 3;
  EXPECT_TRUE(has(message_of([&] { with_attention(*model, mhla); }), "in more than its attention"));
}

TEST(DitWeights, LieInAFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "dit_weights_test";
  std::filesystem::remove_all(folder);
  for (const DitConfig& c : of_every_kind()) {
    Dit model = make_dit(c);
    save_dit(*model, folder);
    Dit other = load_dit(folder);
    other->eval();
    EXPECT_EQ(other->config(), c);
    EXPECT_TRUE(torch::equal(run(other, inputs_for(c)), run(model, inputs_for(c))));
  }
  write_weights(folder / "model.safetensors", {{"x", torch::zeros({2})}});
  EXPECT_TRUE(has(message_of([&] { load_dit(folder); }), "model.safetensors: load_state: missing: "));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mhla
