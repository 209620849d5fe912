// Small models that generate images, in folders, without LibTorch: random weights under the names of the original DiT,
// and recorded cases.
#pragma once

#include <deque>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/io/safetensors.h"
#include "mhla/testing/tensor.h"

namespace mhla {

struct SmallDit {
  std::int64_t channels = 1, classes = 3, side = 8, patch = 2, dim = 16, depth = 2;
  bool learn_sigma = true;
  DType dtype = DType::kF32;
  double deviation = 0.2;
};

// A softmax DiT of two heads under the original names, which are ours too.
inline void write_dit_weights(const std::string& path, const SmallDit& o = {}) {
  Random random(7);
  std::deque<Tensor> kept;
  std::vector<NamedView> views;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    kept.emplace_back(DType::kF32, std::move(shape));
    kept.back().normal(random, o.deviation);
    if (o.dtype != DType::kF32) kept.push_back(kept.back().to(o.dtype));
    views.push_back({name, kept.back().view()});
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in}), add(name + ".bias", {out});
  };
  const std::int64_t C = o.dim, cell = o.patch * o.patch;
  add("pos_embed", {1, o.side * o.side / cell, C});
  add("x_embedder.proj.weight", {C, o.channels, o.patch, o.patch}), add("x_embedder.proj.bias", {C});
  linear("t_embedder.mlp.0", C, 256), linear("t_embedder.mlp.2", C, C);
  add("y_embedder.embedding_table.weight", {o.classes + 1, C});
  for (std::int64_t i = 0; i < o.depth; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    linear(block + "adaLN_modulation.1", 6 * C, C);
    linear(block + "attn.qkv", 3 * C, C), linear(block + "attn.proj", C, C);
    linear(block + "mlp.fc1", 4 * C, C), linear(block + "mlp.fc2", C, 4 * C);
  }
  linear("final_layer.adaLN_modulation.1", 2 * C, C);
  linear("final_layer.linear", cell * o.channels * (o.learn_sigma ? 2 : 1), C);
  write_safetensors(path, views);
}

inline std::string dit_config_text(const SmallDit& o = {}) {
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  return R"({"model": "dit_d32", "family": "dit", "attention": "softmax", "image": [)" + text(o.side) + ", " +
         text(o.side) + R"(], "channels": )" + text(o.channels) + R"(, "classes": )" + text(o.classes) +
         R"(, "patch": )" + text(o.patch) + R"(, "dim": )" + text(o.dim) + R"(, "depth": )" + text(o.depth) +
         R"(, "heads": 2, "learn_sigma": )" + (o.learn_sigma ? "true" : "false") + "}";
}

inline void write_dit_folder(const std::string& folder, const SmallDit& o = {}) {
  std::filesystem::create_directories(folder);
  write_dit_weights(folder + "/model.safetensors", o);
  write_file(folder + "/config.json", dit_config_text(o));
}

// The parameters of a recorded case of tests/golden, under their published names.
inline void write_recorded(const std::string& file, const std::string& name, const std::string& path,
                           const std::string& front = "") {
  const Safetensors golden = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/" + file);
  const std::string prefix = name + "/param.";
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const std::string full(golden.entry(i).name);
    if (full.compare(0, prefix.size(), prefix) == 0)
      views.push_back({front + full.substr(prefix.size()), golden.view(i)});
  }
  write_safetensors(path, views);
}

// An autoencoder of latents with 4 channels and a factor of 2.
inline void write_kl_folder(const std::string& folder, const std::string& scale = "0.18215") {
  std::filesystem::create_directories(folder);
  write_recorded("image/vae_kl.safetensors", "kl_small", folder + "/diffusion_pytorch_model.safetensors");
  write_file(folder + "/config.json",
             R"({"_class_name": "AutoencoderKL", "block_out_channels": [8, 16], "layers_per_block": 1,
                 "norm_num_groups": 4, "latent_channels": 4, "scaling_factor": )" +
                 scale + "}");
}

// Of the recorded sana_diffusers.
inline constexpr const char* kSanaConfig =
    R"({"_class_name": "SanaTransformer2DModel", "in_channels": 4, "out_channels": 4, "num_attention_heads": 3,
        "attention_head_dim": 8, "num_layers": 1, "num_cross_attention_heads": 3, "cross_attention_head_dim": 8,
        "cross_attention_dim": 24, "caption_channels": 10, "mlp_ratio": 2.5, "patch_size": 1, "sample_size": 32,
        "norm_eps": 1e-5, "guidance_embeds": false, "guidance_embeds_scale": 0.1})";

}  // namespace mhla
