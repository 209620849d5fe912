// A small graph through the writer and back through a reader of its own.
#include "mhla/io/onnx.h"

#include <gtest/gtest.h>

#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/onnx_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

class OnnxTest : public testing::Test {
 protected:
  OnnxTest() : path(std::filesystem::path(testing::TempDir()) / "graph.onnx") {}
  ~OnnxTest() override { std::filesystem::remove(path); }
  std::filesystem::path path;
};

TEST_F(OnnxTest, WhatWasWrittenComesBack) {
  const std::vector<float> weight{1, 2, 3, 4, 5, 6};
  OnnxGraph graph("tiny");
  const OnnxGraph::Value x = graph.input("x", {OnnxGraph::kBatch, 2});
  graph.enter("head");
  const OnnxGraph::Value w = graph.weights("head.weight", {2, 3}, std::span<const float>(weight));
  const OnnxGraph::Value product = graph.node("MatMul", {x, w});
  const std::vector<OnnxGraph::Value> parts =
      graph.nodes("Split", {product, graph.integers({1, 2})}, 2, {{"axis", std::int64_t{-1}}});
  EXPECT_EQ(graph.integers({1, 2}), graph.integers({1, 2}));
  EXPECT_EQ(graph.number(0.5), graph.number(0.5));
  const OnnxGraph::Value out = graph.node("Elu", {parts[1]}, {{"alpha", 0.25f}});
  EXPECT_NE(graph.node("Elu", {out}), out);
  graph.output(out, "logits", {OnnxGraph::kBatch, 2});
  graph.metadata("made", "here");
  graph.write(path);

  const OnnxFile file = read_onnx(path);
  EXPECT_EQ(file.ir_version, 8);
  EXPECT_EQ(file.opset, 17);
  EXPECT_EQ(file.metadata.at("made"), "here");
  EXPECT_EQ(file.inputs.at("x"), (std::vector<std::string>{"batch", "2"}));
  EXPECT_EQ(file.outputs.at("logits"), (std::vector<std::string>{"batch", "2"}));
  ASSERT_EQ(file.nodes.size(), 5u);
  EXPECT_EQ(file.nodes[0].op, "MatMul");
  EXPECT_EQ(file.nodes[0].name, "head/MatMul");
  EXPECT_EQ(file.nodes[0].inputs, (std::vector<std::string>{"x", "head.weight"}));
  EXPECT_EQ(file.nodes[1].outputs, parts);
  EXPECT_EQ(file.nodes[1].ints.at("axis"), std::vector<std::int64_t>{-1});
  EXPECT_EQ(file.nodes[2].floats.at("alpha"), 0.25f);
  EXPECT_EQ(file.nodes[4].outputs, std::vector<std::string>{"logits"});
  const OnnxTensor& back = file.tensors.at("head.weight");
  EXPECT_EQ(back.shape, (std::vector<std::int64_t>{2, 3}));
  ASSERT_EQ(back.bytes.size(), weight.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(back.bytes.data(), weight.data(), back.bytes.size()), 0);
  EXPECT_EQ(file.tensors.at(graph.number(0.5)).shape.size(), 0u);
  EXPECT_EQ(file.tensors.at(graph.integers({1, 2})).type, 7);
}

TEST_F(OnnxTest, MistakesAreNamed) {
  OnnxGraph graph("tiny");
  graph.input("x", {1});
  const std::vector<float> two{1, 2};
  EXPECT_TRUE(has(message_of([&] { graph.weights("x", {2}, two); }), "'x' is there already"));
  EXPECT_TRUE(has(message_of([&] { graph.weights("w", {3}, two); }), "'w' has 8 bytes, expected 3 values"));
}

TEST_F(OnnxTest, MoreThanTwoGigabytesAreRefused) {
  // Values that nobody reads: one page, seen often.
  const std::vector<float> page(1 << 20);
  OnnxGraph graph("large");
  for (int i = 0; i < 513; ++i) graph.weights(str("w", i), {1 << 20}, std::span<const float>(page));
  EXPECT_TRUE(has(message_of([&] { graph.write(path); }), "expected at most 2147483648"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mhla
