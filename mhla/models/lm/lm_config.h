// What a language model is made of. Named models (mhla_340m, ...) are starting points; every field can be changed by a
// config.json, which is also what a trained model is saved with.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/fields.h"

namespace mhla {

struct LmConfig {
  std::string model = "mhla_340m";  // the name it started from
  std::string family = "lm";
  std::string attention = "mhla";  // of the zoo, causal
  bool official = false;           // mhla: as the published code computes, which clips mix before every forward
  std::int64_t vocab = 32000;
  std::int64_t dim = 1024, layers = 24, heads = 4;
  std::int64_t mlp = 2816;      // width of the SwiGLU
  bool match = true;            // an attention of more or fewer weights than softmax's: a narrower or wider MLP,
                                // and without an MLP more blocks, for as many parameters
  std::int64_t context = 2048;  // tokens that mix has rows for
  std::int64_t chunk = 64;      // of mhla and linear
  bool tied = true;             // one table for tokens in and out
  double norm_eps = 1e-6;
  double rope_base = 10000.0;           // mhla, linear, softmax
  std::int64_t kv_heads = 0;            // mhla, linear: 0 for as many as heads
  double expand_k = 0.5, expand_v = 1;  // mhla, linear: width of keys and values over dim
  std::string features = "relu";        // mhla, linear: feature map
  bool rope = true;                     // mhla, linear: rotary positions
  bool gate = true;                     // mhla, linear: SiLU gate behind the norm of each head
  std::int64_t short_conv = 0;          // mhla, linear: taps of a convolution on q, k and v
  std::string mix_init = "prefix";      // mhla: prefix, linear, exp
  double mix_sigma = 3.0;               // of mix_init exp
  std::array<double, 2> mix_range{0.0, 1.0};
  bool learn_mix = true;
  bool mix_per_head = false;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("model", c.model, "name of the model it started from");
    visit("family", c.family, "lm");
    visit("attention", c.attention, "causal attention of the zoo, by name");
    visit("official", c.official, "compute as the published code does (mhla)");
    visit("vocab", c.vocab, "tokens of the vocabulary");
    visit("dim", c.dim, "channels");
    visit("layers", c.layers, "blocks, of softmax attention where match is on");
    visit("heads", c.heads, "attention heads");
    visit("mlp", c.mlp, "width of the MLP");
    visit("match", c.match, "as many parameters as with softmax attention: by the width of the MLP, or by depth");
    visit("context", c.context, "tokens that the mixing matrix has rows for");
    visit("chunk", c.chunk, "tokens of a chunk (mhla, linear)");
    visit("tied", c.tied, "one table for tokens in and out");
    visit("norm_eps", c.norm_eps, "epsilon of the norms");
    visit("rope_base", c.rope_base, "base of the rotary positions (mhla, linear, softmax)");
    visit("kv_heads", c.kv_heads, "heads of keys and values, 0 for as many as heads (mhla, linear)");
    visit("expand_k", c.expand_k, "width of queries and keys over dim (mhla, linear)");
    visit("expand_v", c.expand_v, "width of values over dim (mhla, linear)");
    visit("features", c.features, "feature map (mhla, linear)");
    visit("rope", c.rope, "rotary positions (mhla, linear)");
    visit("gate", c.gate, "SiLU gate behind the norm of each head (mhla, linear)");
    visit("short_conv", c.short_conv, "taps of a convolution on q, k and v, 0 for none (mhla, linear)");
    visit("mix_init", c.mix_init, "initial mixing matrix: prefix, linear or exp");
    visit("mix_sigma", c.mix_sigma, "sigma of mix_init exp, in chunks");
    visit("mix_range", c.mix_range, "the mixing matrix is clipped to this after a step");
    visit("learn_mix", c.learn_mix, "whether the mixing matrix is learned");
    visit("mix_per_head", c.mix_per_head, "one mixing matrix per head");
  }
  bool operator==(const LmConfig&) const = default;
};

// "mhla_340m" (the published one), "mhla_130m", "mhla_30m", "mhla_10m"; the names say the size, whatever the attention.
std::vector<std::string> lm_names();
LmConfig lm_config(std::string_view name, std::string_view attention = "mhla", bool official = false);

// Throws with the field, its value and what was expected.
void check(const LmConfig& config);

// A key that is unknown is refused with the nearest known one. Missing keys are those of the named "model".
LmConfig parse_lm_config(const JsonValue& object, const std::string& label);
LmConfig read_lm_config(const std::filesystem::path& path);

}  // namespace mhla
