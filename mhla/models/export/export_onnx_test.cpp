// Exported graphs against the networks they came from. A small interpreter runs the file with LibTorch operators, so
// that every attention and option is checked by numbers wherever the tests run; scripts/onnx_check.py does the same
// with onnxruntime.
#include "mhla/models/export/export_onnx.h"

#include <gtest/gtest.h>

#include <functional>

#include "mhla/io/onnx_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Tensor tensor_of(const OnnxTensor& t) {
  const auto type = t.type == 1 ? torch::kFloat : torch::kLong;
  return torch::from_blob(const_cast<char*>(t.bytes.data()), t.shape, type).clone();
}

std::vector<std::int64_t> list_of(const torch::Tensor& t) {
  return {t.data_ptr<std::int64_t>(), t.data_ptr<std::int64_t>() + t.numel()};
}

std::int64_t int_of(const OnnxNode& n, const char* key, std::int64_t otherwise = 0) {
  const auto found = n.ints.find(key);
  return found == n.ints.end() ? otherwise : found->second.at(0);
}

torch::Tensor reshaped(const torch::Tensor& x, std::vector<std::int64_t> shape) {
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] == 0) shape[i] = x.size(static_cast<std::int64_t>(i));
  return x.reshape(shape);
}

torch::Tensor padded(const torch::Tensor& x, const std::vector<std::int64_t>& pads) {
  std::vector<std::int64_t> backwards;
  for (std::size_t axis = pads.size() / 2; axis-- > 0;)
    backwards.push_back(pads[axis]), backwards.push_back(pads[axis + pads.size() / 2]);
  return torch::constant_pad_nd(x, backwards);
}

torch::Tensor conv(const OnnxNode& n, const Tensors& in) {
  const std::vector<std::int64_t> pads = n.ints.at("pads");
  return torch::conv2d(in[0], in[1], in.size() > 2 ? in[2] : torch::Tensor(), n.ints.at("strides"),
                       at::IntArrayRef(pads).slice(0, 2), 1, int_of(n, "group", 1));
}

Tensors run_node(const OnnxNode& n, const Tensors& in) {
  const std::map<std::string, std::function<torch::Tensor()>> ops = {
      {"Add", [&] { return in[0] + in[1]; }},
      {"Sub", [&] { return in[0] - in[1]; }},
      {"Mul", [&] { return in[0] * in[1]; }},
      {"Div", [&] { return in[0] / in[1]; }},
      {"MatMul", [&] { return torch::matmul(in[0], in[1]); }},
      {"Relu", [&] { return in[0].relu(); }},
      {"Elu", [&] { return torch::elu(in[0]); }},
      {"Erf", [&] { return in[0].erf(); }},
      {"Neg", [&] { return -in[0]; }},
      {"Sqrt", [&] { return in[0].sqrt(); }},
      {"Sigmoid", [&] { return in[0].sigmoid(); }},
      {"Identity", [&] { return in[0]; }},
      {"Softmax", [&] { return in[0].softmax(int_of(n, "axis")); }},
      {"Concat", [&] { return torch::cat(in, int_of(n, "axis")); }},
      {"Reshape", [&] { return reshaped(in[0], list_of(in[1])); }},
      {"Transpose", [&] { return in[0].permute(n.ints.at("perm")); }},
      {"Gather", [&] { return in[0].index_select(int_of(n, "axis"), in[1]); }},
      {"Pad", [&] { return padded(in[0], list_of(in[1])); }},
      {"ReduceSum", [&] { return in[0].sum(list_of(in[1]), int_of(n, "keepdims", 1) != 0); }},
      {"ReduceMean", [&] { return in[0].mean(n.ints.at("axes"), int_of(n, "keepdims", 1) != 0); }},
      {"Conv", [&] { return conv(n, in); }},
      {"LayerNormalization",
       [&] { return torch::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], n.floats.at("epsilon")); }},
      {"BatchNormalization",
       [&] { return torch::batch_norm(in[0], in[1], in[2], in[3], in[4], false, 0, n.floats.at("epsilon"), false); }},
  };
  if (n.op == "Split") return in[0].split_with_sizes(list_of(in[1]), int_of(n, "axis"));
  const auto op = ops.find(n.op);
  if (op == ops.end()) {
    ADD_FAILURE() << n.op << " is unknown to this test";
    return {in[0]};
  }
  return {op->second()};
}

torch::Tensor run_onnx(const OnnxFile& file, const torch::Tensor& images) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& [name, tensor] : file.tensors) values[name] = tensor_of(tensor);
  values[file.inputs.begin()->first] = images;
  for (const OnnxNode& node : file.nodes) {
    Tensors in;
    for (const std::string& name : node.inputs) in.push_back(values.at(name));
    const Tensors out = run_node(node, in);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) values[node.outputs[i]] = out[i];
  }
  return values.at("logits");
}

struct ExportCase {
  const char *name, *model, *attention;
  std::function<void(ClassifierConfig&)> change;
  bool official = false;
};

// Small enough for seconds, every part of a graph in at least one of them.
const std::vector<ExportCase>& cases() {
  const auto small = [](ClassifierConfig& c) {
    c.image = {24, 32}, c.patch = 4, c.dims = {24}, c.depths = {2}, c.heads = {3}, c.classes = 5, c.blocks = {{2, 2}};
  };
  const auto with = [small](std::function<void(ClassifierConfig&)> more) {
    return [small, more](ClassifierConfig& c) { small(c), more(c); };
  };
  const auto vlt = [](ClassifierConfig& c) {
    c.image = {48, 64}, c.dims = {16, 24, 32, 40}, c.depths = {1, 2, 1, 1}, c.heads = {1, 2, 2, 2}, c.classes = 4;
    c.blocks = {{3, 4}, {2, 2}};
  };
  static const std::vector<ExportCase> all = {
      {"mhla", "deit_tiny", "mhla", small},
      {"linear", "deit_tiny", "linear", small},
      {"softmax", "deit_tiny", "softmax", small},
      {"mhla_lepe_bias", "deit_tiny", "mhla", with([](auto& c) { c.lepe = 3, c.qkv_bias = true, c.cpe = 5; })},
      {"softmax_lepe", "deit_tiny", "softmax", with([](auto& c) { c.lepe = 5, c.cpe = 0; })},
      {"linear_lepe", "deit_tiny", "linear", with([](auto& c) { c.lepe = 5, c.qk_norm = false; })},
      {"mhla_ragged", "deit_tiny", "mhla", with([](auto& c) {
         c.image = {28, 20}, c.blocks = {{3, 3}};
       })},
      {"mhla_one_short", "deit_tiny", "mhla", with([](auto& c) {
         c.image = {4, 28}, c.blocks = {{1, 2}};
       })},
      {"mhla_per_head", "deit_tiny", "mhla", with([](auto& c) { c.mix_per_head = true, c.mix_init = "exp"; })},
      {"mhla_no_normalizer", "deit_tiny", "mhla", with([](auto& c) { c.normalizer = "none", c.features = "elu1"; })},
      {"mhla_t2r", "deit_tiny", "mhla", with([](auto& c) { c.features = "t2r"; })},
      {"mhla_hedgehog", "deit_tiny", "mhla", with([](auto& c) { c.features = "hedgehog"; })},
      {"mhla_hadamard", "deit_tiny", "mhla", with([](auto& c) { c.features = "hadamard", c.normalizer = "none"; })},
      {"mhla_dpfp", "deit_tiny", "mhla", with([](auto& c) { c.features = "dpfp"; })},
      {"mhla_official", "deit_tiny", "mhla", with([](auto& c) {
         c.pad = {32, 32}, c.blocks = {{4, 4}};
       }),
       true},
      {"mhla_cut", "deit_tiny", "mhla", with([](auto& c) {
         c.pad = {16, 16};
       })},
      {"linear_official", "deit_tiny", "linear", small, true},
      {"vit_demo", "vit_demo", "mhla", [](ClassifierConfig&) {}},
      {"vlt_mhla", "vlt_tiny", "mhla", vlt},
      {"vlt_linear", "vlt_tiny", "linear", vlt},
      {"vlt_softmax", "vlt_tiny", "softmax", vlt},
  };
  return all;
}

class ExportTest : public testing::TestWithParam<std::size_t> {
 protected:
  ExportTest() : path(std::filesystem::path(testing::TempDir()) / "model.onnx") { torch::manual_seed(3); }
  ~ExportTest() override { std::filesystem::remove(path); }

  static AnyClassifier trained(const ExportCase& one) {
    ClassifierConfig config = classifier_config(one.model, one.attention, one.official);
    one.change(config);
    check(config);
    AnyClassifier model = make_classifier(config);
    const torch::NoGradGuard no_gradient;
    for (const auto& item : model->named_parameters())  // nothing keeps the value it has at first
      if (item.key().find(".mix") == std::string::npos) item.value().add_(torch::randn_like(item.value()) * 0.05);
    for (const auto& item : model->named_buffers()) item.value().add_(torch::rand_like(item.value()));
    model->eval();
    return model;
  }
  std::filesystem::path path;
};

TEST_P(ExportTest, GivesTheSameLogits) {
  const ExportCase& one = cases()[GetParam()];
  const AnyClassifier model = trained(one);
  const ClassifierConfig& c = model->config();
  export_onnx(*model, {}, path);
  const OnnxFile file = read_onnx(path);
  for (const std::int64_t batch : {1, 3}) {
    const torch::Tensor images = torch::randn({batch, c.channels, c.image[0], c.image[1]});
    const torch::NoGradGuard no_gradient;
    const torch::Tensor want = model->forward(images), got = run_onnx(file, images);
    ASSERT_EQ(got.sizes(), want.sizes());
    const double off = (got - want).abs().max().item<double>();
    EXPECT_LE(off, 1e-4 * std::max(1.0, want.abs().max().item<double>())) << one.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExportTest, testing::Range(std::size_t{0}, cases().size()),
                         [](const auto& one) { return std::string(cases()[one.param].name); });

using Export = ExportTest;

TEST_F(Export, HasTheShapesOfTheModel) {
  const AnyClassifier model = trained(cases()[0]);
  export_onnx(*model, {.mean = {}, .std = {}, .metadata = {{"mhla.classes", "[]"}}}, path);
  const OnnxFile file = read_onnx(path);
  EXPECT_EQ(file.opset, 17);
  EXPECT_EQ(file.inputs.at("images"), (std::vector<std::string>{"batch", "3", "24", "32"}));
  EXPECT_EQ(file.outputs.at("logits"), (std::vector<std::string>{"batch", "5"}));
  EXPECT_EQ(file.metadata.at("mhla.classes"), "[]");
  const Weights weights = state_of(*model);
  for (const auto& [name, value] : weights) {
    ASSERT_EQ(file.tensors.count(name), 1u) << name;
    const OnnxTensor& tensor = file.tensors.at(name);
    EXPECT_EQ(tensor.bytes.size(), static_cast<std::size_t>(value.numel()) * sizeof(float)) << name;
  }
  EXPECT_EQ(file.tensors.at("blocks.0.attn.mix").shape, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(file.tensors.at("blocks.1.attn.qkv.weight").shape, (std::vector<std::int64_t>{24, 72}));  // [in, out]
  EXPECT_EQ(file.tensors.at("pos_embed").shape, (std::vector<std::int64_t>{1, 48, 24}));
  std::set<std::string> names;
  for (const OnnxNode& node : file.nodes) EXPECT_TRUE(names.insert(node.name).second) << node.name;
  EXPECT_EQ(names.count("blocks.1.attn/Gather"), 1u);
}

TEST_F(Export, TakesPixelsWhereItNormalises) {
  const AnyClassifier model = trained(cases()[0]);
  export_onnx(*model, {.mean = {0.4, 0.5, 0.6}, .std = {0.2, 0.3, 0.4}, .metadata = {}}, path);
  const OnnxFile file = read_onnx(path);
  EXPECT_EQ(file.inputs.begin()->first, "pixels");
  const torch::Tensor pixels = torch::rand({2, 3, 24, 32});
  const auto values = [](std::vector<float> list) { return torch::tensor(list).view({3, 1, 1}); };
  const torch::Tensor want = model->forward((pixels - values({0.4f, 0.5f, 0.6f})) / values({0.2f, 0.3f, 0.4f}));
  EXPECT_LE((run_onnx(file, pixels) - want).abs().max().item<double>(), 1e-4);
  EXPECT_TRUE(has(message_of([&] {
                    export_onnx(*model, {.mean = {1, 2}, .std = {1, 2}, .metadata = {}}, path);
                  }),
                  "has 2 values, expected 1 or one for each of 3 channels"));
}

TEST_F(Export, OtherAttentionsAreRefusedByName) {
  const AnyClassifier model = make_classifier(classifier_config("vit_demo", "gla"));
  EXPECT_TRUE(has(message_of([&] { export_onnx(*model, {}, path); }),
                  "attention of the model is gla, expected mhla, linear or softmax"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace mhla
