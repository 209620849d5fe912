#include "mhla/modules/weight_names.h"

#include <algorithm>
#include <set>

#include "mhla/core/error.h"

namespace mhla {
namespace {

using Names = std::vector<std::string>;
using Table = std::map<std::string, Names>;  // ours to the published ones

struct Family {
  std::string_view name;
  Table required;
  std::vector<Table> optional;  // groups: each there as a whole or not at all
  std::string mix;              // its name, or empty
  int mix_ones = 0;             // trailing ones of its shape
};

Table both(const std::string& ours, const Names& published) {
  Table table;
  for (const char* part : {".weight", ".bias"}) {
    for (const std::string& name : published) table[ours + part].push_back(name + part);
  }
  return table;
}

Table join(std::initializer_list<Table> parts) {
  Table all;
  for (const Table& part : parts) all.insert(part.begin(), part.end());
  return all;
}

// Parts of the feature maps of q and k, called by us as by others.
Table of_maps(const Names& parts) {
  Table table;
  for (const char* map : {"feature_map_q.", "feature_map_k."}) {
    for (const std::string& part : parts) table[map + part] = {map + part};
  }
  return table;
}

const std::vector<Family>& families() {
  static const Table kNorms{{"q_norm.weight", {"q_norm.weight"}}, {"k_norm.weight", {"k_norm.weight"}}};
  static const Table kWanNorms{{"q_norm.weight", {"norm_q.weight"}}, {"k_norm.weight", {"norm_k.weight"}}};
  static const Table kImage = join({{{"qkv.weight", {"to_qkv.weight"}}}, both("out", {"to_out.0"})});
  static const Table kWan = join({both("qkv", {"q", "k", "v"}), both("out", {"o"})});
  static const Table kLm{{"qkv.weight", {"q_proj.weight", "k_proj.weight", "v_proj.weight"}},
                         {"out.weight", {"o_proj.weight"}}};
  // Short convolutions, and the feature maps that learn: t2r has a weight, hedgehog its bias too, hadamard two layers.
  static const std::vector<Table> kLmOptions{{{"q_conv.weight", {"q_conv1d.weight"}},
                                              {"k_conv.weight", {"k_conv1d.weight"}},
                                              {"v_conv.weight", {"v_conv1d.weight"}}},
                                             of_maps({"layer.weight"}),
                                             of_maps({"layer.bias"}),
                                             of_maps({"layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"})};
  static const std::vector<Family> kFamilies = {
      {"image",
       kImage,
       {{{"qkv.bias", {"to_qkv.bias"}}}, both("norm", {"norm"}), both("lepe", {"lepe"}), kNorms},
       "piece_attn.conv.weight",
       2},
      {"linear", join({kImage, kNorms}), {{{"qkv.bias", {"to_qkv.bias"}}}, both("lepe", {"lepe"})}, "", 0},
      {"video",
       join({kWan, {{"head_norm.weight", {"g_norm.weight"}}}}),
       {kWanNorms, both("gate", {"g"}), both("lepe", {"lepe"})},
       "block_attn.conv.weight",
       2},
      {"lm", join({kLm, {{"head_norm.weight", {"g_norm.weight"}}}}), kLmOptions, "mixing_matrix", 4},
      {"lm_gated",
       join({kLm, {{"gate.weight", {"g_proj.weight"}}, {"head_norm.weight", {"g_norm_swish_gate.weight"}}}}),
       kLmOptions, "mixing_matrix", 4},
      {"lm_linear", join({kLm, {{"head_norm.weight", {"g_norm.weight"}}}}), kLmOptions, "", 0},
      {"lm_linear_gated",
       join({kLm, {{"gate.weight", {"g_proj.weight"}}, {"head_norm.weight", {"g_norm_swish_gate.weight"}}}}),
       kLmOptions, "", 0},
      {"lm_softmax",
       {{"qkv.weight", {"q_proj.weight", "k_proj.weight", "v_proj.weight"}}, {"proj.weight", {"o_proj.weight"}}},
       {},
       "",
       0},
      {"dit_base", join({both("qkv", {"qkv"}), both("out", {"proj"})}), {}, "", 0},
      {"wan_base", join({kWan, kWanNorms}), {}, "", 0},
  };
  return kFamilies;
}

const Family& family_called(std::string_view name) {
  std::string names;
  for (const Family& family : families()) {
    if (family.name == name) return family;
    names += str(names.empty() ? "" : ", ", family.name);
  }
  fail("weights: family is '", name, "', expected one of ", names);
}

Table all_names(const Family& family) {
  Table all = family.required;
  for (const Table& group : family.optional) all.insert(group.begin(), group.end());
  return all;
}

struct Fit {
  std::vector<std::string> missing, left_over;
  [[nodiscard]] bool exact() const { return missing.empty() && left_over.empty(); }
  [[nodiscard]] std::size_t size() const { return missing.size() + left_over.size(); }
};

// All up to eight, else the first few: a file of another model has hundreds.
std::string some_of(const std::vector<std::string>& names) {
  const std::size_t some = names.size() <= 8 ? names.size() : 3;
  std::string text;
  for (std::size_t i = 0; i < some; ++i) text += str(i == 0 ? "" : ", ", names[i]);
  if (names.size() > some) text += str(" and ", names.size() - some, " more");
  return text.empty() ? "nothing" : text;
}

std::string describe(const Fit& fit) {
  return str("missing: ", some_of(fit.missing), "; left over: ", some_of(fit.left_over));
}

Fit fit_of(const Family& family, const Weights& weights) {
  Fit fit;
  std::set<std::string> known;
  const auto want = [&](const Table& table, bool needed) {
    for (const auto& [ours, names] : table) {
      for (const std::string& name : names) {
        known.insert(name);
        if (needed && weights.count(name) == 0) fit.missing.push_back(name);
      }
    }
  };
  want(family.required, true);
  for (const Table& group : family.optional) {
    const bool any = std::any_of(group.begin(), group.end(), [&](const auto& entry) {
      return std::any_of(entry.second.begin(), entry.second.end(),
                         [&](const auto& name) { return weights.count(name) != 0; });
    });
    want(group, any);
  }
  if (!family.mix.empty()) want({{"mix", {family.mix}}}, true);
  for (const auto& [name, value] : weights) {
    if (known.count(name) == 0) fit.left_over.push_back(name);
  }
  return fit;
}

torch::Tensor square_mix(const torch::Tensor& mix, const Family& family) {
  bool fits = mix.dim() == 2 + family.mix_ones && mix.size(0) == mix.size(1);
  for (std::int64_t axis = 2; fits && axis < mix.dim(); ++axis) fits = mix.size(axis) == 1;
  if (!fits) {
    std::string expected = "[M, M";
    for (int i = 0; i < family.mix_ones; ++i) expected += ", 1";
    fail("weights: ", family.mix, " has shape ", c10::str(mix.sizes()), ", expected ", expected, "]");
  }
  return mix.flatten(1);
}

}  // namespace

std::vector<std::string_view> weight_families() {
  std::vector<std::string_view> names;
  for (const Family& family : families()) names.push_back(family.name);
  return names;
}

std::string_view weight_family_of(const Weights& published) {
  std::vector<std::string_view> exact;
  const Family* nearest = nullptr;
  Fit best;
  for (const Family& family : families()) {
    const Fit fit = fit_of(family, published);
    if (fit.exact()) exact.push_back(family.name);
    if (nearest == nullptr || fit.size() < best.size()) nearest = &family, best = fit;
  }
  if (exact.size() == 1) return exact[0];
  if (exact.size() > 1) fail("weights: the names fit ", exact[0], " and ", exact[1], " alike, expected one family");
  fail("weights: the names fit no family; nearest is ", nearest->name, ", ", describe(best));
}

Weights from_published(const Weights& published, std::string_view family_name, std::string_view prefix) {
  Weights layer;
  for (const auto& [name, value] : published) {
    if (name.compare(0, prefix.size(), prefix) == 0) layer[name.substr(prefix.size())] = value;
  }
  if (layer.empty()) fail("weights: no name starts with '", prefix, "'");
  const Family& family = family_called(family_name.empty() ? weight_family_of(layer) : family_name);
  const Fit fit = fit_of(family, layer);
  if (!fit.exact()) fail("weights: ", family.name, ": ", describe(fit));
  Weights ours;
  for (const auto& [name, names] : all_names(family)) {
    if (layer.count(names[0]) == 0) continue;
    std::vector<torch::Tensor> parts;
    for (const std::string& part : names) parts.push_back(layer.at(part));
    ours[name] = parts.size() == 1 ? parts[0] : torch::cat(parts);
  }
  if (!family.mix.empty()) ours["mix"] = square_mix(layer.at(family.mix), family);
  return ours;
}

Weights to_published(const Weights& ours, std::string_view family_name, const std::vector<std::int64_t>& widths) {
  const Family& family = family_called(family_name);
  const Table names = all_names(family);
  Fit fit;
  const auto given = [&](const auto& entry) { return ours.count(entry.first) != 0; };
  const auto want = [&](const Table& table) {
    for (const auto& entry : table) {
      if (!given(entry)) fit.missing.push_back(entry.first);
    }
  };
  want(family.required);
  for (const Table& group : family.optional) {
    if (std::any_of(group.begin(), group.end(), given)) want(group);
  }
  if (!family.mix.empty()) want({{"mix", {}}});
  for (const auto& [name, value] : ours) {
    if (names.count(name) == 0 && (name != "mix" || family.mix.empty())) fit.left_over.push_back(name);
  }
  if (!fit.exact()) fail("weights: to ", family.name, ": ", describe(fit));
  Weights published;
  for (const auto& [name, value] : ours) {
    if (!value.defined()) continue;
    if (name == "mix") {
      std::vector<std::int64_t> shape = value.sizes().vec();
      if (shape.size() != 2)
        fail("weights: to ", family.name, ": mix has shape ", c10::str(value.sizes()),
             ", expected [M, M]: it has one for all heads");
      shape.insert(shape.end(), static_cast<std::size_t>(family.mix_ones), 1);
      published[family.mix] = value.reshape(shape);
    } else if (const Names& parts = names.at(name); parts.size() == 1) {
      published[parts[0]] = value;
    } else {
      const std::vector<torch::Tensor> split = value.split_with_sizes(widths);
      for (std::size_t i = 0; i < parts.size(); ++i) published[parts[i]] = split[i];
    }
  }
  return published;
}

void adapt_options(MhlaAttentionOptions& options, const Weights& ours) {
  const auto there = [&](const char* name) { return ours.count(name) != 0; };
  options.qkv_bias = there("qkv.bias"), options.out_bias = there("out.bias"), options.gate_bias = there("gate.bias");
  options.inner_norm = there("norm.weight"), options.qk_norm = there("q_norm.weight");
  options.head_norm = there("head_norm.weight");
  if (!there("gate.weight"))
    options.gate = Gate::kNone;
  else if (options.gate == Gate::kNone)
    options.gate = Gate::kSilu;
  options.lepe = there("lepe.weight") ? ours.at("lepe.weight").size(-1) : 0;
  options.short_conv = there("q_conv.weight") ? ours.at("q_conv.weight").size(-1) : 0;
  if (there("feature_map_q.layer1.weight"))
    options.features = Features::kHadamard;
  else if (there("feature_map_q.layer.weight"))
    options.features = there("feature_map_q.layer.bias") ? Features::kHedgehog : Features::kT2r;
}

Weights weights_of(const torch::nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters()) weights[item.key()] = item.value().detach();
  return weights;
}

Weights gradients_of(const torch::nn::Module& module) {
  Weights gradients;
  for (const auto& item : module.named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

void expect_weights(const Weights& own, const Weights& weights, const char* entry) {
  Fit fit;
  std::vector<std::string> shapes;
  for (const auto& [name, value] : own) {
    const auto given = weights.find(name);
    if (given == weights.end()) {
      fit.missing.push_back(name);
    } else if (given->second.sizes() != value.sizes()) {
      shapes.push_back(
          str(name, " has shape ", c10::str(given->second.sizes()), ", expected ", c10::str(value.sizes())));
    }
  }
  for (const auto& [name, value] : weights) {
    if (own.count(name) == 0) fit.left_over.push_back(name);
  }
  if (fit.exact() && shapes.empty()) return;
  fail(entry, ": ", describe(fit), shapes.empty() ? "" : "; " + some_of(shapes));
}

void copy_weights(const Weights& own, const Weights& weights, const char* entry) {
  expect_weights(own, weights, entry);
  const torch::NoGradGuard no_gradient;
  for (const auto& [name, value] : own) {
    torch::Tensor parameter = value;
    parameter.copy_(weights.at(name));
  }
}

void load_weights(torch::nn::Module& module, const Weights& weights) {
  copy_weights(weights_of(module), weights, "load_weights");
}

}  // namespace mhla
