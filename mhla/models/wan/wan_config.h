// What a Wan2.1 transformer is made of: text to video over latents of a causal autoencoder. Every layer has softmax
// attention as published, or the layers listed have MHLA or linear attention instead: all of them, or a hybrid. Named
// models are starting points; every field can be changed by a config.json.
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

struct WanConfig {
  std::string model = "wan_1_3b";  // the name it started from
  std::string family = "wan";
  std::string attention = "softmax";  // of the layers below; the others have softmax attention
  std::vector<std::int64_t> layers;   // mhla, linear: which layers; none given: all
  std::int64_t channels = 16, out_channels = 16;
  std::array<std::int64_t, 3> patch{1, 2, 2};  // frames, rows, columns
  std::int64_t dim = 1536, depth = 30, heads = 12, mlp = 8960;
  std::int64_t time_channels = 256;
  std::int64_t text_dim = 4096, text_tokens = 512;
  std::int64_t vocab = 0;  // rows of an own table of word vectors; 0: captions are states of a text encoder
  bool pad_text = true;    // captions are padded with zeros to text_tokens, all of which are attended (original code)
  bool wide_time = true;   // angles of the time in f64 (original code); diffusers has f32
  double eps = 1e-6;       // of the norms
  // mhla, linear
  std::array<std::int64_t, 3> blocks{3, 5, 7};
  std::string features = "relu_eps";
  std::string normalizer = "none";  // none (as published), paper or official
  double normalizer_eps = 1e-6;
  bool head_norm = true;      // RMSNorm of every head's output, as published; a model converted in Python has none
  std::string gate = "none";  // none or silu
  std::int64_t lepe = 0;      // kernel of the convolution on v, 0 for none
  std::string mix_init = "linear";
  double mix_sigma = 3.0;
  bool official = false;  // the published initial mixing matrix, which is not clipped after a step
  std::array<double, 2> mix_range{0.0, 1.0};
  bool learn_mix = true;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("model", c.model, "name of the model it started from");
    visit("family", c.family, "wan");
    visit("attention", c.attention, "softmax, mhla or linear, of the layers listed");
    visit("layers", c.layers, "mhla, linear: numbers of the layers that have it, the others keep softmax; none: all");
    visit("channels", c.channels, "channels of a latent");
    visit("out_channels", c.out_channels, "channels of the velocity");
    visit("patch", c.patch, "frames, rows and columns of a patch of the latent");
    visit("dim", c.dim, "channels");
    visit("depth", c.depth, "blocks");
    visit("heads", c.heads, "heads of both attentions");
    visit("mlp", c.mlp, "width of the feed-forward");
    visit("time_channels", c.time_channels, "sines and cosines of the time");
    visit("text_dim", c.text_dim, "channels of the text encoder");
    visit("text_tokens", c.text_tokens, "tokens of a caption");
    visit("vocab", c.vocab,
          "rows of an own table of word vectors, captions are their numbers; 0: captions are states of a text encoder");
    visit("pad_text", c.pad_text, "pad captions with zeros to text_tokens (original code); diffusers does not");
    visit("wide_time", c.wide_time, "angles of the time in f64 (original code); f32 in diffusers");
    visit("eps", c.eps, "epsilon of the norms");
    visit("blocks", c.blocks, "MHLA's blocks: frames, rows, columns");
    visit("features", c.features, "feature map (mhla, linear)");
    visit("normalizer", c.normalizer, "mhla, linear: none (as published), paper or official");
    visit("normalizer_eps", c.normalizer_eps, "added to the denominator where there is one");
    visit("head_norm", c.head_norm, "RMSNorm of every head's output before the gate (mhla, linear)");
    visit("gate", c.gate, "output gate (mhla, linear): none or silu");
    visit("lepe", c.lepe, "kernel of the convolution on v (mhla, linear), 0 for none");
    visit("mix_init", c.mix_init, "initial mixing matrix: linear, uniform, cos, exp, gaussian or local");
    visit("mix_sigma", c.mix_sigma, "sigma of mix_init exp, in blocks");
    visit("official", c.official, "the published initial mixing matrix, without clipping");
    visit("mix_range", c.mix_range, "the mixing matrix is clipped to this after a step");
    visit("learn_mix", c.learn_mix, "whether the mixing matrix is learned");
  }
  bool operator==(const WanConfig&) const = default;

  [[nodiscard]] std::string attention_of(std::int64_t layer) const;  // softmax, mhla or linear
};

// "wan_1_3b", "wan_14b" as published; "wan_d64", "wan_s64" for clips of 64 x 64 pixels, whose squares of 2 x 2 are the
// channels of one place, with words of their own.
std::vector<std::string> wan_names();
WanConfig wan_config(std::string_view name, std::string_view attention = "softmax");

// Layers of a model of `depth` layers: "all" (none listed), "every-3rd-kept" (0, 3, 6, ... keep softmax attention, as
// in the published hybrid), or numbers, "1,2,4". Errors open with `entry`.
std::vector<std::int64_t> wan_layers(const std::string& text, std::int64_t depth, const std::string& entry);

// Throws with the field, its value and what was expected.
void check(const WanConfig& config);

// Ours; diffusers' ("_class_name": "WanTransformer3DModel"); or the original's ("_class_name": "WanModel"). Options
// beyond text to video are refused by name.
WanConfig parse_wan_config(const JsonValue& object, const std::string& label);
WanConfig read_wan_config(const std::filesystem::path& path);

// A sample is a latent of frames x rows x columns. `recompute`: blocks keep their inputs only.
ModelSize size_of(const WanConfig& config, const std::array<std::int64_t, 3>& latent, bool recompute = false);

}  // namespace mhla
