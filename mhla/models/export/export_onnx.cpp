#include "mhla/models/export/export_onnx.h"

#include "mhla/core/error.h"
#include "mhla/models/export/onnx_attention.h"

namespace mhla {
namespace {

using Value = OnnxGraph::Value;

constexpr double kOnnxNormEps = 1e-6;  // of TokenNorm

class Exporter {
 public:
  Exporter(const Classifier& model, OnnxParts& parts) : model_(model), c_(model.config()), p_(parts), g_(p_.graph()) {}

  Value deit(Value x) {
    if (c_.pad[0] != 0 || c_.pad[1] != 0) x = padded(x);
    const Layout& layout = model_.attention_layers().front().layout;
    const std::int64_t dim = c_.dims[0], N = layout.grid[1] * layout.grid[2];
    g_.enter("patch_embed");
    x = p_.to_tokens(p_.conv(x, "patch_embed.proj", c_.patch, 0), dim, N);
    x = p_.add(x, p_.weight("pos_embed"));
    for (const AttentionLayer& layer : model_.attention_layers()) {
      const std::string block = layer.name.substr(0, layer.name.rfind('.'));
      g_.enter(block);
      if (c_.cpe != 0) x = p_.add(x, p_.grid_conv(x, block + ".cpe.conv", layout));
      x = p_.add(x, attention(layer, p_.layer_norm(x, block + ".norm1", kOnnxNormEps), 0));
      g_.enter(block + ".mlp");
      const Value inside = p_.gelu(p_.linear(p_.layer_norm(x, block + ".norm2", kOnnxNormEps), block + ".mlp.fc1"));
      x = p_.add(x, p_.linear(inside, block + ".mlp.fc2"));
    }
    g_.enter("head");
    return p_.linear(p_.layer_norm(p_.mean(x, {1}, false), "fc_norm", kOnnxNormEps), "head");
  }

  Value vlt(Value x) {
    g_.enter("patch_embed");
    for (const int place : {0, 3, 6, 9}) {  // convolution, batch norm, GELU but for the last
      x = p_.conv(x, str("patch_embed.proj.", place), place == 0 || place == 9 ? 2 : 1, 1);
      x = p_.batch_norm(x, str("patch_embed.proj.", place + 1));
      if (place != 9) x = p_.gelu(x);
    }
    Layout layout;
    std::size_t stage = c_.dims.size();  // of the layer before
    for (const AttentionLayer& layer : model_.attention_layers()) {
      const auto now = static_cast<std::size_t>(layer.name.at(7) - '0');  // "layers.S.blocks.J.attn"
      if (now != stage) {
        if (now != 0) x = smaller(x, stage, layout);
        stage = now, layout = layer.layout;
        x = p_.to_tokens(x, c_.dims[stage], layout.grid[1] * layout.grid[2]);
      }
      x = vlt_block(x, layer, stage);
    }
    g_.enter("head");
    const std::int64_t width = p_.tensor("proj.weight").size(0);
    x = p_.silu(p_.batch_norm(p_.to_image(p_.linear(x, "proj"), width, layout), "norm"));
    return p_.linear(p_.mean(x, {2, 3}, false), "head");
  }

 private:
  // Zeros around the image, or with a negative number its rim cut off.
  Value padded(const Value& x) {
    const auto missing = [&](std::size_t axis) { return c_.pad[axis] != 0 ? c_.pad[axis] - c_.image[axis] : 0; };
    const std::int64_t rows = missing(0), columns = missing(1);
    return g_.node("Pad",
                   {x, g_.integers({0, 0, rows / 2, columns / 2, 0, 0, rows - rows / 2, columns - columns / 2})});
  }

  Value smaller(const Value& x, std::size_t stage, const Layout& layout) {
    const std::string name = str("layers.", stage, ".downsample");
    g_.enter(name);
    return p_.batch_norm(p_.conv(p_.to_image(x, c_.dims[stage], layout), name + ".reduction", 2, 1), name + ".norm");
  }

  Value vlt_block(Value x, const AttentionLayer& layer, std::size_t stage) {
    const std::string block = layer.name.substr(0, layer.name.rfind('.'));
    const auto scaled = [&](const char* gamma, const Value& y) {
      const std::string name = block + gamma;
      return p_.multiply(p_.constant(name, p_.tensor(name).flatten()), y);
    };
    g_.enter(block);
    if (c_.cpe != 0) x = p_.add(x, p_.grid_conv(x, block + ".pos", layer.layout));
    x = p_.add(x, scaled(".gamma_1", attention(layer, p_.layer_norm(x, block + ".norm1.norm", kOnnxNormEps), stage)));
    g_.enter(block + ".ffn");
    const Value y = p_.gelu(p_.linear(p_.layer_norm(x, block + ".norm2.norm", kOnnxNormEps), block + ".ffn.fc1"));
    const Value local = p_.add(y, p_.grid_conv(y, block + ".ffn.dwconv", layer.layout));
    return p_.add(x, scaled(".gamma_2", p_.linear(local, block + ".ffn.fc2")));
  }

  Value attention(const AttentionLayer& layer, const Value& x, std::size_t stage) {
    g_.enter(layer.name);
    if (const auto* mhla = layer.attention->as<MhlaAttentionImpl>())
      return onnx_mhla(p_, x, layer.name, mhla->options());
    const auto write = c_.family == "vlt" ? onnx_gated_softmax : onnx_softmax;
    return write(p_, x, layer.name, c_.dims[stage], c_.heads[stage], layer.layout);
  }

  const Classifier& model_;
  const ClassifierConfig& c_;
  OnnxParts& p_;
  OnnxGraph& g_;
};

Value normalized(OnnxParts& p, const Value& x, const OnnxOptions& options, std::int64_t channels) {
  if (options.mean.empty()) return x;
  const auto values = [&](const char* name, const std::vector<double>& list) {
    if (list.size() != 1 && static_cast<std::int64_t>(list.size()) != channels)
      fail("export: ", name, " has ", list.size(), " values, expected 1 or one for each of ", channels, " channels");
    return p.constant(name, torch::tensor(list, torch::kDouble).view({-1, 1, 1}));
  };
  p.graph().enter("normalize");
  const Value centered = p.graph().node("Sub", {x, values("normalize.mean", options.mean)});
  return p.divide(centered, values("normalize.std", options.std));
}

}  // namespace

void export_onnx(const Classifier& model, const OnnxOptions& options, const std::filesystem::path& path) {
  const ClassifierConfig& c = model.config();
  if (c.attention != "mhla" && c.attention != "linear" && c.attention != "softmax")
    fail("export: the attention of the model is ", c.attention, ", expected mhla, linear or softmax: no other can be ",
         "written as ONNX yet");
  const Weights weights = state_of(model);
  std::uint64_t bytes = 0;
  for (const auto& [name, value] : weights) bytes += static_cast<std::uint64_t>(value.numel()) * sizeof(float);
  if (bytes > OnnxGraph::kMostBytes)
    fail("export: the model has ", bytes, " bytes of weights, expected at most ", OnnxGraph::kMostBytes,
         ": an ONNX file with its weights inside cannot be larger");
  OnnxGraph graph(c.model);
  OnnxParts parts(graph, weights);
  const Value input =
      graph.input(options.mean.empty() ? "images" : "pixels", {OnnxGraph::kBatch, c.channels, c.image[0], c.image[1]});
  Exporter exporter(model, parts);
  const Value images = normalized(parts, input, options, c.channels);
  const Value logits = c.family == "vlt" ? exporter.vlt(images) : exporter.deit(images);
  parts.expect_all_used();
  graph.output(logits, "logits", {OnnxGraph::kBatch, c.classes});
  for (const auto& [key, value] : options.metadata) graph.metadata(key, value);
  graph.write(path);
}

}  // namespace mhla
