// What a diffusion transformer is made of. Named models (dit_s_2, ...) are starting points; every field can be changed
// by a config.json, which is also what a trained model is saved with.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/fields.h"

namespace mhla {

struct DitConfig {
  std::string model = "dit_s_2";  // the name it started from
  std::string family = "dit";     // dit; dig: SwiGLU instead of the MLP
  std::string attention = "mhla";
  bool official = false;                      // mhla as the published code computes it
  std::array<std::int64_t, 2> image{32, 32};  // rows, columns of a sample: latents or pixels
  std::int64_t channels = 4;
  std::int64_t classes = 1000;
  double label_dropout = 0.1;  // above 0 there is a null class after the others
  std::int64_t patch = 2;
  std::int64_t dim = 384, depth = 12, heads = 6;
  double mlp_ratio = 4.0;
  std::int64_t mlp_inner = 0;  // width of SwiGLU; 0: 2/3 mlp_ratio dim, up to a multiple of 256
  bool learn_sigma = true;     // as many channels of variance after those of the noise
  std::array<std::int64_t, 2> blocks{4, 4};
  std::int64_t cpe = 0;   // kernel of x + conv(x) at a block's start
  std::int64_t lepe = 0;  // kernel of the convolution on v (mhla, linear, softmax)
  std::int64_t dwconv = 0;
  std::string gate = "none";
  bool head_norm = false;
  bool qk_norm = false;
  bool scan = false;
  std::string features = "relu_eps";
  std::string normalizer = "paper";
  std::string mix_init = "linear";
  double mix_sigma = 3.0;
  std::array<double, 2> mix_range{0.0, 1.0};
  bool learn_mix = true;
  bool mix_per_head = false;
  std::int64_t freq_shift = 0;
  double norm2_eps = 1e-6;
  bool own_embedders = false;
  std::array<std::int64_t, 2> pos_base{0, 0};
  double pos_scale = 1.0;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("model", c.model, "name of the model it started from");
    visit("family", c.family, "dit, or dig for SwiGLU instead of the MLP");
    visit("attention", c.attention, "attention of the zoo, by name");
    visit("official", c.official, "compute mhla as the published code does");
    visit("image", c.image, "rows and columns of a sample: latents or pixels");
    visit("channels", c.channels, "channels of a sample");
    visit("classes", c.classes, "classes to generate");
    visit("label_dropout", c.label_dropout, "share of labels replaced by the null class in training; 0: no null class");
    visit("patch", c.patch, "side of a patch");
    visit("dim", c.dim, "channels of a token");
    visit("depth", c.depth, "blocks of the network");
    visit("heads", c.heads, "attention heads");
    visit("mlp_ratio", c.mlp_ratio, "width of the MLP over dim");
    visit("mlp_inner", c.mlp_inner, "width of SwiGLU (dig); 0: 2/3 mlp_ratio dim, up to a multiple of 256");
    visit("learn_sigma", c.learn_sigma, "whether the model learns the variance as well as the noise");
    visit("blocks", c.blocks, "MHLA's blocks: rows, columns");
    visit("cpe", c.cpe, "kernel of the convolution at a block's start, 0 for none");
    visit("lepe", c.lepe, "kernel of the convolution on v (mhla, linear, softmax), 0 for none");
    visit("dwconv", c.dwconv, "kernel of the convolution at a block's end, 0 for none");
    visit("gate", c.gate, "output gate of mhla and linear: none, silu or linear");
    visit("head_norm", c.head_norm, "RMSNorm of every head's output before the gate (mhla, linear)");
    visit("qk_norm", c.qk_norm, "RMSNorm of q and k (mhla, linear)");
    visit("scan", c.scan,
          "reverse the tokens after every block, transpose them after every second (attentions that scan)");
    visit("features", c.features, "feature map of mhla and linear");
    visit("normalizer", c.normalizer, "normaliser of mhla and linear: paper or none");
    visit("mix_init", c.mix_init, "initial mixing matrix: linear, cos, exp, gaussian, local or uniform");
    visit("mix_sigma", c.mix_sigma, "sigma of mix_init exp, in blocks");
    visit("mix_range", c.mix_range, "the mixing matrix is clipped to this after a step");
    visit("learn_mix", c.learn_mix, "whether the mixing matrix is learned");
    visit("mix_per_head", c.mix_per_head, "one mixing matrix per head");
    visit("freq_shift", c.freq_shift, "frequencies of the time divided by 128 - freq_shift: 0 as DiT, 1 as diffusers");
    visit("norm2_eps", c.norm2_eps, "epsilon of the norm before the MLP: 1e-6 as DiT, 1e-5 as diffusers");
    visit("own_embedders", c.own_embedders, "time and class embedders in every block, as diffusers trains them");
    visit("pos_base", c.pos_base, "rows and columns of tokens that positions are scaled to; 0: the model's own");
    visit("pos_scale", c.pos_scale, "positions are divided by this");
  }
  bool operator==(const DitConfig&) const = default;

  [[nodiscard]] std::int64_t rows() const { return image[0] / patch; }  // of tokens
  [[nodiscard]] std::int64_t columns() const { return image[1] / patch; }
  // Linear attention is MHLA with one block.
  [[nodiscard]] bool is_mhla() const { return attention == "mhla" || attention == "linear"; }
  [[nodiscard]] bool has_null_class() const { return label_dropout > 0.0; }
  [[nodiscard]] std::int64_t out_channels() const { return learn_sigma ? 2 * channels : channels; }
};

// "dit_s_2" to "dit_xl_8" (latents of 256 px images), "dig_s_2", and "dit_d32", "dit_t32", "dit_s32" for 32 x 32
// pixels.
std::vector<std::string> dit_names();
// `official` is for mhla alone. The latent models have LePE 3x3 and the gate with mhla, as in the paper's headline.
DitConfig dit_config(std::string_view name, std::string_view attention = "mhla", bool official = false);
// The paper's variants of mhla and linear: "none", "cpe" (LePE 3x3), "gate", "both".
DitConfig with_variant(DitConfig config, std::string_view variant);
// For samples of another size: positions keep their scale, as PixArt and SANA do it. Blocks stay as they are.
DitConfig at_size(DitConfig config, std::int64_t rows, std::int64_t columns);

// Throws with the field, its value and what was expected.
void check(const DitConfig& config);

// A key that is unknown is refused with the nearest known one. Missing keys are those of the named "model".
DitConfig parse_dit_config(const JsonValue& object, const std::string& label);
DitConfig read_dit_config(const std::filesystem::path& path);

// ---- config.json of diffusers (dit_diffusers.cpp)

bool is_dit_diffusers(const JsonValue& object);  // "_class_name" says so
// What another network would need is refused by name. Frequencies and embedders are those of diffusers.
DitConfig parse_dit_diffusers(const JsonValue& object, const std::string& label);
JsonValue dit_diffusers_json(const DitConfig& config);

}  // namespace mhla
