#include "mhla/models/export/onnx_parts.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/modules/rope.h"

namespace mhla {
namespace {

constexpr double kBatchNormEps = 1e-5;
constexpr std::int64_t kDpfpRolls = 4;

}  // namespace

torch::Tensor OnnxParts::tensor(const std::string& name) {
  const auto found = weights_.find(name);
  if (found == weights_.end()) fail("export: the model has no tensor '", name, "'");
  used_.insert(name);
  return found->second;
}

void OnnxParts::expect_all_used() const {
  for (const auto& [name, value] : weights_)
    if (used_.count(name) == 0) fail("export: tensor '", name, "' of the model has no place in the graph");
}

OnnxParts::Value OnnxParts::constant(const std::string& name, const torch::Tensor& value) {
  const torch::Tensor dense = value.detach().to(torch::kCPU, torch::kFloat).contiguous();
  const float* first = dense.data_ptr<float>();
  return graph_.weights(name, dense.sizes().vec(), std::vector<float>(first, first + dense.numel()));
}

OnnxParts::Value OnnxParts::weight(const std::string& name) { return constant(name, tensor(name)); }

OnnxParts::Value OnnxParts::gather(const Value& x, const std::vector<std::int64_t>& indices, std::int64_t axis) {
  return graph_.node("Gather", {x, graph_.integers(indices)}, {{"axis", axis}});
}

OnnxParts::Value OnnxParts::sum(const Value& x, std::int64_t axis, bool keep) {
  return graph_.node("ReduceSum", {x, graph_.integers({axis})}, {{"keepdims", std::int64_t{keep}}});
}

OnnxParts::Value OnnxParts::mean(const Value& x, const Shape& axes, bool keep) {
  return graph_.node("ReduceMean", {x}, {{"axes", axes}, {"keepdims", std::int64_t{keep}}});
}

std::vector<OnnxParts::Value> OnnxParts::split(const Value& x, const Shape& sizes) {
  return graph_.nodes("Split", {x, graph_.integers(sizes)}, sizes.size(), {{"axis", std::int64_t{-1}}});
}

OnnxParts::Value OnnxParts::linear(const Value& x, const std::string& name) {
  const torch::Tensor rows = tensor(name + ".weight").flatten(1);  // [out, in]
  const Value product = matmul(x, constant(name + ".weight", rows.t()));
  return has(name + ".bias") ? add(product, weight(name + ".bias")) : product;
}

OnnxParts::Value OnnxParts::layer_norm(const Value& x, const std::string& name, double eps) {
  if (!has(name + ".bias")) return rms_norm(x, name, eps);
  return graph_.node("LayerNormalization", {x, weight(name + ".weight"), weight(name + ".bias")},
                     {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(eps)}});
}

OnnxParts::Value OnnxParts::rms_norm(const Value& x, const std::string& name, double eps) {
  const Value square = mean(multiply(x, x), {-1}, true);
  return multiply(divide(x, graph_.node("Sqrt", {add(square, graph_.number(eps))})), weight(name + ".weight"));
}

OnnxParts::Value OnnxParts::batch_norm(const Value& image, const std::string& name) {
  return graph_.node("BatchNormalization",
                     {image, weight(name + ".weight"), weight(name + ".bias"), weight(name + ".running_mean"),
                      weight(name + ".running_var")},
                     {{"epsilon", static_cast<float>(kBatchNormEps)}});
}

OnnxParts::Value OnnxParts::conv_node(const Value& image, const std::string& name, std::int64_t stride,
                                      std::int64_t padding, std::int64_t groups) {
  std::vector<Value> inputs{image, weight(name + ".weight")};
  if (has(name + ".bias")) inputs.push_back(weight(name + ".bias"));
  return graph_.node("Conv", inputs,
                     {{"group", groups}, {"strides", Shape{stride, stride}}, {"pads", Shape(4, padding)}});
}

OnnxParts::Value OnnxParts::conv(const Value& image, const std::string& name, std::int64_t stride,
                                 std::int64_t padding) {
  return conv_node(image, name, stride, padding, 1);
}

OnnxParts::Value OnnxParts::to_image(const Value& tokens, std::int64_t channels, const Layout& layout) {
  return reshape(transpose(tokens, {0, 2, 1}), {0, channels, layout.grid[1], layout.grid[2]});
}

OnnxParts::Value OnnxParts::to_tokens(const Value& image, std::int64_t channels, std::int64_t tokens) {
  return transpose(reshape(image, {0, channels, tokens}), {0, 2, 1});
}

OnnxParts::Value OnnxParts::grid_conv(const Value& tokens, const std::string& name, const Layout& layout) {
  const torch::Tensor kernel = tensor(name + ".weight");  // [C, 1, k, k]
  const std::int64_t channels = kernel.size(0);
  const Value out = conv_node(to_image(tokens, channels, layout), name, 1, kernel.size(-1) / 2, channels);
  return to_tokens(out, channels, layout.grid[1] * layout.grid[2]);
}

OnnxParts::Value OnnxParts::gelu(const Value& x) {
  const Value bell = graph_.node("Erf", {multiply(x, graph_.number(std::sqrt(0.5)))});
  return multiply(multiply(x, graph_.number(0.5)), add(bell, graph_.number(1.0)));
}

// Adjacent channels turn by one angle: x cos + swapped(x) sin, the sine of the first of a pair negative.
OnnxParts::Value OnnxParts::rope(const Value& x, const Layout& layout, std::int64_t size, double base) {
  const torch::Tensor angles = rope_angles_grid(layout, size, base);  // [N, size / 2]
  const auto table = [&](const torch::Tensor& first, const torch::Tensor& second) {
    return torch::stack({first, second}, -1).flatten(1).unsqueeze(1);  // [N, 1, size]
  };
  std::vector<std::int64_t> swapped;
  for (std::int64_t i = 0; i < size; ++i) swapped.push_back(i ^ 1);
  // One table serves all layers of a grid.
  const std::string key = str("rope.", layout.grid[1], "x", layout.grid[2], "x", size);
  if (ropes_.insert(key).second) {
    constant(key + ".cos", table(angles.cos(), angles.cos()));
    constant(key + ".sin", table(-angles.sin(), angles.sin()));
  }
  return add(multiply(x, key + ".cos"), multiply(gather(x, swapped, -1), key + ".sin"));
}

OnnxParts::Value OnnxParts::features(const Value& x, const std::string& name, Features features, std::int64_t size) {
  const auto relu = [&](const Value& y) { return graph_.node("Relu", {y}); };
  const auto concat = [&](const std::vector<Value>& parts) {
    return graph_.node("Concat", parts, {{"axis", std::int64_t{-1}}});
  };
  if (is_fused(features)) {
    switch (fused_map(features)) {
      case FeatureMap::kReluEps: return add(relu(x), graph_.number(kReluEpsilon));
      case FeatureMap::kRelu: return relu(x);
      case FeatureMap::kElu1: return add(graph_.node("Elu", {x}), graph_.number(1.0));
      case FeatureMap::kIdentity: return x;
    }
  }
  switch (features) {
    case Features::kT2r: return relu(linear(x, name + ".layer"));
    case Features::kHadamard: return multiply(linear(x, name + ".layer1"), linear(x, name + ".layer2"));
    case Features::kHedgehog: {
      const Value y = multiply(linear(x, name + ".layer"), graph_.number(2.0));
      return graph_.node("Softmax", {concat({y, graph_.node("Neg", {y})})}, {{"axis", std::int64_t{-1}}});
    }
    case Features::kDpfp: {
      const Value r = concat({relu(x), relu(graph_.node("Neg", {x}))});
      std::vector<Value> products;
      for (std::int64_t roll = 1; roll <= kDpfpRolls; ++roll) {
        std::vector<std::int64_t> rolled;
        for (std::int64_t i = 0; i < 2 * size; ++i) rolled.push_back((i - roll % (2 * size) + 2 * size) % (2 * size));
        products.push_back(multiply(r, gather(r, rolled, -1)));
      }
      return concat(products);
    }
  }
  fail("export: feature map ", static_cast<int>(features), " is unknown");
}

}  // namespace mhla
