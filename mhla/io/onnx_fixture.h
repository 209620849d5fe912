// An ONNX file, read back: what a test looks at.
#pragma once

#include <bit>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mhla/io/file.h"
#include "mhla/io/protobuf_fixture.h"

namespace mhla {

struct OnnxTensor {
  std::vector<std::int64_t> shape;
  int type = 0;  // 1 f32, 7 int64
  std::string bytes;
};
struct OnnxNode {
  std::string name, op;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, std::vector<std::int64_t>> ints;  // a single one, too
  std::map<std::string, float> floats;
};
struct OnnxFile {
  std::int64_t ir_version = 0, opset = 0;
  std::vector<OnnxNode> nodes;
  std::map<std::string, OnnxTensor> tensors;
  std::map<std::string, std::vector<std::string>> inputs, outputs;  // sizes as text; an axis of any size by its name
  std::map<std::string, std::string> metadata;
};

namespace onnx_fixture {

using Number = std::uint64_t;
using Text = std::string_view;

inline OnnxNode node_in(Text message) {
  OnnxNode node;
  walk_message(message, [&](Number field, Number, Text bytes) {
    if (field == 1) node.inputs.emplace_back(bytes);
    if (field == 2) node.outputs.emplace_back(bytes);
    if (field == 3) node.name = bytes;
    if (field == 4) node.op = bytes;
    if (field != 5) return;
    std::string name;
    walk_message(bytes, [&](Number part, Number number, Text text) {
      if (part == 1) name = text;
      if (part == 2) node.floats[name] = std::bit_cast<float>(static_cast<std::uint32_t>(number));
      if (part == 3 || part == 8) node.ints[name].push_back(static_cast<std::int64_t>(number));
    });
  });
  return node;
}

inline std::pair<std::string, std::vector<std::string>> value_in(Text message) {
  std::pair<std::string, std::vector<std::string>> value;
  walk_message(message, [&](Number field, Number, Text bytes) {
    if (field == 1) value.first = bytes;
    if (field != 2) return;
    walk_message(bytes, [&](Number, Number, Text tensor) {
      walk_message(tensor, [&](Number part, Number, Text shape) {
        if (part != 2) return;
        walk_message(shape, [&](Number, Number, Text dim) {
          walk_message(dim, [&](Number kind, Number size, Text name) {
            value.second.push_back(kind == 1 ? std::to_string(size) : std::string(name));
          });
        });
      });
    });
  });
  return value;
}

}  // namespace onnx_fixture

inline OnnxFile read_onnx(const std::filesystem::path& path) {
  using namespace onnx_fixture;
  const std::vector<std::byte> bytes = read_file(path);
  OnnxFile file;
  const auto graph = [&](Number field, Number, Text part) {
    if (field == 1) file.nodes.push_back(node_in(part));
    if (field == 11) file.inputs.insert(value_in(part));
    if (field == 12) file.outputs.insert(value_in(part));
    if (field != 5) return;
    OnnxTensor tensor;
    std::string name;
    walk_message(part, [&](Number kind, Number number, Text text) {
      if (kind == 1) tensor.shape.push_back(static_cast<std::int64_t>(number));
      if (kind == 2) tensor.type = static_cast<int>(number);
      if (kind == 8) name = text;
      if (kind == 9) tensor.bytes = text;
    });
    EXPECT_TRUE(file.tensors.emplace(name, std::move(tensor)).second) << name << " twice";
  };
  walk_message({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
               [&](Number field, Number number, Text part) {
                 if (field == 1) file.ir_version = static_cast<std::int64_t>(number);
                 if (field == 7) walk_message(part, graph);
                 if (field == 8)
                   walk_message(part, [&](Number kind, Number version, Text) {
                     if (kind == 2) file.opset = static_cast<std::int64_t>(version);
                   });
                 if (field != 14) return;
                 std::string key;
                 walk_message(part, [&](Number kind, Number, Text text) {
                   if (kind == 1) key = text;
                   if (kind == 2) file.metadata[key] = text;
                 });
               });
  return file;
}

}  // namespace mhla
