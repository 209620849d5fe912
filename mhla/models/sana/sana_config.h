// What a SANA is made of: a text-to-image transformer over latents with linear attention, cross-attention to a caption
// and convolutions in its feed-forward. Named models are starting points; every field can be changed by a config.json.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/fields.h"
#include "mhla/models/model_size.h"

namespace mhla {

struct SanaConfig {
  std::string model = "sana_600m";  // the name it started from
  std::string family = "sana";
  std::string attention = "linear";  // linear (as published), mhla or softmax
  std::int64_t channels = 32;        // of a latent
  std::int64_t patch = 1;
  std::int64_t dim = 1152, depth = 28;
  std::int64_t head_dim = 32;     // of self-attention
  std::int64_t cross_heads = 16;  // of cross-attention
  double mlp_ratio = 2.5;
  std::int64_t caption_dim = 2304, caption_tokens = 300;
  double norm_eps = 1e-6;          // of the LayerNorms
  double caption_norm_eps = 1e-5;  // of the RMSNorm of captions
  bool qk_norm = false;            // RMSNorm of q and k in both attentions (Sana-1.5)
  double qk_norm_eps = 1e-5;
  double eps = 1e-8;              // linear, mhla: added to the denominator
  bool truncate_t = true;         // the whole part of t is what counts, as in the original code; not in diffusers
  std::string features = "relu";  // linear, mhla: feature map
  std::array<std::int64_t, 2> blocks{4, 4};
  std::string mix_init = "linear";  // uniform: starts as linear attention, up to eps
  double mix_sigma = 3.0;
  std::array<double, 2> mix_range{0.0, 1.0};
  bool learn_mix = true;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("model", c.model, "name of the model it started from");
    visit("family", c.family, "sana");
    visit("attention", c.attention, "linear, mhla or softmax");
    visit("channels", c.channels, "channels of a latent");
    visit("patch", c.patch, "side of a patch of the latent");
    visit("dim", c.dim, "channels");
    visit("depth", c.depth, "blocks");
    visit("head_dim", c.head_dim, "channels of a head of self-attention");
    visit("cross_heads", c.cross_heads, "heads of cross-attention");
    visit("mlp_ratio", c.mlp_ratio, "width of the feed-forward over dim");
    visit("caption_dim", c.caption_dim, "channels of the text encoder");
    visit("caption_tokens", c.caption_tokens, "tokens of a caption");
    visit("norm_eps", c.norm_eps, "epsilon of the LayerNorms");
    visit("caption_norm_eps", c.caption_norm_eps, "epsilon of the norm of captions");
    visit("qk_norm", c.qk_norm, "RMSNorm of q and k in both attentions (Sana-1.5)");
    visit("qk_norm_eps", c.qk_norm_eps, "epsilon of qk_norm");
    visit("eps", c.eps, "added to the denominator of linear attention and MHLA");
    visit("truncate_t", c.truncate_t, "use the whole part of t (original code); diffusers does not");
    visit("features", c.features, "feature map (linear, mhla)");
    visit("blocks", c.blocks, "MHLA's blocks: rows, columns");
    visit("mix_init", c.mix_init, "initial mixing matrix: linear, uniform, cos, exp, gaussian or local");
    visit("mix_sigma", c.mix_sigma, "sigma of mix_init exp, in blocks");
    visit("mix_range", c.mix_range, "the mixing matrix is clipped to this after a step");
    visit("learn_mix", c.learn_mix, "whether the mixing matrix is learned");
  }
  bool operator==(const SanaConfig&) const = default;
};

// "sana_600m", "sana_1600m". MHLA has the paper's normaliser and feature map, ReLU + 1e-6.
std::vector<std::string> sana_names();
SanaConfig sana_config(std::string_view name, std::string_view attention = "linear");

// Throws with the field, its value and what was expected.
void check(const SanaConfig& config);

// Ours, or diffusers' ("_class_name": "SanaTransformer2DModel"), whose options beyond the published SANA and Sana-1.5
// are refused by name; it is called after the nearer of the two sizes.
SanaConfig parse_sana_config(const JsonValue& object, const std::string& label);
SanaConfig read_sana_config(const std::filesystem::path& path);
JsonValue sana_diffusers_json(const SanaConfig& config, std::int64_t sample_size = 32);

// A sample is a latent of rows x columns.
ModelSize size_of(const SanaConfig& config, std::int64_t rows, std::int64_t columns);

}  // namespace mhla
