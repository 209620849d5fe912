// ONNX files: a graph of plain operators with its weights inside, opset 17. The writer knows the format and no model:
// it makes names unique, keeps the order of nodes and writes the weights without a copy of the whole file in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mhla {

class OnnxGraph {
 public:
  using Value = std::string;  // what a node takes and gives: its name
  using Attribute = std::variant<std::int64_t, float, std::vector<std::int64_t>>;
  using Attributes = std::vector<std::pair<std::string, Attribute>>;
  using Shape = std::vector<std::int64_t>;  // kBatch: an axis of any size

  static constexpr std::int64_t kBatch = -1;
  static constexpr std::int64_t kOpset = 17;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;  // protobuf reads no more

  explicit OnnxGraph(std::string name) : name_(std::move(name)) {}

  Value input(const std::string& name, const Shape& shape);
  void output(const Value& value, const std::string& name, const Shape& shape);  // of f32, as inputs are
  void metadata(const std::string& key, const std::string& value);

  // Weights. A name is given once; the values must live until write().
  Value weights(const std::string& name, const Shape& shape, std::span<const float> values);
  Value weights(const std::string& name, const Shape& shape, std::vector<float> values);  // the graph keeps them
  // Constants without a name of their own; equal ones are one.
  Value integers(const std::vector<std::int64_t>& values);  // [n]
  Value number(double value);                               // [] f32

  // One result, or `count` of them. Nodes are called after the scope they are made in.
  void enter(std::string scope) { scope_ = std::move(scope); }
  Value node(std::string_view op, const std::vector<Value>& inputs, const Attributes& attributes = {});
  std::vector<Value> nodes(std::string_view op, const std::vector<Value>& inputs, std::size_t count,
                           const Attributes& attributes = {});

  [[nodiscard]] std::uint64_t weight_bytes() const { return weight_bytes_; }
  // Throws an Error before anything is written where the file would have more than kMostBytes.
  void write(const std::filesystem::path& path) const;

 private:
  struct Tensor {
    std::string head;  // all but the values
    std::span<const std::byte> values;
  };
  Value add(const std::string& name, const Shape& shape, int type, std::span<const std::byte> values);

  std::string name_, scope_;
  std::string nodes_, inputs_, outputs_, metadata_;  // as they are written
  std::vector<Tensor> tensors_;
  std::uint64_t weight_bytes_ = 0;
  std::set<std::string> names_;
  std::map<std::string, std::int64_t> counts_;  // of nodes by scope and operator
  std::map<std::vector<std::int64_t>, Value> known_integers_;
  std::map<float, Value> known_numbers_;
  std::deque<std::vector<float>> kept_floats_;
  std::deque<std::vector<std::int64_t>> kept_integers_;
};

}  // namespace mhla
