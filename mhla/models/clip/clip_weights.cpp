// The weights of CLIP: sizes that follow from them, OpenAI's names, files.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/clip/clip.h"
#include "mhla/models/published_names.h"
#include "mhla/models/weights_file.h"

namespace mhla {
namespace {

// OpenAI's name of a part, ours, and whether the matrix is transposed.
struct Rename {
  const char* openai;
  const char* ours;
  bool transposed = false;
};
constexpr Rename kWhole[] = {
    {"visual.class_embedding", "vision_model.embeddings.class_embedding"},
    {"visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight"},
    {"visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"},
    {"visual.ln_pre.weight", "vision_model.pre_layrnorm.weight"},
    {"visual.ln_pre.bias", "vision_model.pre_layrnorm.bias"},
    {"visual.ln_post.weight", "vision_model.post_layernorm.weight"},
    {"visual.ln_post.bias", "vision_model.post_layernorm.bias"},
    {"visual.proj", "visual_projection.weight", true},
    {"token_embedding.weight", "text_model.embeddings.token_embedding.weight"},
    {"positional_embedding", "text_model.embeddings.position_embedding.weight"},
    {"ln_final.weight", "text_model.final_layer_norm.weight"},
    {"ln_final.bias", "text_model.final_layer_norm.bias"},
    {"text_projection", "text_projection.weight", true},
    {"logit_scale", "logit_scale"},
};
constexpr Rename kOfLayer[] = {
    {"ln_1.weight", "layer_norm1.weight"},
    {"ln_1.bias", "layer_norm1.bias"},
    {"ln_2.weight", "layer_norm2.weight"},
    {"ln_2.bias", "layer_norm2.bias"},
    {"mlp.c_fc.weight", "mlp.fc1.weight"},
    {"mlp.c_fc.bias", "mlp.fc1.bias"},
    {"mlp.c_proj.weight", "mlp.fc2.weight"},
    {"mlp.c_proj.bias", "mlp.fc2.bias"},
    {"attn.out_proj.weight", "self_attn.out_proj.weight"},
    {"attn.out_proj.bias", "self_attn.out_proj.bias"},
};
constexpr const char* kProjections[] = {"q_proj", "k_proj", "v_proj"};
constexpr Rename kTowers[] = {{"visual.transformer.resblocks.", "vision_model.encoder.layers."},
                              {"transformer.resblocks.", "text_model.encoder.layers."}};
// Sizes that OpenAI's archives hold as tensors, and a table of 0, 1, 2, ... of transformers.
bool is_no_weight(const std::string& name) {
  return name == "input_resolution" || name == "context_length" || name == "vocab_size" ||
         name.find("position_ids") != std::string::npos;
}

const torch::Tensor& weight_called(const Weights& weights, const std::string& name) {
  const auto found = weights.find(name);
  if (found == weights.end()) fail("clip: ", name, " is missing: not the weights of a CLIP model");
  return found->second;
}

std::int64_t size_of_weight(const Weights& weights, const std::string& name, std::int64_t axis, std::int64_t rank) {
  const torch::Tensor& weight = weight_called(weights, name);
  if (weight.dim() != rank)
    fail("clip: ", name, " has shape ", shape_text(weight.sizes().vec()), ", expected ", rank, " axes");
  return weight.size(axis);
}

ClipTowerConfig tower_of(const Weights& weights, const std::string& path, const JsonValue* maybe_config) {
  ClipTowerConfig tower;
  const std::string layers = path + ".encoder.layers.";
  while (weights.count(str(layers, tower.layers, ".layer_norm1.weight")) != 0) ++tower.layers;
  if (tower.layers == 0) fail("clip: ", layers, "0.layer_norm1.weight is missing: not the weights of a CLIP model");
  tower.mlp = size_of_weight(weights, layers + "0.mlp.fc1.weight", 0, 2);
  tower.dim = size_of_weight(weights, layers + "0.mlp.fc1.weight", 1, 2);
  tower.heads = std::max<std::int64_t>(1, tower.dim / 64);
  if (maybe_config == nullptr) return tower;
  const JsonValue* config = maybe_config->find(path == "vision_model" ? "vision_config" : "text_config");
  if (config == nullptr) return tower;
  if (const JsonValue* heads = config->find("num_attention_heads")) tower.heads = heads->as_int();
  if (const JsonValue* eps = config->find("layer_norm_eps")) tower.eps = eps->as_double();
  if (const JsonValue* activation = config->find("hidden_act")) {
    tower.quick_gelu = activation->as_string() == "quick_gelu";
    if (!tower.quick_gelu && activation->as_string() != "gelu")
      fail("clip: hidden_act is '", activation->as_string(), "', expected quick_gelu or gelu");
  }
  return tower;
}

// The name of a layer's weight without "TOWER.resblocks.3.", and that prefix under the other names.
struct LayerName {
  std::string prefix, part;
};
bool split_layer(const std::string& name, bool openai, LayerName& split) {
  for (const Rename& tower : kTowers) {
    const std::string head = openai ? tower.openai : tower.ours;
    if (!starts_with(name, head)) continue;
    const std::size_t dot = name.find('.', head.size());
    if (dot == std::string::npos) return false;
    split.prefix = str(openai ? tower.ours : tower.openai, name.substr(head.size(), dot + 1 - head.size()));
    split.part = name.substr(dot + 1);
    return true;
  }
  return false;
}

template <class Table>
const Rename* renamed(const Table& table, const std::string& name, bool openai) {
  for (const Rename& one : table) {
    if (name == (openai ? one.openai : one.ours)) return &one;
  }
  return nullptr;
}

}  // namespace

Weights clip_from_openai(const Weights& openai) {
  Weights ours;
  for (const auto& [name, value] : openai) {
    LayerName layer;
    if (is_no_weight(name)) continue;
    if (const Rename* one = renamed(kWhole, name, true)) {
      ours[one->ours] = one->transposed && value.dim() == 2 ? value.t().contiguous() : value;
    } else if (!split_layer(name, true, layer)) {
      fail("clip: ", name, " is left over: OpenAI's CLIP has no such weight");
    } else if (const Rename* part = renamed(kOfLayer, layer.part, true)) {
      ours[layer.prefix + part->ours] = value;
    } else if (starts_with(layer.part, "attn.in_proj_") && value.dim() >= 1 && value.size(0) % 3 == 0) {
      const std::string kind = layer.part.substr(std::string("attn.in_proj_").size());  // weight or bias
      const std::vector<torch::Tensor> parts = value.chunk(3, 0);
      for (std::size_t i = 0; i < 3; ++i)
        ours[str(layer.prefix, "self_attn.", kProjections[i], ".", kind)] = parts[i].contiguous();
    } else {
      fail("clip: ", name, " is left over: OpenAI's CLIP has no such weight");
    }
  }
  return ours;
}

Weights clip_to_openai(const Weights& ours) {
  Weights openai;
  for (const auto& [name, value] : ours) {
    LayerName layer;
    if (const Rename* one = renamed(kWhole, name, false)) {
      openai[one->openai] = one->transposed ? value.t().contiguous() : value;
    } else if (!split_layer(name, false, layer)) {
      fail("clip: ", name, " is left over: CLIP has no such weight");
    } else if (const Rename* part = renamed(kOfLayer, layer.part, false)) {
      openai[layer.prefix + part->openai] = value;
    } else if (starts_with(layer.part, "self_attn.q_proj.")) {
      const std::string kind = layer.part.substr(std::string("self_attn.q_proj.").size());
      const std::string head = name.substr(0, name.size() - std::string("q_proj.").size() - kind.size());
      std::vector<torch::Tensor> parts;
      for (const char* projection : kProjections)
        parts.push_back(weight_called(ours, str(head, projection, ".", kind)));
      openai[str(layer.prefix, "attn.in_proj_", kind)] = torch::cat(parts);
    }
  }
  return openai;
}

ClipConfig clip_config_of(const Weights& weights, const JsonValue* maybe_config) {
  ClipConfig config;
  config.image_tower = tower_of(weights, "vision_model", maybe_config);
  config.text_tower = tower_of(weights, "text_model", maybe_config);
  config.patch = size_of_weight(weights, "vision_model.embeddings.patch_embedding.weight", 3, 4);
  const std::int64_t places = size_of_weight(weights, "vision_model.embeddings.position_embedding.weight", 0, 2) - 1;
  std::int64_t side = 1;
  while (side * side < places && side < limits::kImage.most) ++side;
  if (side * side != places) fail("clip: ", places, " positions of patches, expected a square");
  config.image = side * config.patch;
  config.vocab = size_of_weight(weights, "text_model.embeddings.token_embedding.weight", 0, 2);
  config.context = size_of_weight(weights, "text_model.embeddings.position_embedding.weight", 0, 2);
  config.projection = size_of_weight(weights, "visual_projection.weight", 0, 2);
  config.check();
  return config;
}

Clip make_clip(const Weights& weights, const JsonValue* maybe_config) {
  Weights ours;
  if (weights.count("visual.conv1.weight") != 0) {
    ours = clip_from_openai(weights);
  } else {
    for (const auto& [name, value] : weights) {
      if (!is_no_weight(name)) ours[name] = value;
    }
  }
  auto scale = ours.find("logit_scale");  // published without axes
  if (scale != ours.end() && scale->second.numel() == 1) scale->second = scale->second.reshape({1});
  Clip model(clip_config_of(ours, maybe_config));
  load_state(*model, ours);
  model->eval();
  for (torch::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  return model;
}

Clip load_clip(const std::filesystem::path& path) {
  return labelled(path.string(), [&] {
    if (!std::filesystem::is_directory(path)) return make_clip(read_weights(path));
    const std::filesystem::path config = path / "config.json";
    const Weights weights = read_weights(path / "model.safetensors");
    if (!std::filesystem::exists(config)) return make_clip(weights);
    const JsonValue json = read_json(config);
    return make_clip(weights, &json);
  });
}

}  // namespace mhla
