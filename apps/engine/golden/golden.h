// A golden case as LibTorch sees it, and the families that can be recomputed.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "apps/engine/engine.h"
#include "mhla/models/recorded.h"

namespace mhla::golden {

using Tensors = std::map<std::string, torch::Tensor>;

// in.*, param.*, dout are of one dtype, on one device. Options that are not in the metadata have the published default;
// none may stay unread.
using Case = RecordedCase;

// For the table of apps/engine/engine.h.
bool runs_on(const std::string& backend);
void compute(const apps::GoldenRequest& request, std::map<std::string, Tensor>& results);

// Results by the names of the file: "out", "init.mixing", "grad.in.x", "grad.param.to_qkv.weight", ...
// A file that recomputes a family of apps/verify/golden_families.h announces it:
//   const Family family("LM layer", compute_lm_layer);
struct Family {
  using Compute = std::function<Tensors(const Case&)>;
  Family(const std::string& name, const Compute& compute);
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
