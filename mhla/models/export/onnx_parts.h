// The layers of our networks as ONNX operators. Tokens are [B, N, C] as in the networks themselves; B is not known.
#pragma once

#include <set>

#include "mhla/io/onnx.h"
#include "mhla/kernels/common/layout.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

class OnnxParts {
 public:
  using Value = OnnxGraph::Value;
  using Shape = OnnxGraph::Shape;

  // `weights` by the names of the network, f32.
  OnnxParts(OnnxGraph& graph, const Weights& weights) : graph_(graph), weights_(weights) {}
  [[nodiscard]] OnnxGraph& graph() { return graph_; }
  [[nodiscard]] bool has(const std::string& name) const { return weights_.count(name) != 0; }
  [[nodiscard]] torch::Tensor tensor(const std::string& name);  // counts as used
  void expect_all_used() const;                                 // an Error names the first that is not

  // One operator each.
  Value weight(const std::string& name);                                // as it is
  Value constant(const std::string& name, const torch::Tensor& value);  // f32
  Value add(const Value& a, const Value& b) { return graph_.node("Add", {a, b}); }
  Value multiply(const Value& a, const Value& b) { return graph_.node("Mul", {a, b}); }
  Value divide(const Value& a, const Value& b) { return graph_.node("Div", {a, b}); }
  Value matmul(const Value& a, const Value& b) { return graph_.node("MatMul", {a, b}); }
  Value reshape(const Value& x, const Shape& shape) { return graph_.node("Reshape", {x, graph_.integers(shape)}); }
  Value transpose(const Value& x, const Shape& order) { return graph_.node("Transpose", {x}, {{"perm", order}}); }
  Value gather(const Value& x, const std::vector<std::int64_t>& indices, std::int64_t axis);
  Value sum(const Value& x, std::int64_t axis, bool keep);
  Value mean(const Value& x, const Shape& axes, bool keep);
  std::vector<Value> split(const Value& x, const Shape& sizes);  // the last axis

  // Layers. `name` is that of the module.
  Value linear(const Value& x, const std::string& name);  // also 1x1 convolutions on tokens
  Value layer_norm(const Value& x, const std::string& name, double eps);
  Value rms_norm(const Value& x, const std::string& name, double eps);
  Value batch_norm(const Value& image, const std::string& name);
  Value conv(const Value& image, const std::string& name, std::int64_t stride, std::int64_t padding);
  Value grid_conv(const Value& tokens, const std::string& name, const Layout& layout);  // depth-wise
  Value gelu(const Value& x);                                                           // exact
  Value silu(const Value& x) { return multiply(x, graph_.node("Sigmoid", {x})); }
  Value to_image(const Value& tokens, std::int64_t channels, const Layout& layout);
  Value to_tokens(const Value& image, std::int64_t channels, std::int64_t tokens);
  Value rope(const Value& x, const Layout& layout, std::int64_t size, double base);
  Value features(const Value& x, const std::string& name, Features features, std::int64_t size);

 private:
  Value conv_node(const Value& image, const std::string& name, std::int64_t stride, std::int64_t padding,
                  std::int64_t groups);

  OnnxGraph& graph_;
  const Weights& weights_;
  std::set<std::string> used_, ropes_;
};

}  // namespace mhla
