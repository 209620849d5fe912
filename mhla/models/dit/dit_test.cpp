// Diffusion transformers: the recorded numbers, sizes, every attention inside, samples of any shape, and what a
// configuration may not be.
#include "mhla/models/dit/dit.h"

#include <gtest/gtest.h>

#include "mhla/models/dit/dit_fixture.h"
#include "mhla/models/dit/dit_recorded.h"
#include "mhla/models/recorded_fixture.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(Dit, ReproducesTheRecordedNumbers) {
  for (const char* file : {"dit_model", "dit_mhla", "dig"}) {
    for (const std::string& name : recorded_names(golden_file(file)))
      expect_recorded_case(file, name, dit_recorded(), 5e-5);
  }
}

TEST(Dit, HasThePublishedParameters) {
  const auto count = [](const char* name, const char* attention, bool official = false) {
    return static_cast<std::int64_t>(size_of(dit_config(name, attention, official)).parameters);
  };
  EXPECT_EQ(count("dit_s_2", "softmax"), 32'963'360);
  EXPECT_EQ(count("dit_b_2", "softmax"), 130'512'416);
  EXPECT_EQ(count("dit_l_2", "softmax"), 458'102'816);
  EXPECT_EQ(count("dit_xl_2", "softmax"), 675'129'632);
  EXPECT_EQ(count("dig_s_2", "gla"), 33'081'632);
  EXPECT_NEAR(static_cast<double>(count("dit_s_2", "mhla", true)), 33.02e6, 0.01e6);
  EXPECT_NEAR(static_cast<double>(count("dit_xl_2", "mhla", true)), 675.5e6, 0.1e6);
  DitConfig own = dit_config("dit_xl_2", "softmax");
  own.own_embedders = true;  // 749.8 M, of which the fixed table is not stored
  EXPECT_NEAR(size_of(own).parameters - 256 * 1152, 749.8e6, 0.1e6);
}

TEST(Dit, TakesEveryAttention) {
  for (const std::string_view name : attention_names()) {
    for (const char* family : {"dit_d32", "dig_s_2"}) {
      SCOPED_TRACE(str(family, " ", name));
      DitConfig c = small_dit(std::string(name), family);
      if (!has_mlp(name)) c.depth = 24;  // where whole blocks match
      if (c.scan) c.image = {8, 8};      // where tokens end up in order at any depth
      c.cpe = 3;
      Dit model = make_dit(c);
      EXPECT_EQ(size_of(c).parameters, static_cast<double>(count_parameters(*model)));
      const DitInputs in = inputs_for(c);
      const torch::Tensor out = run(model, in);
      ASSERT_EQ(out.sizes(), (std::vector<std::int64_t>{2, 6, c.image[0], c.image[1]}));
      EXPECT_TRUE(torch::isfinite(out).all().item<bool>());
      out.square().mean().backward();
      for (const auto& item : model->named_parameters()) {
        if (!item.value().requires_grad()) continue;
        ASSERT_TRUE(item.value().grad().defined()) << item.key() << " takes no part";
        EXPECT_TRUE(torch::isfinite(item.value().grad()).all().item<bool>()) << item.key();
      }
      EXPECT_EQ(model->attention_inputs(in.x, in.t, in.y).size(), model->attention_layers().size());
    }
  }
}

TEST(Dit, HasTheSizeThatItsOptionsGive) {
  for (const char* variant : {"none", "cpe", "gate", "both"}) {
    for (const char* attention : {"mhla", "linear"}) {
      DitConfig c = with_variant(small_dit(attention), variant);
      c.head_norm = c.qk_norm = true, c.dwconv = 3, c.learn_sigma = false, c.label_dropout = 0.0;
      c.mix_per_head = c.own_embedders = true;
      Dit model = make_dit(c);
      EXPECT_EQ(size_of(c).parameters, static_cast<double>(count_parameters(*model))) << variant << " " << attention;
    }
  }
  EXPECT_GT(size_of(dit_config("dit_s_2")).kept, size_of(dit_config("dit_s_4")).kept);
  EXPECT_LT(size_of(dit_config("dit_s_2")).passing, size_of(dit_config("dit_s_2")).kept);
}

TEST(Dit, StartsAsThePublishedOne) {
  torch::manual_seed(1);
  DitConfig c = small_dit();
  c.lepe = c.dwconv = c.cpe = 3;
  Dit model(c);
  EXPECT_EQ(run(model, inputs_for(c)).abs().max().item<double>(), 0.0);  // so the first loss is 1
  const Weights weights = weights_of(*model);
  EXPECT_NEAR(weights.at("y_embedder.embedding_table.weight").std().item<double>(), 0.02, 4e-3);
  EXPECT_NEAR(weights.at("t_embedder.mlp.0.weight").std().item<double>(), 0.02, 2e-3);
  const double bound = std::sqrt(6.0 / (32 + 128));
  EXPECT_NEAR(weights.at("blocks.1.mlp.fc1.weight").abs().max().item<double>(), bound, 0.01);
  EXPECT_EQ(weights.at("blocks.1.mlp.fc1.bias").abs().max().item<double>(), 0.0);
  EXPECT_EQ(weights.at("blocks.1.dw_conv.weight").sum().item<double>(), 32.0);
  EXPECT_EQ(weights.at("blocks.1.cpe.conv.weight").abs().max().item<double>(), 0.0);
  const auto roles = param_roles(*model);
  EXPECT_EQ(roles.at("pos_embed"), ParamRole::kTable);
  EXPECT_EQ(roles.at("y_embedder.embedding_table.weight"), ParamRole::kTable);
  EXPECT_EQ(roles.at("blocks.0.attn.mix"), ParamRole::kMix);
  EXPECT_EQ(roles.at("blocks.0.mlp.fc1.weight"), ParamRole::kWeight);
  EXPECT_FALSE(model->named_parameters()["pos_embed"].requires_grad());
}

// Rows and columns are not exchanged: transposed samples with transposed positions give transposed outputs.
TEST(Dit, TreatsRowsAndColumnsAlike) {
  DitConfig c = small_dit("softmax");
  c.depth = 4, c.learn_sigma = false;
  DitConfig turned = c;
  turned.image = {8, 12};
  Dit model = make_dit(c), other = make_dit(turned);
  Weights state = state_of(*model);
  const std::int64_t half = c.dim / 2;
  const torch::Tensor table = dit_positions(turned);  // with the halves of the axes exchanged
  state["pos_embed"] = torch::cat({table.narrow(1, half, half), table.narrow(1, 0, half)}, 1).unsqueeze(0);
  state["x_embedder.proj.weight"] = state["x_embedder.proj.weight"].transpose(2, 3);
  for (const char* part : {"final_layer.linear.weight", "final_layer.linear.bias"}) {
    std::vector<std::int64_t> shape = state[part].sizes().vec(), cut{c.patch, c.patch, c.channels};
    cut.insert(cut.end(), shape.begin() + 1, shape.end());
    state[part] = state[part].reshape(cut).transpose(0, 1).reshape(shape);
  }
  load_state(*other, state);
  const DitInputs in = inputs_for(c);
  const torch::Tensor got = other->forward(in.x.transpose(2, 3).contiguous(), in.t, in.y);
  EXPECT_LE(distance(got.transpose(2, 3), run(model, in)), 1e-5);
}

// What a sample gets does not depend on the others.
TEST(Dit, GivesTheSameInAnyBatch) {
  const torch::NoGradGuard no_gradient;
  for (const char* attention : {"mhla", "linear"}) {
    const DitConfig c = with_variant(small_dit(attention), "gate");
    Dit model = make_dit(c);
    const DitInputs in = inputs_for(c, 5);
    const auto rows = [&](std::int64_t first, std::int64_t count) {
      return run(model, {in.x.narrow(0, first, count), in.t.narrow(0, first, count), in.y.narrow(0, first, count)});
    };
    EXPECT_LE(distance(torch::cat({rows(0, 2), rows(2, 3)}), rows(0, 5)), 1e-5) << attention;
  }
}

TEST(Dit, IsADenoiser) {
  const DitConfig c = small_dit();
  Dit model = make_dit(c);
  const DitInputs in = inputs_for(c);
  Denoiser& denoiser = *model;
  EXPECT_TRUE(torch::equal(denoiser.denoise(in.x, in.t, {in.y, {}, {}}), run(model, in)));
  EXPECT_TRUE(torch::equal(denoiser.unconditional({in.y, {}, {}}).labels, torch::full({2}, 5, torch::kLong)));
  DitConfig without = c;
  without.label_dropout = 0.0;
  EXPECT_EQ(message_of([&] { (void)make_dit(without)->null_class(); }),
            "dit_d32: the model has no null class (label_dropout is 0), expected one for guidance");
  const auto said = [&](const DitInputs& given) { return message_of([&] { run(model, given); }); };
  EXPECT_EQ(said({in.x, in.t, torch::full({2}, 6, torch::kLong)}), "Dit: class 6 does not exist, expected 0 to 5");
  EXPECT_EQ(said({in.x, in.t, {}}), "Dit: no labels [B] are given, expected a class for every sample");
  EXPECT_EQ(said({in.x, in.t.narrow(0, 0, 1), in.y}), "dit_d32: times have shape [1], expected [2]");
  EXPECT_EQ(
      said({in.x.transpose(2, 3), in.t, in.y}),
      "dit_d32: samples have shape [2, 3, 8, 12], expected [B, 3, 12, 8]; resized() makes a model for another size");
}

TEST(Dit, KeepsMixInRange) {
  DitConfig c = small_dit();
  c.mix_range = {1e-5, 0.5};
  Dit model = make_dit(c);
  const torch::Tensor mix = model->named_parameters()["blocks.1.attn.mix"];
  {
    const torch::NoGradGuard no_gradient;
    mix.fill_(-1), mix[0].fill_(3);
  }
  model->constrain();
  EXPECT_FLOAT_EQ(mix.min().item<float>(), 1e-5f);
  EXPECT_FLOAT_EQ(mix.max().item<float>(), 0.5f);
}

TEST(DitConfigs, GoOutAndComeBack) {
  for (const std::string& name : dit_names()) {
    for (const char* attention : {"mhla", "softmax", "gla"}) {
      DitConfig c = dit_config(name, attention);
      c.classes = 7;
      EXPECT_EQ(parse_dit_config(fields_to_json(c), "doc"), c) << name;
    }
  }
  const DitConfig few =
      parse_dit_config(parse_json(R"({"model": "dit_t32", "attention": "linear", "channels": 1})", "doc"), "doc");
  EXPECT_EQ(few.dim, 192);
  EXPECT_EQ(few.channels, 1);
  EXPECT_EQ(dit_config("dit_s_2").gate, "silu");
  EXPECT_EQ(dit_config("dit_s_2").lepe, 3);
  EXPECT_EQ(dit_config("dit_d32").lepe, 0);
  EXPECT_TRUE(dit_config("dig_s_2", "gla").scan);
  EXPECT_FALSE(dit_config("dig_s_2", "mhla").scan);
}

TEST(DitConfigs, SayWhatIsWrong) {
  const auto said = [](const char* text) {
    return message_of([&] { parse_dit_config(parse_json(text, "doc"), "config.json"); });
  };
  EXPECT_EQ(said(R"({"model": "dit_d32", "clases": 10})"),
            "config.json: config: 'clases' is unknown, nearest is 'classes'");
  EXPECT_TRUE(has(said(R"({"model": "dit_m_2"})"), "config.json: config: model is 'dit_m_2', expected one of dit_s_2"));
  EXPECT_EQ(said(R"({"heads": 5})"), "config.json: config: dim is 384, expected a multiple of heads = 5");
  EXPECT_EQ(said(R"({"image": [32, 33]})"),
            "config.json: config: image has 33 columns, expected a multiple of patch = 2");
  EXPECT_TRUE(
      has(said(R"({"attention": "softmax", "gate": "silu"})"), "gate is set for softmax, expected it for mhla"));
  EXPECT_TRUE(has(said(R"({"attention": "gla", "official": true})"), "official is set for gla"));
  EXPECT_TRUE(has(said(R"({"attention": "mhla", "scan": true})"), "scan is set for mhla"));
  EXPECT_TRUE(has(said(R"({"official": true, "blocks": [3, 4]})"), "blocks is 3 for 16 tokens, expected a divisor"));
  EXPECT_TRUE(has(said(R"({"freq_shift": 2})"), "freq_shift is 2, expected 0 or 1"));
  EXPECT_TRUE(has(said(R"({"pos_base": [16, 0]})"), "pos_base is 16, 0, expected both or none"));
  EXPECT_TRUE(has(said(R"({"label_dropout": 1})"), "label_dropout is 1, expected 0 or more and less than 1"));
  EXPECT_TRUE(has(said(R"({"lepe": 2})"), "lepe is 2, expected 0 or an odd number"));
  DitConfig c = small_dit();
  c.blocks = {5, 2};
  EXPECT_TRUE(has(message_of([&] { make_dit(c); }), "config: blocks"));
  DitConfig scan = dit_config("dig_s_2", "gla");
  scan.image = {32, 16}, scan.depth = 6;
  EXPECT_TRUE(has(message_of([&] { plan_of(scan); }), "expected a square or a multiple of 4"));
  EXPECT_TRUE(
      has(message_of([&] { with_variant(c, "all"); }), "variant is 'all', expected one of none, cpe, gate, both"));
}

}  // namespace
}  // namespace mhla
