// Fields used (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto):
//   ModelProto      1 ir_version | 2 producer_name | 7 graph | 8 opset_import | 14 metadata_props
//   GraphProto      1 node | 2 name | 5 initializer | 11 input | 12 output
//   NodeProto       1 input | 2 output | 3 name | 4 op_type | 5 attribute
//   AttributeProto  1 name | 2 f | 3 i | 8 ints | 20 type
//   TensorProto     1 dims | 2 data_type | 8 name | 9 raw_data (little endian)
//   ValueInfoProto  1 name | 2 type;  TypeProto 1 tensor_type;  Tensor 1 elem_type, 2 shape;  Shape 1 dim
//   Dimension       1 dim_value | 2 dim_param;  OperatorSetId 2 version;  StringStringEntry 1 key, 2 value
#include "mhla/io/onnx.h"

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/protobuf.h"

namespace mhla {
namespace {

using namespace protobuf;

constexpr std::int64_t kIrVersion = 8;  // what opset 17 came with
constexpr int kFloat = 1, kInt64 = 7;   // TensorProto.DataType

std::string value_info(const std::string& name, const OnnxGraph::Shape& shape) {
  std::string dims, tensor, type, info;
  for (const std::int64_t size : shape) {
    std::string dim;
    if (size == OnnxGraph::kBatch)
      put_bytes(dim, 2, "batch");
    else
      put_int(dim, 1, size);
    put_bytes(dims, 1, dim);
  }
  put_int(tensor, 1, kFloat), put_bytes(tensor, 2, dims);
  put_bytes(type, 1, tensor);
  put_bytes(info, 1, name), put_bytes(info, 2, type);
  return info;
}

std::string attribute(const std::string& name, const OnnxGraph::Attribute& value) {
  std::string text;
  put_bytes(text, 1, name);
  if (const auto* f = std::get_if<float>(&value)) put_float(text, 2, *f), put_int(text, 20, 1);
  if (const auto* i = std::get_if<std::int64_t>(&value)) put_int(text, 3, *i), put_int(text, 20, 2);
  if (const auto* ints = std::get_if<std::vector<std::int64_t>>(&value)) {
    for (const std::int64_t i : *ints) put_int(text, 8, i);
    put_int(text, 20, 7);
  }
  return text;
}

std::uint64_t varint_size(std::uint64_t value) {
  std::string text;
  put_varint(text, value);
  return text.size();
}

}  // namespace

OnnxGraph::Value OnnxGraph::input(const std::string& name, const Shape& shape) {
  if (!names_.insert(name).second) fail("onnx: '", name, "' is there already");
  put_bytes(inputs_, 11, value_info(name, shape));
  return name;
}

void OnnxGraph::output(const Value& value, const std::string& name, const Shape& shape) {
  std::string node;  // gives it the name it has outside
  put_bytes(node, 1, value), put_bytes(node, 2, name), put_bytes(node, 3, name), put_bytes(node, 4, "Identity");
  put_bytes(nodes_, 1, node);
  put_bytes(outputs_, 12, value_info(name, shape));
}

void OnnxGraph::metadata(const std::string& key, const std::string& value) {
  std::string entry;
  put_bytes(entry, 1, key), put_bytes(entry, 2, value);
  put_bytes(metadata_, 14, entry);
}

OnnxGraph::Value OnnxGraph::add(const std::string& name, const Shape& shape, int type,
                                std::span<const std::byte> values) {
  if (!names_.insert(name).second) fail("onnx: '", name, "' is there already");
  std::int64_t count = 1;
  std::string head;
  for (const std::int64_t size : shape) put_int(head, 1, size), count *= size;
  if (static_cast<std::uint64_t>(count) * (type == kFloat ? 4u : 8u) != values.size())
    fail("onnx: '", name, "' has ", values.size(), " bytes, expected ", count, " values");
  put_int(head, 2, type), put_bytes(head, 8, name), put_length(head, 9, values.size());
  tensors_.push_back({std::move(head), values});
  weight_bytes_ += values.size();
  return name;
}

OnnxGraph::Value OnnxGraph::weights(const std::string& name, const Shape& shape, std::span<const float> values) {
  return add(name, shape, kFloat, std::as_bytes(values));
}

OnnxGraph::Value OnnxGraph::weights(const std::string& name, const Shape& shape, std::vector<float> values) {
  kept_floats_.push_back(std::move(values));
  return weights(name, shape, std::span<const float>(kept_floats_.back()));
}

OnnxGraph::Value OnnxGraph::integers(const std::vector<std::int64_t>& values) {
  Value& known = known_integers_[values];
  if (known.empty()) {
    kept_integers_.push_back(values);
    known = add(str("integers.", known_integers_.size()), {static_cast<std::int64_t>(values.size())}, kInt64,
                std::as_bytes(std::span(kept_integers_.back())));
  }
  return known;
}

OnnxGraph::Value OnnxGraph::number(double value) {
  const auto single = static_cast<float>(value);
  Value& known = known_numbers_[single];
  if (known.empty()) known = weights(str("number.", known_numbers_.size()), {}, std::vector<float>{single});
  return known;
}

OnnxGraph::Value OnnxGraph::node(std::string_view op, const std::vector<Value>& inputs, const Attributes& attributes) {
  return nodes(op, inputs, 1, attributes).front();
}

std::vector<OnnxGraph::Value> OnnxGraph::nodes(std::string_view op, const std::vector<Value>& inputs, std::size_t count,
                                               const Attributes& attributes) {
  const std::string called = str(scope_, scope_.empty() ? "" : "/", op);
  const std::int64_t number = counts_[called]++;
  const std::string name = number == 0 ? called : str(called, "_", number);
  std::string node;
  for (const Value& value : inputs) put_bytes(node, 1, value);
  std::vector<Value> outputs;
  for (std::size_t i = 0; i < count; ++i) {
    outputs.push_back(count == 1 ? name : str(name, ":", i));
    put_bytes(node, 2, outputs.back());
  }
  put_bytes(node, 3, name), put_bytes(node, 4, op);
  for (const auto& [key, value] : attributes) put_bytes(node, 5, attribute(key, value));
  put_bytes(nodes_, 1, node);
  return outputs;
}

void OnnxGraph::write(const std::filesystem::path& path) const {
  std::string head, graph_name, tail, opset;
  put_int(head, 1, kIrVersion), put_bytes(head, 2, "mhla");
  put_int(opset, 2, kOpset);
  put_bytes(graph_name, 2, name_);
  std::uint64_t graph = nodes_.size() + graph_name.size() + inputs_.size() + outputs_.size();
  for (const Tensor& tensor : tensors_) {
    const std::uint64_t bytes = tensor.head.size() + tensor.values.size();
    graph += 1 + varint_size(bytes) + bytes;
  }
  put_bytes(tail, 8, opset);
  tail += metadata_;
  if (const std::uint64_t all = head.size() + graph + tail.size() + 16; all > kMostBytes)
    fail("onnx: ", path.string(), " would have ", all, " bytes, expected at most ", kMostBytes,
         ": an ONNX file with its weights inside cannot be larger");
  put_length(head, 7, graph);
  AtomicFile file(path);
  const auto write_text = [&](const std::string& text) { file.write(std::as_bytes(std::span(text))); };
  write_text(head), write_text(nodes_), write_text(graph_name);
  for (const Tensor& tensor : tensors_) {
    std::string key;
    put_length(key, 5, tensor.head.size() + tensor.values.size());
    write_text(key + tensor.head);
    file.write(tensor.values);
  }
  write_text(inputs_), write_text(outputs_), write_text(tail);
  file.commit();
}

}  // namespace mhla
