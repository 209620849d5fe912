// A small Wan pipeline in folders as diffusers publishes it, without LibTorch: transformer and autoencoder of a
// recorded case, a umT5 of random weights and the recorded tokenizer.
#pragma once

#include <deque>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "mhla/testing/tensor.h"

namespace mhla {

inline constexpr const char* kPipelineFile = MHLA_SOURCE_DIR "/tests/golden/video/wan_pipeline.safetensors";

// One of the models of the recorded pipeline, 4 channels of latents, 16 of text.
inline void write_wan_part(const std::string& part, const std::string& class_name, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const Safetensors golden = Safetensors::read(kPipelineFile);
  const std::string prefix = "pipeline/param." + part + ".";
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const std::string full(golden.entry(i).name);
    if (full.rfind(prefix, 0) == 0) views.push_back({full.substr(prefix.size()), golden.view(i)});
  }
  write_safetensors(folder + "/diffusion_pytorch_model.safetensors", views);
  JsonValue config = parse_json(golden.metadata().at("pipeline"), "pipeline").at(part);
  write_file(folder + "/config.json", write_json(config.set("_class_name", class_name)));
}

inline constexpr std::int64_t kSmallVocab = 400;  // at least the pieces of the recorded tokenizer

inline void write_umt5_folder(const std::string& folder, std::int64_t dim = 16) {
  std::filesystem::create_directories(folder);
  Random random(11);
  std::deque<Tensor> kept;
  std::vector<NamedView> views;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    kept.emplace_back(DType::kF32, std::move(shape));
    kept.back().normal(random, 0.3);
    views.push_back({name, kept.back().view()});
  };
  add("shared.weight", {kSmallVocab, dim});
  const std::string block = "encoder.block.0.layer.";
  for (const char* name : {"q", "k", "v"}) add(block + "0.SelfAttention." + name + ".weight", {8, dim});
  add(block + "0.SelfAttention.o.weight", {dim, 8});
  add(block + "0.SelfAttention.relative_attention_bias.weight", {32, 2});
  add(block + "0.layer_norm.weight", {dim}), add(block + "1.layer_norm.weight", {dim});
  add(block + "1.DenseReluDense.wi_0.weight", {24, dim}), add(block + "1.DenseReluDense.wi_1.weight", {24, dim});
  add(block + "1.DenseReluDense.wo.weight", {dim, 24});
  add("encoder.final_layer_norm.weight", {dim});
  write_safetensors(folder + "/model.safetensors", views);
  write_file(folder + "/config.json", R"({"model_type": "umt5", "feed_forward_proj": "gated-gelu", "vocab_size": )" +
                                          std::to_string(kSmallVocab) + R"(, "d_model": )" + std::to_string(dim) +
                                          R"(, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 2})");
}

inline void write_umt5_tokenizer(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const Safetensors golden = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/video/umt5_tokenizer.safetensors");
  const ConstView bytes = golden.view("tokenizer/in.model");
  write_file(folder + "/spiece.model",
             std::string(static_cast<const char*>(bytes.data), static_cast<std::size_t>(bytes.shape[0])));
}

inline void write_wan_pipeline(const std::string& folder) {
  write_wan_part("transformer", "WanTransformer3DModel", folder + "/transformer");
  write_wan_part("vae", "AutoencoderKLWan", folder + "/vae");
  write_umt5_folder(folder + "/text_encoder");
  write_umt5_tokenizer(folder + "/tokenizer");
  std::filesystem::create_directories(folder + "/scheduler");
  write_file(folder + "/scheduler/scheduler_config.json",
             R"({"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0})");
}

}  // namespace mhla
