// What a file with published names holds: every size that its shapes tell.
#include <algorithm>
#include <cmath>

#include "mhla/models/dit/dit.h"

namespace mhla {
namespace {

class Shapes {
 public:
  explicit Shapes(const Weights& published) {
    for (const auto& [name, value] : published)
      shapes_[name.rfind("module.", 0) == 0 ? name.substr(7) : name] = value.sizes().vec();
  }
  [[nodiscard]] bool has(const std::string& name) const { return shapes_.count(name) != 0; }
  [[nodiscard]] std::int64_t at(const std::string& name, std::size_t axis) const {
    const auto found = shapes_.find(name);
    if (found == shapes_.end() || found->second.size() <= axis)
      fail("weights: ", name, " is missing, or has another shape");
    return found->second[axis];
  }
  // Blocks of "<list>0.", "<list>1.", ...
  [[nodiscard]] std::int64_t blocks(const std::string& list) const {
    std::int64_t count = 0;
    for (const auto& [name, shape] : shapes_) {
      if (name.rfind(list, 0) != 0) continue;
      count = std::max<std::int64_t>(count, std::strtoll(name.c_str() + list.size(), nullptr, 10) + 1);
    }
    return count;
  }

 private:
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

void set_patches(DitConfig& c, const Shapes& shapes, const std::string& name, const std::string& last) {
  c.dim = shapes.at(name, 0), c.channels = shapes.at(name, 1), c.patch = shapes.at(name, 2);
  const std::int64_t outputs = shapes.at(last, 0);
  c.learn_sigma = outputs == 2 * c.channels * c.patch * c.patch;
}

void set_classes(DitConfig& c, std::int64_t rows) { c.classes = c.has_null_class() ? rows - 1 : rows; }

// The side of a square, or 0.
std::int64_t side_of(std::int64_t count) {
  const auto side = std::llround(std::sqrt(static_cast<double>(count)));
  return side * side == count ? side : 0;
}

void set_attention(DitConfig& c, const Shapes& shapes) {
  const std::string attn = "blocks.0.attn.";
  const auto taps = [&](const std::string& name) { return shapes.has(name) ? shapes.at(name, 3) : 0; };
  c.lepe = taps(attn + "lepe.weight"), c.dwconv = taps("blocks.0.dw_conv.weight");
  c.cpe = taps("blocks.0.cpe.conv.weight");
  c.gate = shapes.has(attn + "g.weight") ? c.gate == "linear" ? "linear" : "silu" : "none";
  c.head_norm = shapes.has(attn + "g_norm"), c.qk_norm = shapes.has(attn + "q_norm.weight");
  c.official = shapes.has(attn + "norm.weight");
  if (shapes.has(attn + "to_qkv.weight")) {
    const std::string mix = attn + "piece_attn.conv.weight";
    c.attention = shapes.has(mix) ? "mhla" : "linear";
    if (c.attention != "mhla") return;
    const std::int64_t M = shapes.at(mix, 0);
    if (c.blocks[0] * c.blocks[1] == M) return;
    if (side_of(M) == 0) fail("weights: ", mix, " has ", M, " blocks, expected rows and columns of them in `blocks`");
    c.blocks = {side_of(M), side_of(M)};
  } else if (shapes.has(attn + "gk_proj.0.weight")) {
    c.attention = "gla";
  } else if (shapes.has(attn + "qkv.weight") && shapes.has(attn + "proj.weight")) {
    c.attention = "softmax";
  }
}

}  // namespace

DitConfig dit_config_for(const Weights& published, DitConfig c) {
  const Shapes shapes(published);
  if (dit_names_of(published) == DitNames::kDiffusers) {
    const std::string first = "transformer_blocks.0.", emb = "norm1.emb.";
    set_patches(c, shapes, "pos_embed.proj.weight", "proj_out_2.weight");
    c.family = "dit", c.attention = "softmax", c.official = false, c.freq_shift = 1, c.norm2_eps = 1e-5;
    c.lepe = c.cpe = c.dwconv = 0, c.gate = "none", c.head_norm = c.qk_norm = c.scan = false;
    c.depth = shapes.blocks("transformer_blocks.");
    set_classes(c, shapes.at(first + emb + "class_embedder.embedding_table.weight", 0));
    c.mlp_ratio = static_cast<double>(shapes.at(first + "ff.net.0.proj.weight", 0)) / static_cast<double>(c.dim);
    c.own_embedders = false;
    for (const auto& [name, value] : published) {
      const std::size_t part = name.find(emb);
      if (part == std::string::npos) continue;
      const auto other = published.find(name.substr(0, name.find("transformer_")) + first + name.substr(part));
      if (other != published.end() && !torch::equal(other->second, value)) c.own_embedders = true;
    }
  } else {
    set_patches(c, shapes, "x_embedder.proj.weight", "final_layer.linear.weight");
    c.freq_shift = 0, c.norm2_eps = 1e-6, c.own_embedders = false;
    c.depth = shapes.blocks("blocks.");
    set_classes(c, shapes.at("y_embedder.embedding_table.weight", 0));
    set_attention(c, shapes);
    const bool dig = shapes.has("blocks.0.mlp.gate_proj.weight");
    c.family = dig ? "dig" : "dit", c.scan = dig && c.attention == "gla";
    if (dig) c.mlp_inner = shapes.at("blocks.0.mlp.down_proj.weight", 1);
    if (shapes.has("blocks.0.mlp.fc1.weight"))
      c.mlp_ratio = static_cast<double>(shapes.at("blocks.0.mlp.fc1.weight", 0)) / static_cast<double>(c.dim);
    const std::int64_t tokens = shapes.at("pos_embed", 1);
    if (c.rows() * c.columns() != tokens && side_of(tokens) != 0) {
      c.image = {side_of(tokens) * c.patch, side_of(tokens) * c.patch};
    } else if (c.rows() * c.columns() != tokens) {
      fail("weights: pos_embed has ", tokens,
           " tokens, expected rows and columns of samples in `image` that give them");
    }
  }
  if (c.dim % c.heads != 0)
    fail("weights: ", c.dim, " channels, expected a multiple of the ", c.heads, " heads of ",
         c.model.empty() ? "the config" : c.model);
  check(c);
  return c;
}

}  // namespace mhla
