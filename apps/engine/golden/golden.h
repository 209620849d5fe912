// A golden case as LibTorch sees it, and the families that can be recomputed.
#pragma once

#include <map>
#include <string>

#include "apps/engine/engine.h"
#include "mhla/io/json.h"
#include "mhla/modules/weight_names.h"

namespace mhla::golden {

using Tensors = std::map<std::string, torch::Tensor>;

struct Case {
  JsonValue config;
  Tensors tensors;  // in.*, param.*, dout: of one dtype, on one device

  [[nodiscard]] const torch::Tensor& tensor(const std::string& name) const;  // throws when it is missing
  [[nodiscard]] torch::Tensor leaf(const std::string& name) const;           // a copy that gradients are wanted of
  [[nodiscard]] Weights weights(const std::string& prefix) const;            // "param." or "param.blocks.0.attn."
  [[nodiscard]] bool has_gradients() const { return tensors.count("dout") != 0; }

  // Options of the configuration. Those not in it have the published default; none may stay unread.
  [[nodiscard]] std::int64_t integer(const char* key) const;
  [[nodiscard]] double number(const char* key, double otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key, const char* otherwise) const;
  void expect_keys(std::initializer_list<const char*> known) const;
};

// For the table of apps/engine/engine.h.
bool runs_on(const std::string& backend);
void compute(const apps::GoldenRequest& request, std::map<std::string, Tensor>& results);

// Results by the names of the file: "out", "init.mixing", "grad.in.x", "grad.param.to_qkv.weight", ...
// A file that recomputes a family of apps/verify/golden_families.h announces it:
//   const Family family("LM layer", compute_lm_layer);
struct Family {
  using Compute = Tensors (*)(const Case&);
  Family(const std::string& name, Compute compute);
};

// An attention layer of those options with published weights, in the dtype and on the device of the case's.
struct Loaded {
  MhlaAttention layer{nullptr};
  std::string family;
  torch::Tensor initial_mix;
  void add_gradients(const std::string& prefix, Tensors& results) const;  // "grad.param." + name
};
Loaded load_layer(MhlaAttentionOptions options, const Weights& published);

// Raster places of the tokens in block order, [N].
torch::Tensor block_order(const Layout& layout);
Layout window_layout(const Case& c, const char* window_key);  // embed_len tokens in square windows
MixInit mix_init(const Case& c, const char* transform);

}  // namespace mhla::golden
