// What an image classifier is made of. Named models (deit_tiny, ...) are starting points; every field can be changed by
// a config.json, which is also what a trained model is saved with.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/fields.h"

namespace mhla {

struct ClassifierConfig {
  std::string model = "deit_tiny";  // the name it started from
  std::string family = "deit";      // deit: one stage of patches; vlt: four stages of convolutions and tokens
  std::string attention = "mhla";   // of the zoo; vlt: of the first two stages
  bool official = false;            // as the published code computes: padding, inner norm, its normaliser
  std::array<std::int64_t, 2> image{224, 224};  // rows, columns
  std::array<std::int64_t, 2> pad{0, 0};        // zeros around an image, or its rim cut off, to this size; 0: as it is
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
  std::int64_t patch = 16;
  std::vector<std::int64_t> dims{192}, depths{12}, heads{3};  // per stage
  double mlp_ratio = 4.0;
  std::vector<std::array<std::int64_t, 2>> blocks{{4, 4}};  // of MHLA: rows, columns; per stage that has it
  std::int64_t cpe = 3;                                     // kernel of the convolution at a block's start; 0: none
  std::int64_t lepe = 0;                      // kernel of the convolution on v (mhla, linear, softmax); 0: none
  bool qkv_bias = false;                      // mhla, linear: biases of q, k and v, as softmax attention has them
  bool qk_norm = true;                        // mhla, linear: RMSNorm of q and k before the feature map
  std::string features = "relu_eps";          // mhla: feature map
  std::string normalizer = "paper";           // mhla: paper, none
  std::string mix_init = "linear";            // mhla: linear, cos, exp, gaussian, local, uniform
  double mix_sigma = 3.0;                     // of mix_init exp
  std::array<double, 2> mix_range{0.0, 1.0};  // mhla: mix is clipped to it after a step
  bool learn_mix = true;
  bool mix_per_head = false;
  std::string pos_init = "normal";  // deit: position table at first: normal with deviation 0.02, or sincos
  double init_std = 0.02;           // of the weights of linear layers at first
  double drop_path = 0.1;           // of the last block; grows linearly from 0
  double dropout = 0.0;             // behind the position embedding and every projection

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("model", c.model, "name of the model it started from");
    visit("family", c.family, "deit or vlt");
    visit("attention", c.attention, "attention of the zoo, by name");
    visit("official", c.official, "compute as the published code does");
    visit("image", c.image, "rows and columns of an image");
    visit("pad", c.pad, "rows and columns an image is padded with zeros or cut to, 0 for as it is");
    visit("channels", c.channels, "channels of an image");
    visit("classes", c.classes, "classes to tell apart");
    visit("patch", c.patch, "pixels per side of a patch (deit)");
    visit("dims", c.dims, "channels per stage");
    visit("depths", c.depths, "blocks per stage");
    visit("heads", c.heads, "attention heads per stage");
    visit("mlp_ratio", c.mlp_ratio, "width of the MLP over that of the stage");
    visit("blocks", c.blocks, "MHLA's blocks per stage: rows, columns");
    visit("cpe", c.cpe, "kernel of the convolution at a block's start, 0 for none");
    visit("lepe", c.lepe, "kernel of the convolution on v, 0 for none");
    visit("qkv_bias", c.qkv_bias, "biases of q, k and v (mhla, linear)");
    visit("qk_norm", c.qk_norm, "RMSNorm of q and k (mhla, linear)");
    visit("features", c.features, "feature map of mhla");
    visit("normalizer", c.normalizer, "normaliser of mhla: paper or none");
    visit("mix_init", c.mix_init, "initial mixing matrix: linear, cos, exp, gaussian, local or uniform");
    visit("mix_sigma", c.mix_sigma, "sigma of mix_init exp, in blocks");
    visit("mix_range", c.mix_range, "the mixing matrix is clipped to this after a step");
    visit("learn_mix", c.learn_mix, "whether the mixing matrix is learned");
    visit("mix_per_head", c.mix_per_head, "one mixing matrix per head");
    visit("pos_init", c.pos_init, "initial position table: normal, or sincos of both axes (deit)");
    visit("init_std", c.init_std, "deviation of the weights of linear layers at first");
    visit("drop_path", c.drop_path, "chance to skip the last block in training");
    visit("dropout", c.dropout, "dropout behind projections in training");
  }
  bool operator==(const ClassifierConfig&) const = default;
};

// "deit_tiny", "deit_small", "deit_base", "vlt_tiny", "vlt_small", "vit_demo" (28 x 28 grey, for a CPU) and "vit_256"
// (256 tokens of 32 x 32 grey).
std::vector<std::string> classifier_names();
// `official`: the padding to 256, LePE 5x5 and the rest of the published DeiT. Only DeiT with mhla or linear has it.
ClassifierConfig classifier_config(std::string_view name, std::string_view attention = "mhla", bool official = false);

// Throws with the field, its value and what was expected.
void check(const ClassifierConfig& config);

// A key that is unknown is refused with the nearest known one. Missing keys are those of the named "model".
ClassifierConfig parse_classifier_config(const JsonValue& object, const std::string& label);
ClassifierConfig read_classifier_config(const std::filesystem::path& path);

}  // namespace mhla
