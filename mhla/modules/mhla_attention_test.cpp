// The MHLA layer against plain LibTorch code, option by option; the published numbers are judged by `mhla verify
// --golden`.
#include "mhla/modules/mhla_attention.h"

#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

MhlaAttention layer_of(const MhlaAttentionOptions& options) {
  torch::manual_seed(1);
  MhlaAttention layer(options);
  layer->to(torch::kDouble);
  return layer;
}

torch::Tensor tokens(std::int64_t B, std::int64_t N, std::int64_t C) {
  torch::manual_seed(2);
  return torch::randn({B, N, C}, torch::kDouble);
}

torch::Tensor parameter(const MhlaAttention& layer, const std::string& name) { return layer->named_parameters()[name]; }

torch::Tensor rms(const torch::Tensor& x, double eps) { return x / (x.square().mean(-1, true) + eps).sqrt(); }

MhlaAttentionOptions small(const Layout& layout) {
  MhlaAttentionOptions o;
  o.dim = 24, o.heads = 4, o.layout = layout;
  return o;
}

TEST(MhlaAttention, IsWhatItsPartsSay) {
  const Layout layout = Layout::grid2d(4, 6, 2, 3);
  MhlaAttentionOptions o = small(layout);
  o.kv_heads = 2, o.qkv_bias = o.qk_norm = o.inner_norm = o.head_norm = true, o.qk_norm_eps = 1e-5;
  o.gate = Gate::kSilu, o.lepe = 3;
  MhlaAttention layer = layer_of(o);
  const torch::Tensor x = tokens(2, 24, 24);
  const auto p = [&](const char* name) { return parameter(layer, name); };

  const torch::Tensor y = torch::layer_norm(x, {24}, p("norm.weight"), p("norm.bias"));
  const auto qkv = torch::linear(y, p("qkv.weight"), p("qkv.bias")).split_with_sizes({24, 12, 12}, -1);
  const auto heads = [](const torch::Tensor& z) { return z.reshape({2, 24, -1, 6}); };
  const auto shared = [&](const torch::Tensor& z) { return heads(z).repeat_interleave(2, 2); };
  const auto phi = [](const torch::Tensor& z) { return z.relu() + 1e-6; };
  const torch::Tensor core = plain_mhla({.q = phi(heads(rms(qkv[0], 1e-5))),
                                         .k = phi(shared(rms(qkv[1], 1e-5))),
                                         .v = shared(qkv[2]),
                                         .q_den = {},
                                         .k_den = {}},
                                        layer->mix, block_of_tokens(layout, 24));
  const std::vector<std::int64_t> once{1, 1};
  const torch::Tensor local = torch::conv2d(qkv[2].transpose(1, 2).reshape({2, 12, 4, 6}), p("lepe.weight"),
                                            p("lepe.bias"), once, once, once, 12)
                                  .flatten(2)
                                  .transpose(1, 2);
  const torch::Tensor gated = rms(core, 1e-6).flatten(-2) * torch::silu(torch::linear(y, p("gate.weight")));
  const torch::Tensor want = torch::linear(gated + shared(local).flatten(-2), p("out.weight"), p("out.bias"));
  EXPECT_LE(distance(layer->forward(x), want), 1e-12);
}

TEST(MhlaAttention, PlainCodeIsTheSame) {
  for (const Layout& layout : {Layout::grid2d(4, 6, 2, 3), Layout::grid3d({2, 3, 4}, {2, 1, 2}), Layout::line(8)}) {
    MhlaAttentionOptions o = small(layout);
    o.kv_heads = 2, o.max_tokens = 24, o.qk_norm = true, o.qk_norm_eps = 0.1;
    if (layout.rank == 2) o.heads = 6, o.rope = true;  // own features for the normaliser
    if (layout.rank == 1) o.features = fused(FeatureMap::kElu1), o.normalizer = Normalizer::kNone;
    MhlaAttention layer = layer_of(o);
    for (const char* name : {"q_norm.weight", "k_norm.weight"}) parameter(layer, name).data().uniform_(0.5, 1.5);
    const torch::Tensor x = tokens(2, 24, 24).requires_grad_();
    const auto run = [&] {
      layer->zero_grad();
      x.mutable_grad() = torch::Tensor();
      const torch::Tensor out = layer->forward(x);
      out.square().sum().backward();
      return std::vector<torch::Tensor>{out.detach(), x.grad().clone(), layer->mix.grad().clone()};
    };
    const std::vector<torch::Tensor> want = run();
    layer->use_plain_code(true);
    const std::vector<torch::Tensor> got = run();
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(distance(got[i], want[i]), 1e-11) << layout.rank << " " << i;
  }
  MhlaAttention ragged = layer_of(small(Layout::grid2d(5, 5, 2, 2)));
  ragged->use_plain_code(true);
  EXPECT_TRUE(has(message_of([&] { ragged->forward(tokens(1, 25, 24)); }), "25 tokens in blocks that are not equal"));
}

TEST(MhlaAttention, LearnsEveryPart) {
  for (const Features features : {fused(FeatureMap::kElu1), Features::kHedgehog, Features::kHadamard}) {
    MhlaAttentionOptions o = small(Layout::grid2d(4, 4, 2, 2));
    o.features = features, o.qk_norm = o.inner_norm = o.head_norm = o.qkv_bias = o.gate_bias = o.mix_per_head = true;
    o.gate = Gate::kSilu, o.lepe = 3, o.dim = 16, o.heads = 2, o.qk_norm_eps = 1e-2;
    const bool signed_features =
        features == Features::kHadamard;  // a denominator of them may vanish: eps keeps it away
    o.rope = !signed_features, o.eps = signed_features ? 50.0 : 0.1;
    MhlaAttention layer = layer_of(o);
    MhlaAttentionImpl& module = *layer;
    check_slopes(module, tokens(1, 16, 16), [&](const torch::Tensor& x) { return module.forward(x); });
  }
}

TEST(MhlaAttention, LearnsEveryPartOfTheCausalForm) {
  MhlaAttentionOptions o = MhlaAttentionOptions::lm(16, 2);
  o.chunk = 5, o.max_tokens = 20, o.short_conv = 4, o.features = Features::kT2r, o.normalizer = Normalizer::kPaper,
  o.eps = 0.5;
  MhlaAttention layer = layer_of(o);
  check_slopes(*layer, tokens(2, 17, 16), [&](const torch::Tensor& x) { return layer->forward(x); });
}

TEST(MhlaAttention, MapsAndRotatesInTheNumeratorAlone) {
  const Layout layout = Layout::grid3d({2, 3, 4}, {2, 1, 2});
  const std::pair<Features, bool> cases[] = {{fused(FeatureMap::kElu1), true},
                                             {Features::kT2r, true},
                                             {Features::kHedgehog, true},
                                             {Features::kDpfp, true},
                                             {fused(FeatureMap::kElu1), false},
                                             {fused(FeatureMap::kReluEps), false},
                                             {Features::kT2r, false}};
  for (const auto& [map, normalized] : cases) {
    const Features features = map;
    MhlaAttentionOptions o = small(layout);
    o.features = features, o.rope = true, o.eps = 0.1;
    if (!normalized) o.normalizer = Normalizer::kNone;
    MhlaAttention layer = layer_of(o);
    const torch::Tensor x = tokens(2, 24, 24);
    const auto qkv = torch::linear(x, parameter(layer, "qkv.weight")).reshape({2, 24, 3, 4, 6}).unbind(2);
    const auto phi = [&](const torch::Tensor& z, const char* side) {
      const auto p = [&](const char* name) { return parameter(layer, std::string("feature_map_") + side + name); };
      if (features == fused(FeatureMap::kElu1)) return torch::elu(z) + 1;
      if (features == fused(FeatureMap::kReluEps)) return z.relu() + 1e-6;
      if (features == Features::kT2r) return torch::linear(z, p(".layer.weight")).relu();
      if (features == Features::kHedgehog) {
        const torch::Tensor w = torch::linear(z, p(".layer.weight"), p(".layer.bias"));
        return torch::cat({2 * w, -2 * w}, -1).softmax(-1);
      }
      const torch::Tensor r = torch::cat({z.relu(), (-z).relu()}, -1);
      return torch::cat({r * r.roll(1, -1), r * r.roll(2, -1), r * r.roll(3, -1), r * r.roll(4, -1)}, -1);
    };
    PlainTokens t{.q = {}, .k = {}, .v = qkv[2], .q_den = phi(qkv[0], "q"), .k_den = phi(qkv[1], "k")};
    const std::int64_t size = feature_size(features, 6);
    ASSERT_EQ(t.q_den.size(-1), size);
    const torch::Tensor angles = rope_angles_grid(layout, size, 10000.0);
    const RopeTable table{angles.cos(), angles.sin(), false};
    std::tie(t.q, t.k) = ops::rope(t.q_den, t.k_den, table), t.eps = 0.1, t.normalized = normalized;
    const torch::Tensor core = plain_mhla(t, layer->mix, block_of_tokens(layout, 24));
    const torch::Tensor want =
        torch::linear(core.flatten(-2), parameter(layer, "out.weight"), parameter(layer, "out.bias"));
    EXPECT_LE(distance(layer->forward(x), want), 1e-11) << name_of(features) << (normalized ? ", normalised" : "");
  }
}

TEST(MhlaAttention, GatesAroundLepe) {
  MhlaAttentionOptions o = small(Layout::grid2d(4, 6, 2, 3));
  o.gate = Gate::kLinear, o.lepe = 5, o.lepe_inside_gate = true;
  MhlaAttention layer = layer_of(o);
  const torch::NoGradGuard no_gradient;
  parameter(layer, "gate.weight").zero_();
  const torch::Tensor out = layer->forward(tokens(1, 24, 24));
  EXPECT_TRUE(torch::equal(out, parameter(layer, "out.bias").expand({1, 24, 24})));
}

TEST(MhlaAttention, HandsItsOptionsToTheOperator) {
  for (const bool causal : {false, true}) {
    for (const Gate gate : {Gate::kSilu, Gate::kLinear}) {
      MhlaAttentionOptions o = small(causal ? Layout{} : Layout::line(8));
      o.causal = causal, o.chunk = 8, o.max_tokens = 24, o.features = fused(FeatureMap::kElu1);
      o.normalizer = Normalizer::kPaper, o.eps = 0.7, o.scale = 0.3, o.gate = gate, o.gate_bias = true;
      MhlaAttention layer = layer_of(o);
      const torch::Tensor x = tokens(2, 20, 24);
      const auto p = [&](const char* name) { return parameter(layer, name); };
      const auto qkv = torch::linear(x, p("qkv.weight")).reshape({2, 20, 3, 4, 6}).unbind(2);
      PlainTokens t{.q = torch::elu(qkv[0]) + 1, .k = torch::elu(qkv[1]) + 1, .v = qkv[2], .q_den = {}, .k_den = {}};
      t.causal = causal, t.eps = 0.7, t.scale = 0.3;
      const torch::Tensor core =
          plain_mhla(t, layer->mix, torch::div(torch::arange(20), 8, "floor").to(torch::kLong)).flatten(-2);
      const torch::Tensor g = torch::linear(x, p("gate.weight"), p("gate.bias"));
      const torch::Tensor gated = core * (gate == Gate::kSilu ? g * torch::sigmoid(g) : g);
      EXPECT_LE(distance(layer->forward(x), torch::linear(gated, p("out.weight"), p("out.bias"))), 1e-11)
          << causal << " " << static_cast<int>(gate);
    }
  }
}

TEST(MhlaAttention, DropsOutputsInTrainingAlone) {
  MhlaAttentionOptions o = small(Layout::line(8));
  o.dropout = 0.5;
  MhlaAttention layer = layer_of(o);
  const torch::Tensor x = tokens(1, 200, 24);
  EXPECT_NEAR(layer->forward(x).eq(0).to(torch::kDouble).mean().item<double>(), 0.5, 0.05);
  layer->eval();
  EXPECT_FALSE(layer->forward(x).eq(0).any().item<bool>());
}

TEST(MhlaAttention, StreamsWhatItComputesAtOnce) {
  for (const auto& [rope, taps] : {std::pair{false, 0}, {true, 0}, {true, 4}}) {
    for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
      MhlaAttentionOptions o = MhlaAttentionOptions::lm(32, 4);
      o.chunk = 8, o.max_tokens = 64, o.rope = rope, o.normalizer = normalizer, o.kv_heads = 2, o.short_conv = taps;
      MhlaAttention layer = layer_of(o);
      const torch::Tensor x = tokens(1, 43, 32);
      const torch::NoGradGuard no_gradient;
      AttentionState state = layer->begin(1);
      std::vector<torch::Tensor> parts;
      const std::int64_t cuts[] = {0, 17, 18, 19, 43};
      for (std::size_t i = 0; i + 1 < std::size(cuts); ++i)
        parts.push_back(layer->stream(x.narrow(1, cuts[i], cuts[i + 1] - cuts[i]), state));
      EXPECT_LE(distance(torch::cat(parts, 1), layer->forward(x)), 1e-12);
      EXPECT_EQ(state.positions[0], 43);
      EXPECT_EQ(state.streams[0].position(), 43);
      EXPECT_TRUE(has(message_of([&] { layer->stream(tokens(1, 22, 32), state); }),
                      "sequence 0 stands at 43, and 22 more tokens pass the 64 that mix has rows for"));
    }
  }
}

TEST(MhlaAttention, KeepsPackedSequencesApart) {
  for (const std::int64_t taps : {0, 4}) {
    MhlaAttentionOptions o = MhlaAttentionOptions::lm(32, 2);
    o.chunk = 8, o.max_tokens = 64, o.short_conv = taps;
    MhlaAttention layer = layer_of(o);
    const torch::Tensor x = tokens(1, 40, 32);
    const torch::Tensor packed = layer->forward(x, torch::tensor({0, 11, 40}, torch::kInt));
    const torch::Tensor apart =
        torch::cat({layer->forward(x.narrow(1, 0, 11)), layer->forward(x.narrow(1, 11, 29))}, 1);
    EXPECT_LE(distance(packed, apart), 1e-12) << taps;
  }
}

TEST(MhlaAttention, HoldsMixInItsRange) {
  MhlaAttentionOptions o = MhlaAttentionOptions::lm(16, 2);
  o.chunk = 4, o.max_tokens = 8;
  MhlaAttention layer = layer_of(o);
  const torch::NoGradGuard no_gradient;
  layer->mix.copy_(torch::tensor({{-1.0, 0.5}, {2.0, std::nan("")}}));
  layer->constrain();
  EXPECT_EQ(layer->mix[0][0].item<double>(), 0.0);
  EXPECT_EQ(layer->mix[0][1].item<double>(), 0.0);  // above the diagonal
  EXPECT_EQ(layer->mix[1][0].item<double>(), 1.0);
  EXPECT_TRUE(std::isnan(layer->mix[1][1].item<double>()));
  o.constraint->renormalize_rows = true;
  MhlaAttention rows = layer_of(o);
  rows->mix.copy_(torch::tensor({{0.5, 3.0}, {2.0, 0.25}}));
  rows->constrain();
  EXPECT_LE(distance(rows->mix, torch::tensor({{1.0, 0.0}, {0.8, 0.2}}, torch::kDouble)), 1e-12);
  MhlaAttentionOptions official = MhlaAttentionOptions::lm(16, 2, true);
  official.chunk = 4, official.max_tokens = 8;
  MhlaAttention clamped = layer_of(official);
  clamped->forward(tokens(1, 8, 16));
  EXPECT_DOUBLE_EQ(clamped->mix.min().item<double>(), 1e-5);
}

TEST(MhlaAttention, IsPlainLinearAttentionWithOneBlock) {
  MhlaAttention layer = layer_of(MhlaAttentionOptions::linear(24, 4));
  for (const std::int64_t N : {1, 7, 300}) {
    const torch::Tensor x = tokens(2, N, 24);
    const auto qkv = torch::linear(x, parameter(layer, "qkv.weight")).split(24, -1);
    const auto heads = [&](const torch::Tensor& z) { return z.reshape({2, N, 4, 6}); };
    const torch::Tensor q = heads(rms(qkv[0], 1e-6)).relu(), k = heads(rms(qkv[1], 1e-6)).relu(), v = heads(qkv[2]);
    const torch::Tensor S = torch::einsum("bthd,bthe->bhde", {k, v}), z = k.sum(1, true);
    const torch::Tensor core = torch::einsum("bthd,bhde->bthe", {q, S}) / ((q * z).sum(-1, true) + 1e-6);
    const torch::Tensor want =
        torch::linear(core.flatten(-2), parameter(layer, "out.weight"), parameter(layer, "out.bias"));
    EXPECT_LE(distance(layer->forward(x), want), 1e-11) << N;
  }
}

TEST(MhlaAttention, SaysWhatIsWrong) {
  const auto said = [](const std::function<void(MhlaAttentionOptions&)>& change) {
    MhlaAttentionOptions o = small(Layout::grid2d(4, 6, 2, 3));
    change(o);
    return message_of([&] { MhlaAttention layer(o); });
  };
  EXPECT_EQ(said([](auto& o) { o.heads = 5; }), "MhlaAttention: dim is 24, expected a multiple of heads = 5");
  EXPECT_EQ(said([](auto& o) { o.kv_heads = 3; }), "MhlaAttention: kv_heads is 3, expected a divisor of heads = 4");
  EXPECT_EQ(said([](auto& o) { o.layout = {}; }),
            "MhlaAttention: the layout is not given, expected a layout or causal");
  EXPECT_TRUE(has(said([](auto& o) { o.causal = true; }), "and causal, expected a layout or causal"));
  EXPECT_EQ(said([](auto& o) { o.lepe = 4; }), "GridConv: kernel is 4, expected an odd number");
  EXPECT_TRUE(has(said([](auto& o) { o.layout = Layout::line(8), o.lepe = 3; }), "expected a 2D or 3D layout"));
  EXPECT_TRUE(has(said([](auto& o) { o.short_conv = 4; }), "expected the causal form"));
  MhlaAttention layer = layer_of(small(Layout::grid2d(4, 6, 2, 3)));
  EXPECT_TRUE(
      has(message_of([&] { layer->forward(tokens(1, 24, 25)); }), "x has shape [1, 24, 25], expected [B, N, 24]"));
  EXPECT_TRUE(has(message_of([&] { (void)layer->streaming_state(); }), "the layer is not causal"));
}

TEST(MhlaAttention, BoundsThatAreNoneAreNamedByTheOperator) {
  const torch::Tensor x = torch::randn({1, 32, 48});
  for (const std::int64_t taps : {0, 4}) {
    MhlaAttentionOptions o = MhlaAttentionOptions::lm(48, 2);
    o.chunk = 8, o.short_conv = taps;
    MhlaAttention layer(o);
    for (const std::vector<std::int64_t>& bounds :
         {std::vector<std::int64_t>{0, -1, 32}, {0, 31}, {0, 20, 10, 32}, {1, 32}, {0, 40}, {32}}) {
      const std::string message = message_of([&] { layer->forward(x, torch::tensor(bounds, torch::kLong)); });
      EXPECT_TRUE(has(message, "cu_seqlens")) << message;
    }
  }
}

TEST(MhlaAttention, TrainsBehindInferenceMode) {
  MhlaAttention sequences(MhlaAttentionOptions::lm(48, 2));
  MhlaAttention grid(MhlaAttentionOptions::video(48, 2, Layout::grid3d({2, 4, 4}, {1, 2, 2})));
  const torch::Tensor x = torch::randn({2, 32, 48}), bounds = torch::tensor({0, 20, 32}, torch::kLong);
  {
    const c10::InferenceMode inference;
    (void)sequences->forward(x), (void)grid->forward(x);
    (void)sequences->forward(x.narrow(0, 0, 1).clone(), bounds);
  }
  sequences->forward(x).sum().backward(), grid->forward(x).sum().backward();
  sequences->forward(x.narrow(0, 0, 1), bounds).sum().backward();
}

TEST(MhlaAttention, TwoPassesOfTheOfficialClampBeforeOneBackward) {
  MhlaAttention layer(MhlaAttentionOptions::lm(48, 2, /*official=*/true));
  const torch::Tensor x = torch::randn({1, 20, 48});
  (layer->forward(x) + layer->forward(x)).sum().backward();
  EXPECT_GT(layer->mix.grad().abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace mhla
