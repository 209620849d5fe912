// The table of attentions, and the count of blocks that makes models comparable.
#include "mhla/modules/zoo/zoo.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/zoo/focused.h"
#include "mhla/modules/zoo/gated_image.h"
#include "mhla/modules/zoo/gdn.h"
#include "mhla/modules/zoo/gla.h"
#include "mhla/modules/zoo/inline_attention.h"
#include "mhla/modules/zoo/mamba.h"
#include "mhla/modules/zoo/mamba2.h"
#include "mhla/modules/zoo/softmax.h"
#include "mhla/modules/zoo/zoo_size.h"

namespace mhla {
namespace {

MhlaAttentionOptions mhla_options(const AttentionConfig& c) {
  MhlaAttentionOptions o;
  if (c.causal) {
    o = MhlaAttentionOptions::lm(c.dim, c.heads);
    o.chunk = c.chunk, o.max_tokens = c.max_tokens;
  } else if (c.layout.rank == 3) {
    o = MhlaAttentionOptions::video(c.dim, c.heads, c.layout);
  } else {
    o.dim = c.dim, o.heads = c.heads, o.layout = c.layout, o.max_tokens = c.max_tokens;
    o.lepe = c.layout.rank == 2 ? 3 : 0;
  }
  return o;
}

// One block. Causal: one row of mix that every chunk reuses, which is 1 everywhere.
MhlaAttentionOptions linear_options(const AttentionConfig& c) {
  if (!c.causal) return MhlaAttentionOptions::linear(c.dim, c.heads);
  MhlaAttentionOptions o;
  o.dim = c.dim, o.heads = c.heads, o.causal = true, o.chunk = o.max_tokens = c.chunk;
  o.beyond_mix = BeyondMix::kExtend, o.learn_mix = false, o.out_bias = false;
  o.features = fused(FeatureMap::kElu1);
  return o;
}

template <MhlaAttentionOptions (*options)(const AttentionConfig&)>
AnyAttention make_layer(const AttentionConfig& c) {
  return std::make_shared<MhlaAttentionImpl>(options(c));
}
template <MhlaAttentionOptions (*options)(const AttentionConfig&)>
AttentionSize layer_size(const AttentionConfig& c) {
  return size_of(options(c));
}

template <class Module>
AnyAttention make(const AttentionConfig& c) {
  return std::make_shared<Module>(c);
}
template <GatedImageAttentionImpl::Core core>
AnyAttention make_gated(const AttentionConfig& c) {
  return std::make_shared<GatedImageAttentionImpl>(c, core);
}

struct Entry {
  std::string_view name;
  AnyAttention (*make)(const AttentionConfig&);
  AttentionSize (*size)(const AttentionConfig&);
  bool mlp, causal, scans;
};

constexpr Entry kEntries[] = {
    {"mhla", make_layer<mhla_options>, layer_size<mhla_options>, true, true, false},
    {"softmax", make<SoftmaxAttentionImpl>, softmax_size, true, true, false},
    {"linear", make_layer<linear_options>, layer_size<linear_options>, true, true, false},
    {"gla", make<GlaAttentionImpl>, gla_size, true, true, true},
    {"mamba", make<MambaAttentionImpl>, mamba_size, false, true, true},
    {"mamba2", make<Mamba2AttentionImpl>, mamba2_size, false, true, true},
    {"gdn", make<GdnAttentionImpl>, gdn_size, true, true, true},
    {"focused", make<FocusedAttentionImpl>, focused_size, true, false, false},
    {"inline", make<InlineAttentionImpl>, inline_size, true, false, false},
    {"mala", make_gated<GatedImageAttentionImpl::Core::kMala>, gated_size, true, false, false},
    {"rala", make_gated<GatedImageAttentionImpl::Core::kRala>, gated_size, true, false, false},
};

const Entry& entry_called(std::string_view name) {
  std::string names;
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry;
    names += str(names.empty() ? "" : ", ", entry.name);
  }
  fail("make_attention: attention is '", name, "', expected one of ", names);
}

}  // namespace

AnyAttention make_attention(std::string_view name, const AttentionConfig& config) {
  const Entry& entry = entry_called(name);
  if (config.dim < 1) fail("make_attention: ", name, ": dim is ", config.dim, ", expected at least 1");
  if (config.heads < 1) fail("make_attention: ", name, ": heads is ", config.heads, ", expected at least 1");
  if (config.causal && !entry.causal) fail("make_attention: ", name, " has no causal form");
  if (config.causal && config.layout.rank != 0)
    fail("make_attention: ", name, ": causal with a layout, expected a sequence");
  return entry.make(config);
}

AttentionSize attention_size(std::string_view name, const AttentionConfig& config) {
  return entry_called(name).size(config);
}

std::vector<std::string_view> attention_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) names.push_back(entry.name);
  return names;
}

bool has_causal_form(std::string_view name) { return entry_called(name).causal; }

bool scans(std::string_view name) { return entry_called(name).scans; }

bool has_mlp(std::string_view name) { return entry_called(name).mlp; }

std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

std::int64_t matched_depth(std::string_view name, const AttentionConfig& config, std::int64_t blocks,
                           std::int64_t mlp_width) {
  if (has_mlp(name)) fail("matched_depth: ", name, " has an MLP beside it: its depth is that of softmax attention");
  const double block =
      static_cast<double>(count_parameters(*make_attention("softmax", config)) + 2 * config.dim * mlp_width);
  const auto own = static_cast<double>(count_parameters(*make_attention(name, config)));
  const double wanted = static_cast<double>(blocks) * block;
  const auto depth = static_cast<std::int64_t>(std::llround(wanted / own));
  const double off = std::abs(static_cast<double>(depth) * own / wanted - 1.0);
  if (depth < 1 || off > 0.03) {
    fail("matched_depth: ", depth, " blocks of ", name, " are ", 100.0 * off, " % off the parameters of ", blocks,
         " blocks of softmax attention, expected at most 3 %: take a deeper or narrower model");
  }
  return depth;
}

}  // namespace mhla
