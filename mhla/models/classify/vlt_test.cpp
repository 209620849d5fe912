// VLT against plain LibTorch code on [B, C, rows, columns] with the published weights: convolutions as convolutions,
// the attentions over pairs of tokens.
#include "mhla/models/classify/vlt.h"

#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

ClassifierConfig config(const char* attention) {
  ClassifierConfig c = classifier_config("vlt_tiny", attention);
  c.image = {44, 36}, c.classes = 5, c.dims = {16, 16, 32, 32}, c.depths = {1, 2, 1, 1}, c.heads = {2, 1, 2, 4};
  c.blocks = {{3, 5}, {2, 2}};  // 11 x 9 tokens: ragged
  return c;
}

class Plain {
 public:
  Plain(const Classifier& model, const ClassifierConfig& c) : weights_(published_weights(model)), c_(c) {}

  torch::Tensor run(torch::Tensor x) {
    for (int i = 0; i < 4; ++i) {
      x = norm(conv(x, str("patch_embed.proj.", 3 * i), i == 0 || i == 3 ? 2 : 1, 1),
               str("patch_embed.proj.", 3 * i + 1));
      if (i < 3) x = torch::gelu(x);
    }
    for (std::size_t stage = 0; stage < 4; ++stage) {
      for (std::int64_t j = 0; j < c_.depths[stage]; ++j)
        x = block(x, stage, str("layers.", stage, ".blocks.", j, "."));
      const std::string down = str("layers.", stage, ".downsample.");
      if (stage < 3) x = norm(conv(x, down + "reduction", 2, 1), down + "norm");
    }
    x = torch::silu(norm(conv(x, "proj", 1, 0), "norm"));
    return conv(x.mean({2, 3}, /*keepdim=*/true), "head", 1, 0).flatten(1);
  }

 private:
  torch::Tensor get(const std::string& name) { return weights_.at(name); }
  torch::Tensor conv(const torch::Tensor& x, const std::string& name, std::int64_t stride, std::int64_t padding,
                     std::int64_t groups = 1) {
    const std::vector<std::int64_t> strides{stride, stride}, paddings{padding, padding}, once{1, 1};
    return torch::conv2d(x, get(name + ".weight"), get(name + ".bias"), strides, paddings, once, groups);
  }
  torch::Tensor depthwise(const torch::Tensor& x, const std::string& name, std::int64_t kernel) {
    return conv(x, name, 1, kernel / 2, x.size(1));
  }
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) {
    const auto channels = [&](const char* part) { return get(name + part).view({1, -1, 1, 1}); };
    return (x - channels(".running_mean")) / (channels(".running_var") + 1e-5).sqrt() * channels(".weight") +
           channels(".bias");
  }
  torch::Tensor layer_norm(const torch::Tensor& x, const std::string& name) {
    const torch::Tensor centred = x - x.mean(1, true);
    const torch::Tensor scaled = centred / (centred.square().mean(1, true) + 1e-6).sqrt();
    return scaled * get(name + ".norm.weight").view({1, -1, 1, 1}) + get(name + ".norm.bias").view({1, -1, 1, 1});
  }

  torch::Tensor block(torch::Tensor x, std::size_t stage, const std::string& prefix) {
    x = x + depthwise(x, prefix + "pos", 3);
    x = x + get(prefix + "gamma_1") * attention(layer_norm(x, prefix + "norm1"), stage, prefix + "attn.");
    torch::Tensor y = torch::gelu(conv(layer_norm(x, prefix + "norm2"), prefix + "ffn.fc1", 1, 0));
    y = conv(y + depthwise(y, prefix + "ffn.dwconv", 3), prefix + "ffn.fc2", 1, 0);
    return x + get(prefix + "gamma_2") * y;
  }

  torch::Tensor attention(const torch::Tensor& x, std::size_t stage, const std::string& prefix) {
    const std::int64_t rows = x.size(2), columns = x.size(3), heads = c_.heads[stage];
    const auto parts = conv(x, prefix + "qkvo", 1, 0).chunk(4, 1);
    const auto by_heads = [&](const torch::Tensor& y) {  // [B, H, N, D]
      return y.flatten(2).unflatten(1, {heads, -1}).transpose(2, 3);
    };
    torch::Tensor q = by_heads(parts[0]), k = by_heads(parts[1]), A;
    const torch::Tensor v = by_heads(parts[2]);
    const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
    const auto pairs = [&](const torch::Tensor& a, const torch::Tensor& b) {
      return torch::matmul(a, b.transpose(2, 3));
    };
    const auto phi = [](const torch::Tensor& y) { return torch::elu(y) + 1; };
    const auto turned = [&](const torch::Tensor& y) { return turn(y, str("layers.", stage, ".RoPE.angle"), columns); };
    if (stage >= 2) {
      A = (pairs(turned(q), turned(k)) * scale).softmax(-1);
    } else if (c_.attention == "mhla") {
      const torch::Tensor of =
          block_of_tokens(Layout::grid2d(rows, columns, c_.blocks[stage][0], c_.blocks[stage][1]), rows * columns);
      const torch::Tensor mix =
          get(prefix + "piece_attn.conv.weight").flatten(1).index_select(0, of).index_select(1, of);
      q = phi(q), k = phi(k);
      A = mix * pairs(turned(q), turned(k)) / ((mix * pairs(q, k)).sum(-1, true) + 1e-6);
    } else {  // rala
      q = phi(q), k = phi(k);
      k = k * static_cast<double>(rows * columns) * (scale * pairs(q.mean(2, true), k)).softmax(-1).transpose(2, 3);
      A = pairs(turned(q), turned(k)) / (pairs(q, k).sum(-1, true) + 1e-6 * static_cast<double>(rows * columns));
    }
    const torch::Tensor core = torch::matmul(A, v).transpose(2, 3).reshape_as(parts[2]);
    return conv((core + depthwise(parts[2], prefix + "lepe", 5)) * parts[3], prefix + "proj", 1, 0);
  }

  // Adjacent channels turn by row * angle in the first half, by column * angle in the second. The table has every angle
  // twice, once for each channel of a pair.
  torch::Tensor turn(const torch::Tensor& x, const std::string& table, std::int64_t columns) {
    const torch::Tensor twice = get(table).to(x.scalar_type());
    const torch::Tensor place = torch::arange(x.size(2));
    const auto angles = [&](const torch::Tensor& at) { return at.to(x.scalar_type()).unsqueeze(-1) * twice; };
    const torch::Tensor all = torch::cat(
        {angles(torch::div(place, columns, "floor")), angles(torch::remainder(place, columns))}, -1);  // [N, D]
    const torch::Tensor pairs = x.unflatten(-1, {-1, 2}), even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
    const torch::Tensor other = torch::stack({-odd, even}, -1).flatten(-2);
    return x * all.cos() + other * all.sin();
  }

  Weights weights_;
  const ClassifierConfig& c_;
};

TEST(Vlt, IsTheFormula) {
  for (const char* attention : {"mhla", "rala"}) {
    const ClassifierConfig c = config(attention);
    torch::manual_seed(1);
    const AnyClassifier model = make_classifier(c);
    {
      const torch::NoGradGuard no_gradient;
      for (const auto& item : model->named_parameters()) {
        if (!has(item.key(), ".mix")) item.value().add_(torch::randn_like(item.value()) * 0.1);
      }
      for (const auto& item : model->named_buffers()) item.value().add_(torch::rand_like(item.value()) * 0.2);
    }
    model->eval();
    model->to(torch::kDouble);
    const torch::Tensor x = torch::randn({2, 3, 44, 36}, torch::kDouble);
    const torch::Tensor want = Plain(*model, c).run(x);
    EXPECT_LE(distance(model->forward(x), want), 1e-6) << attention;  // the published angles are f32
  }
}

TEST(Vlt, NormalisesByBatchInTraining) {
  const ClassifierConfig c = config("mhla");
  const AnyClassifier model = make_classifier(c);
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({4, 3, 44, 36});
  const torch::Tensor before = state_of(*model).at("norm.running_mean").clone();
  const torch::Tensor first = model->forward(x);
  EXPECT_FALSE(torch::equal(state_of(*model).at("norm.running_mean"), before));
  model->eval();
  EXPECT_FALSE(torch::equal(model->forward(x), first));
  const torch::Tensor kept = state_of(*model).at("norm.running_mean").clone();
  model->forward(x);
  EXPECT_TRUE(torch::equal(state_of(*model).at("norm.running_mean"), kept));
}

}  // namespace
}  // namespace mhla
