// Every attention of the factory: its formula spelled out, its gradients, what it may see, and what it refuses.
#include "mhla/modules/zoo/zoo.h"

#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/gated_image.h"

namespace mhla {
namespace {

const Layout kGrid = Layout::grid2d(4, 6, 2, 3);

AttentionConfig grid_config() {
  AttentionConfig c;
  c.dim = 16, c.heads = 2, c.layout = kGrid;
  return c;
}

AttentionConfig text_config() {
  AttentionConfig c;
  c.dim = 16, c.heads = 2, c.causal = true, c.chunk = 8, c.max_tokens = 64;
  return c;
}

AnyAttention make_double(std::string_view name, const AttentionConfig& config) {
  torch::manual_seed(1);
  AnyAttention attention = make_attention(name, config);
  attention->to(torch::kDouble);
  return attention;
}

torch::Tensor zoo_tokens(std::int64_t B, std::int64_t N, std::int64_t C = 16) {
  torch::manual_seed(2);
  return torch::randn({B, N, C}, torch::kDouble);
}

torch::Tensor parameter(const AnyAttention& attention, const std::string& name) {
  return attention->named_parameters()[name];
}

torch::Tensor zoo_rms(const torch::Tensor& x, double eps) { return x / (x.square().mean(-1, true) + eps).sqrt(); }

bool is_causal_only(std::string_view name) {
  return name == "gla" || name == "mamba" || name == "mamba2" || name == "gdn";
}
bool wants_causal_form(std::string_view name) {
  return is_causal_only(name) || name == "mhla" || name == "softmax" || name == "linear";
}

TEST(Zoo, EveryAttentionTakesImages) {
  for (const std::string_view name : attention_names()) {
    const AnyAttention attention = make_double(name, grid_config());
    const torch::Tensor x = zoo_tokens(2, 24);
    EXPECT_EQ(attention->forward(x).sizes(), x.sizes()) << name;
    attention->to(torch::kFloat);
    const torch::Tensor out = attention->forward(x.to(torch::kFloat));
    EXPECT_EQ(out.scalar_type(), torch::kFloat) << name;
    EXPECT_TRUE(torch::isfinite(out).all().item<bool>()) << name;
  }
}

TEST(Zoo, GradientsAreSlopes) {
  for (const std::string_view name : attention_names()) {
    SCOPED_TRACE(name);
    const AnyAttention attention = make_double(name, grid_config());
    {  // away from the kinks of relu and from positions that are all zero
      const torch::NoGradGuard no_gradient;
      for (const auto& item : attention->named_parameters()) {
        if (item.key() == "positional_encoding" || item.key() == "scale") item.value().normal_(0.5, 0.1);
      }
    }
    check_slopes(
        *attention, zoo_tokens(1, 24), [&](const torch::Tensor& x) { return attention->forward(x); }, 1e-4);
  }
}

TEST(Zoo, CausalFormsDoNotSeeTheFuture) {
  for (const std::string_view name : attention_names()) {
    if (!wants_causal_form(name)) {
      EXPECT_EQ(message_of([&] { make_attention(name, text_config()); }),
                "make_attention: " + std::string(name) + " has no causal form");
      continue;
    }
    const AnyAttention attention = make_double(name, text_config());
    const torch::Tensor x = zoo_tokens(1, 40);
    torch::Tensor changed = x.clone();
    changed.narrow(1, 25, 15).normal_();
    const torch::Tensor a = attention->forward(x), b = attention->forward(changed);
    EXPECT_LE(distance(a.narrow(1, 0, 25), b.narrow(1, 0, 25)), 1e-14) << name;
    EXPECT_GT(distance(a.narrow(1, 25, 15), b.narrow(1, 25, 15)), 1e-3) << name;
  }
}

TEST(Zoo, BidirectionalFormsDo) {
  for (const std::string_view name : attention_names()) {
    const AnyAttention attention = make_double(name, grid_config());
    const torch::Tensor x = zoo_tokens(1, 24);
    torch::Tensor changed = x.clone();
    changed.narrow(1, 23, 1).normal_();
    const double seen = distance(attention->forward(x).narrow(1, 0, 23), attention->forward(changed).narrow(1, 0, 23));
    if (is_causal_only(name))
      EXPECT_LE(seen, 1e-14)
          << name;  // they scan the raster; a chunk's decays share one reference, so rounding is shared
    else
      EXPECT_GT(seen, 1e-9) << name;
  }
}

TEST(Zoo, SoftmaxIsTheFormula) {
  for (const bool causal : {false, true}) {
    const AnyAttention attention = make_double("softmax", causal ? text_config() : grid_config());
    const torch::Tensor x = zoo_tokens(2, 24);
    const torch::Tensor bias = causal ? torch::Tensor() : parameter(attention, "qkv.bias");
    const auto qkv = torch::linear(x, parameter(attention, "qkv.weight"), bias).reshape({2, 24, 3, 2, 8}).unbind(2);
    torch::Tensor scores = torch::einsum("bthd,bshd->bhts", {qkv[0], qkv[1]}) / std::sqrt(8.0);
    if (causal) scores = scores + torch::full({24, 24}, -1e300, torch::kDouble).triu(1);
    const torch::Tensor core = torch::einsum("bhts,bshd->bthd", {scores.softmax(-1), qkv[2]}).flatten(-2);
    const torch::Tensor out_bias = causal ? torch::Tensor() : parameter(attention, "proj.bias");
    EXPECT_LE(distance(attention->forward(x), torch::linear(core, parameter(attention, "proj.weight"), out_bias)),
              1e-12);
  }
}

TEST(Zoo, SoftmaxAddsItsConvolution) {
  AttentionConfig config = grid_config();
  config.lepe = 5;
  const AnyAttention attention = make_double("softmax", config);
  const torch::Tensor x = zoo_tokens(2, 24);
  const auto p = [&](const char* name) { return parameter(attention, name); };
  const torch::Tensor v = torch::linear(x, p("qkv.weight"), p("qkv.bias")).narrow(-1, 32, 16);
  const std::vector<std::int64_t> once{1, 1}, padding{2, 2};
  const torch::Tensor local = torch::conv2d(v.transpose(1, 2).reshape({2, 16, 4, 6}), p("lepe.weight"), p("lepe.bias"),
                                            once, padding, once, 16);
  const torch::Tensor with = attention->forward(x);
  {
    const torch::NoGradGuard no_gradient;
    p("lepe.weight").zero_(), p("lepe.bias").zero_();
  }
  const torch::Tensor want = attention->forward(x) + torch::linear(local.flatten(2).transpose(1, 2), p("proj.weight"));
  EXPECT_LE(distance(with, want), 1e-12);
}

// matrix(x) times the values is the attention inside.
TEST(Zoo, MatricesAreWhatAttentionDoes) {
  for (const bool causal : {false, true}) {
    for (const char* name : {"mhla", "linear", "softmax"}) {
      SCOPED_TRACE(str(name, causal ? " causal" : ""));
      const AnyAttention attention = make_double(name, causal ? text_config() : grid_config());
      const torch::Tensor x = zoo_tokens(2, 24);
      const torch::Tensor A = attention->matrix(x);
      ASSERT_EQ(A.sizes(), (std::vector<std::int64_t>{2, 2, 24, 24}));
      if (causal) {
        EXPECT_EQ(A.triu(1).abs().max().item<double>(), 0.0);
      } else {
        EXPECT_LE(distance(A.sum(-1), torch::ones({2, 2, 24}, torch::kDouble)), 1e-4);  // up to eps
      }
      const auto named = attention->named_parameters();
      const torch::Tensor* bias = named.find("qkv.bias");
      const torch::Tensor v = torch::linear(x, named["qkv.weight"], bias == nullptr ? torch::Tensor() : *bias)
                                  .narrow(-1, causal && std::string_view(name) == "mhla" ? 16 : 32, 16);
      torch::Tensor core = torch::einsum("bhts,bshd->bthd", {A, v.unflatten(-1, {2, 8})}).flatten(-2);
      if (const torch::Tensor* lepe = named.find("lepe.weight")) {  // MHLA's in an image
        const std::vector<std::int64_t> once{1, 1};
        core = core +
               torch::conv2d(v.transpose(1, 2).reshape({2, 16, 4, 6}), *lepe, named["lepe.bias"], once, once, once, 16)
                   .flatten(2)
                   .transpose(1, 2);
      }
      if (causal && std::string_view(name) == "mhla") {
        core =
            zoo_rms(core.unflatten(-1, {2, 8}), 1e-6).flatten(-2) * torch::silu(torch::linear(x, named["gate.weight"]));
      }
      const bool softmax = std::string_view(name) == "softmax";
      const torch::Tensor* out_bias = named.find(softmax ? "proj.bias" : "out.bias");
      const torch::Tensor want = torch::linear(core, named[softmax ? "proj.weight" : "out.weight"],
                                               out_bias == nullptr ? torch::Tensor() : *out_bias);
      EXPECT_LE(distance(attention->forward(x), want), 1e-10);
    }
  }
  // More columns than a head holds at a time.
  const AnyAttention linear = make_double("linear", grid_config());
  const torch::Tensor x = zoo_tokens(1, 300), A = linear->matrix(x);
  const torch::Tensor v = torch::linear(x, parameter(linear, "qkv.weight")).narrow(-1, 32, 16).unflatten(-1, {2, 8});
  const torch::Tensor core = torch::einsum("bhts,bshd->bthd", {A, v}).flatten(-2);
  EXPECT_LE(
      distance(linear->forward(x), torch::linear(core, parameter(linear, "out.weight"), parameter(linear, "out.bias"))),
      1e-10);
  const std::string said = message_of([] { make_attention("gla", text_config())->matrix(torch::randn({1, 8, 16})); });
  EXPECT_TRUE(has(said, "GlaAttentionImpl: its attention matrix is not available")) << said;
}

TEST(Zoo, CausalLinearAttentionHasNoBlocks) {
  const AnyAttention attention = make_double("linear", text_config());
  const torch::Tensor x = zoo_tokens(2, 50);
  const auto qkv = torch::linear(x, parameter(attention, "qkv.weight")).reshape({2, 50, 3, 2, 8}).unbind(2);
  const torch::Tensor q = torch::elu(qkv[0]) + 1, k = torch::elu(qkv[1]) + 1;
  const torch::Tensor A = torch::einsum("bthd,bshd->bhts", {q, k}).tril() / std::sqrt(8.0);
  const torch::Tensor core = torch::einsum("bhts,bshd->bthd", {A, qkv[2]}).flatten(-2);
  EXPECT_LE(distance(attention->forward(x), torch::linear(core, parameter(attention, "out.weight"))), 1e-12);
}

TEST(Zoo, GlaIsTheFormula) {
  const AnyAttention attention = make_double("gla", text_config());
  const auto p = [&](const char* name) { return parameter(attention, name); };
  const torch::Tensor x = zoo_tokens(2, 21);
  const auto project = [&](const char* name) { return torch::linear(x, p(name)).unflatten(-1, {2, -1}); };
  const torch::Tensor q = project("q_proj.weight"), k = project("k_proj.weight"), v = project("v_proj.weight");
  const torch::Tensor gate =
      torch::linear(torch::linear(x, p("gk_proj.0.weight")), p("gk_proj.1.weight"), p("gk_proj.1.bias"));
  const torch::Tensor a = (torch::log_sigmoid(gate) / 16).exp().unflatten(-1, {2, -1});
  torch::Tensor S = torch::zeros({2, 2, 4, 8}, torch::kDouble);
  std::vector<torch::Tensor> out;
  for (std::int64_t t = 0; t < 21; ++t) {
    S = a.select(1, t).unsqueeze(-1) * S + k.select(1, t).unsqueeze(-1) * v.select(1, t).unsqueeze(-2);
    out.push_back((q.select(1, t).unsqueeze(-1) * S).sum(-2) / std::sqrt(4.0));
  }
  const torch::Tensor core = zoo_rms(torch::stack(out, 1), 1e-6) * p("g_norm_swish_gate.weight");
  const torch::Tensor want =
      torch::linear(core.flatten(-2) * torch::silu(torch::linear(x, p("g_proj.weight"))), p("o_proj.weight"));
  EXPECT_LE(distance(attention->forward(x), want), 1e-11);
}

// silu(sum_j weight[c, j] x_{t - 3 + j, c} + bias), tap by tap.
torch::Tensor short_conv(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  torch::Tensor sum = bias.defined() ? bias.expand_as(x) : torch::zeros_like(x);
  for (std::int64_t j = 0; j < 4; ++j) {
    const std::int64_t back = 3 - j;
    const torch::Tensor shifted = torch::constant_pad_nd(x, {0, 0, back, 0}).narrow(1, 0, x.size(1));
    sum = sum + shifted * weight.select(2, j).squeeze(1);
  }
  return torch::silu(sum);
}

TEST(Zoo, GdnIsTheFormula) {
  const AnyAttention attention = make_double("gdn", text_config());
  const auto p = [&](const std::string& name) { return parameter(attention, name); };
  const torch::Tensor x = zoo_tokens(2, 21);
  const auto project = [&](const std::string& name) {
    return short_conv(torch::linear(x, p(name + "_proj.weight")), p(name + "_conv1d.weight"), {})
        .unflatten(-1, {2, -1});
  };
  const auto unit = [](const torch::Tensor& y) { return y / (y.square().sum(-1, true) + 1e-6).sqrt(); };
  const torch::Tensor q = unit(project("q")), k = unit(project("k")), v = project("v");
  const torch::Tensor beta = torch::sigmoid(torch::linear(x, p("b_proj.weight")));
  const torch::Tensor g = -p("A_log").exp() * torch::softplus(torch::linear(x, p("a_proj.weight")) + p("dt_bias"));
  torch::Tensor S = torch::zeros({2, 2, 6, 12}, torch::kDouble);
  std::vector<torch::Tensor> out;
  for (std::int64_t t = 0; t < 21; ++t) {
    const torch::Tensor kt = k.select(1, t).unsqueeze(-1);
    S = g.select(1, t).exp().unsqueeze(-1).unsqueeze(-1) * S;
    const torch::Tensor change = beta.select(1, t).unsqueeze(-1) * (v.select(1, t) - (kt * S).sum(-2));
    S = S + kt * change.unsqueeze(-2);
    out.push_back((q.select(1, t).unsqueeze(-1) * S).sum(-2) / std::sqrt(6.0));
  }
  const torch::Tensor core = zoo_rms(torch::stack(out, 1), 1e-6) * p("o_norm.weight");
  const torch::Tensor want =
      torch::linear(core.flatten(-2) * torch::silu(torch::linear(x, p("g_proj.weight"))), p("o_proj.weight"));
  EXPECT_LE(distance(attention->forward(x), want), 1e-11);
}

TEST(Zoo, MambaIsTheFormula) {
  const AnyAttention attention = make_double("mamba", text_config());
  const auto p = [&](const char* name) { return parameter(attention, name); };
  const torch::Tensor input = zoo_tokens(2, 21);
  const auto halves = torch::linear(input, p("in_proj.weight")).chunk(2, -1);
  const torch::Tensor x = short_conv(halves[0], p("conv1d.weight"), p("conv1d.bias"));
  const auto parts = torch::linear(x, p("x_proj.weight")).split_with_sizes({1, 16, 16}, -1);
  const torch::Tensor dt = torch::softplus(torch::linear(parts[0], p("dt_proj.weight"), p("dt_proj.bias")));
  torch::Tensor h = torch::zeros({2, 32, 16}, torch::kDouble);
  std::vector<torch::Tensor> out;
  for (std::int64_t t = 0; t < 21; ++t) {
    const torch::Tensor step = dt.select(1, t).unsqueeze(-1);
    h = (step * -p("A_log").exp()).exp() * h + step * parts[1].select(1, t).unsqueeze(1) * x.select(1, t).unsqueeze(-1);
    out.push_back((h * parts[2].select(1, t).unsqueeze(1)).sum(-1));
  }
  const torch::Tensor y = (torch::stack(out, 1) + p("D") * x) * torch::silu(halves[1]);
  EXPECT_LE(distance(attention->forward(input), torch::linear(y, p("out_proj.weight"))), 1e-11);
}

TEST(Zoo, Mamba2IsTheFormula) {
  AttentionConfig config = text_config();
  config.dim = 64;  // two heads of 64
  const AnyAttention attention = make_double("mamba2", config);
  const auto p = [&](const char* name) { return parameter(attention, name); };
  const torch::Tensor input = zoo_tokens(2, 21, 64);
  const auto parts = torch::linear(input, p("in_proj.weight")).split_with_sizes({128, 128 + 256, 2}, -1);
  const auto xBC = short_conv(parts[1], p("conv1d.weight"), p("conv1d.bias")).split_with_sizes({128, 128, 128}, -1);
  const torch::Tensor x = xBC[0].unflatten(-1, {2, 64}), dt = torch::softplus(parts[2] + p("dt_bias"));
  torch::Tensor h = torch::zeros({2, 2, 128, 64}, torch::kDouble);
  std::vector<torch::Tensor> out;
  for (std::int64_t t = 0; t < 21; ++t) {
    const torch::Tensor step = dt.select(1, t).unsqueeze(-1).unsqueeze(-1);  // [B, H, 1, 1]
    const torch::Tensor B = xBC[1].select(1, t).unsqueeze(1).unsqueeze(-1),
                        C = xBC[2].select(1, t).unsqueeze(1).unsqueeze(-1);
    const torch::Tensor xt = x.select(1, t).unsqueeze(-2);
    h = (-p("A_log").exp().view({2, 1, 1}) * step).exp() * h + step * B * xt;
    out.push_back((C * h).sum(-2) + p("D").unsqueeze(-1) * x.select(1, t));
  }
  const torch::Tensor y = torch::stack(out, 1).flatten(-2) * torch::silu(parts[0]);
  const torch::Tensor want = torch::linear(zoo_rms(y, 1e-5) * p("norm.weight"), p("out_proj.weight"));
  EXPECT_LE(distance(attention->forward(input), want), 1e-11);
}

TEST(Zoo, FocusedIsTheFormula) {
  const AnyAttention attention = make_double("focused", grid_config());
  const auto p = [&](const char* name) { return parameter(attention, name); };
  {
    const torch::NoGradGuard no_gradient;
    p("scale").normal_(), p("positional_encoding").normal_();
  }
  const torch::Tensor x = zoo_tokens(2, 24);
  const auto qkv = torch::linear(x, p("qkv.weight"), p("qkv.bias")).chunk(3, -1);
  const auto phi = [&](const torch::Tensor& y) {
    const torch::Tensor z = (y / torch::softplus(p("scale"))).relu() + 1e-6, cube = z * z * z;
    const auto length = [](const torch::Tensor& w) { return w.square().sum(-1, true).sqrt(); };
    return (length(z) * cube / length(cube)).unflatten(-1, {2, 8});
  };
  const torch::Tensor q = phi(qkv[0]), k = phi(qkv[1] + p("positional_encoding")), v = qkv[2].unflatten(-1, {2, 8});
  const torch::Tensor A = torch::einsum("bthd,bshd->bhts", {q, k}) / 24.0;
  torch::Tensor core = torch::einsum("bhts,bshd->bthd", {A, v}) / (A.sum(-1) + 1e-6).transpose(1, 2).unsqueeze(-1);
  const std::vector<std::int64_t> once{1, 1}, padding{2, 2};
  for (std::int64_t head = 0; head < 2; ++head) {
    const torch::Tensor image = v.select(2, head).transpose(1, 2).reshape({2, 8, 4, 6});
    const torch::Tensor local = torch::conv2d(image, p("dwc.weight"), p("dwc.bias"), once, padding, once, 8);
    core.select(2, head) += local.flatten(2).transpose(1, 2);
  }
  EXPECT_LE(distance(attention->forward(x), torch::linear(core.flatten(-2), p("proj.weight"), p("proj.bias"))), 1e-11);
}

TEST(Zoo, InlineIsTheFormula) {
  const AnyAttention attention = make_double("inline", grid_config());
  const auto p = [&](const char* name) { return parameter(attention, name); };
  const torch::Tensor x = zoo_tokens(2, 24);
  const auto qkv = torch::linear(x, p("qkv.weight"), p("qkv.bias")).reshape({2, 24, 3, 2, 8}).unbind(2);
  const torch::Tensor A = torch::einsum("bthd,bshd->bhts", {qkv[0], qkv[1]}) / std::sqrt(8.0);
  const torch::Tensor weights = A / 24.0 + (1 - A.mean(-1, true)) / 24.0;  // they sum to 1
  EXPECT_LE(distance(weights.sum(-1), torch::ones({2, 2, 24}, torch::kDouble)), 1e-12);
  const torch::Tensor core = torch::einsum("bhts,bshd->bthd", {weights, qkv[2]}).flatten(-2);
  const auto grouped = [&](const torch::Tensor& y, const char* weight, const char* bias) {
    const std::vector<std::int64_t> once{1}, none{0};
    return torch::conv1d(y, p(weight), p(bias), once, none, once, 2);
  };
  const torch::Tensor kernels =
      grouped(torch::gelu(grouped(x.mean(1).unsqueeze(-1), "residual.0.weight", "residual.0.bias")),
              "residual.2.weight", "residual.2.bias")
          .reshape({2, 16, 1, 3, 3});
  const std::vector<std::int64_t> once{1, 1};
  std::vector<torch::Tensor> local;
  for (std::int64_t b = 0; b < 2; ++b) {
    const torch::Tensor image = qkv[2][b].flatten(-2).transpose(0, 1).reshape({1, 16, 4, 6});
    local.push_back(torch::conv2d(image, kernels[b], {}, once, once, once, 16).flatten(2).transpose(1, 2));
  }
  const torch::Tensor want = torch::linear(core + torch::cat(local), p("proj.weight"), p("proj.bias"));
  EXPECT_LE(distance(attention->forward(x), want), 1e-11);
}

TEST(Zoo, MalaAndRalaAreTheirFormulas) {
  torch::manual_seed(6);
  const auto positive = [] { return torch::elu(torch::randn({2, 24, 2, 8}, torch::kDouble)) + 1; };
  const torch::Tensor q = positive(), k = positive(), v = torch::randn({2, 24, 2, 8}, torch::kDouble);
  const torch::Tensor A = torch::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(8.0);
  const torch::Tensor z = A.mean(-1, true);
  const torch::Tensor mala = (1 + 1 / (z + 1e-6)) * A / 24.0 - z / 24.0;
  EXPECT_LE(distance(mala.sum(-1), torch::ones({2, 2, 24}, torch::kDouble)), 1e-5);  // up to its 1e-6
  EXPECT_LE(distance(GatedImageAttentionImpl::mala(q, k, v), torch::einsum("bhts,bshd->bthd", {mala, v})), 1e-12);
  const torch::Tensor alpha = 24.0 * A.mean(-2).softmax(-1);  // [B, H, N]
  const torch::Tensor weighted = A * std::sqrt(8.0) * alpha.unsqueeze(-2) / 24.0;
  const torch::Tensor rala = weighted / (weighted.sum(-1, true) + 1e-6);
  EXPECT_LE(distance(GatedImageAttentionImpl::rala(q, k, v), torch::einsum("bhts,bshd->bthd", {rala, v})), 1e-12);
  const torch::Tensor angles = rope_angles_grid(kGrid, 8, 10000.0);
  const RopeTable table{angles.cos(), angles.sin(), false};
  const auto [turned_q, turned_k] = ops::rope(q, k, table);
  const torch::Tensor turned = torch::einsum("bthd,bshd->bhts", {turned_q, turned_k}) / std::sqrt(8.0);
  const torch::Tensor mala_turned = (1 + 1 / (z + 1e-6)) * turned / 24.0 - z / 24.0;  // the normaliser is not rotated
  EXPECT_LE(distance(GatedImageAttentionImpl::mala(q, k, v, table), torch::einsum("bhts,bshd->bthd", {mala_turned, v})),
            1e-12);
}

TEST(Zoo, MalaIsGatedAroundItsConvolution) {
  for (const char* name : {"mala", "rala"}) {
    const AnyAttention attention = make_double(name, grid_config());
    const torch::NoGradGuard no_gradient;
    parameter(attention, "qkvo.weight").narrow(0, 48, 16).zero_();
    parameter(attention, "qkvo.bias").narrow(0, 48, 16).zero_();
    const torch::Tensor out = attention->forward(zoo_tokens(1, 24));
    EXPECT_TRUE(torch::equal(out, parameter(attention, "proj.bias").expand({1, 24, 16}))) << name;
  }
}

TEST(Zoo, MambaBlocksMatchParameters) {
  AttentionConfig lm = text_config();
  lm.dim = 256, lm.heads = 4;
  for (const char* name : {"mamba", "mamba2"}) {
    EXPECT_FALSE(has_mlp(name));
    const std::int64_t depth = matched_depth(name, lm, 24, 1024);
    const double own = static_cast<double>(depth * count_parameters(*make_attention(name, lm)));
    const double block = static_cast<double>(count_parameters(*make_attention("softmax", lm)) + 2 * 256 * 1024);
    EXPECT_LE(std::abs(own / (24 * block) - 1), 0.03) << name << " " << depth;
    EXPECT_GT(depth, 24) << name;
  }
  EXPECT_TRUE(has(message_of([&] { matched_depth("gla", lm, 24, 1024); }), "gla has an MLP beside it"));
  EXPECT_TRUE(has(message_of([&] { matched_depth("mamba2", lm, 1, 64); }), "expected at most 3 %"));
}

TEST(Zoo, SaysWhatIsWrong) {
  EXPECT_EQ(message_of([] { make_attention("flash", grid_config()); }).rfind("make_attention: attention is 'flash'", 0),
            0u);
  AttentionConfig c = grid_config();
  c.heads = 0;
  EXPECT_EQ(message_of([&] { make_attention("gla", c); }), "make_attention: gla: heads is 0, expected at least 1");
  c.heads = 5;
  for (const char* name : {"softmax", "gla", "gdn", "focused", "mala"})
    EXPECT_TRUE(has(message_of([&] { make_attention(name, c); }), "16 channels") ||
                has(message_of([&] { make_attention(name, c); }), "48 channels"))
        << name;
  c = grid_config(), c.layout = Layout::line(8);
  EXPECT_TRUE(has(message_of([&] { make_attention("inline", c); }), "inline: the layout is not a 2D grid"));
  c = grid_config(), c.causal = true;
  EXPECT_TRUE(has(message_of([&] { make_attention("softmax", c); }), "causal with a layout"));
  for (const char* name : {"softmax", "focused", "inline", "mala", "rala"}) {
    const AnyAttention attention = make_attention(name, grid_config());
    const std::string said = message_of([&] { attention->forward(torch::randn({1, 24, 16}), torch::tensor({0, 24})); });
    EXPECT_TRUE(has(said, std::string(name) + ": cu_seqlens is given")) << said;
  }
  const AnyAttention gla = make_attention("gla", text_config());
  const auto refused = [&](std::int64_t B, const torch::Tensor& cu) {
    return message_of([&] { gla->forward(torch::randn({B, 24, 16}), cu); });
  };
  EXPECT_EQ(refused(2, torch::tensor({0, 24})), "gla: x has 2 batch elements, expected 1 with cu_seqlens");
  EXPECT_EQ(refused(1, torch::tensor({0, 23})), "gla: cu_seqlens goes from 0 to 23, expected 0 to N = 24");
  EXPECT_EQ(refused(1, torch::tensor({0, 9, 8, 24})), "gla: cu_seqlens[2] is 8, expected at least 9");
  EXPECT_EQ(refused(1, torch::tensor({0.0, 24.0})),
            "gla: cu_seqlens is Float of shape [2], expected int32 or int64 of shape [S + 1]");
}

// Packed sequences, an empty one among them, are what each is alone: outputs and the gradient of x.
TEST(Zoo, PackedSequencesDoNotSeeEachOther) {
  const std::int64_t bounds[] = {0, 5, 5, 6, 33, 50};
  for (const std::string_view name : attention_names()) {
    if (!wants_causal_form(name)) continue;
    SCOPED_TRACE(name);
    AttentionConfig config = text_config();
    config.rope = true;
    const AnyAttention attention = make_double(name, config);
    torch::Tensor x = zoo_tokens(1, 50).requires_grad_();
    for (const auto type : {torch::kInt, torch::kLong}) {
      const torch::Tensor cu = torch::tensor(std::vector<std::int64_t>(std::begin(bounds), std::end(bounds))).to(type);
      const torch::Tensor got = attention->forward(x, cu);
      std::vector<torch::Tensor> alone;
      for (std::size_t i = 0; i + 1 < std::size(bounds); ++i) {
        if (bounds[i + 1] > bounds[i])
          alone.push_back(attention->forward(x.narrow(1, bounds[i], bounds[i + 1] - bounds[i])));
      }
      const torch::Tensor want = torch::cat(alone, 1), dout = torch::randn_like(want);
      EXPECT_LE(distance(got, want), 1e-12);
      EXPECT_LE(distance(torch::autograd::grad({got}, {x}, {dout})[0], torch::autograd::grad({want}, {x}, {dout})[0]),
                1e-11);
    }
  }
}

}  // namespace
}  // namespace mhla
