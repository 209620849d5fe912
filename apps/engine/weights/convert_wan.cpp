// Wan transformers under original and diffusers' names, and with another attention: softmax to MHLA, full or hybrid.
// The other parts of a pipeline (autoencoder, text encoder, tokenizer, scheduler) are not copied: `mhla sample video`
// takes them from where they are.
#include <algorithm>
#include <filesystem>

#include "apps/engine/weights/companions.h"
#include "apps/engine/weights/weights.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/models/wan/wan.h"
#include "mhla/models/weights_folder.h"
#include "mhla/modules/unfilled.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla::weights {
namespace {

namespace fs = std::filesystem;
using apps::ConvertRequest;

// Where the config.json is: of a folder, of transformer/ in a pipeline, or given with a file; none: it is named.
fs::path wan_config_file(const ConvertRequest& r) {
  const fs::path in = r.in, part = in / "transformer" / "config.json";
  if (!fs::is_directory(in)) return r.config;
  if (!fs::exists(in / "config.json") && fs::exists(part)) return part;
  return fs::exists(in / "config.json") ? in / "config.json" : fs::path();
}

bool is_wan_config(const fs::path& file) {
  const JsonValue json = read_json_object(file);
  const auto is = [&](const char* key, const char* text) {
    const JsonValue* value = json.find(key);
    return value != nullptr && value->is_string() && value->as_string() == text;
  };
  return is("family", "wan") || is("_class_name", "WanTransformer3DModel") || is("_class_name", "WanModel");
}

fs::path wan_weights_path(const ConvertRequest& r) {
  const fs::path file = wan_config_file(r), folder = fs::is_directory(r.in) ? file.parent_path() : fs::path(r.in);
  if (r.weights.empty() || r.weights == "model") return folder;
  const fs::path own = folder / (r.weights + ".safetensors");
  if (!fs::exists(own)) fail("convert: --weights is ", r.weights, ", but ", r.in, " has no ", own.filename().string());
  return own;
}

WanConfig described_wan(const ConvertRequest& r) {
  const fs::path file = wan_config_file(r);
  WanConfig c = file.empty() ? wan_config(r.model) : read_wan_config(file);
  if (c.model.empty())  // a published config.json does not say
    for (const std::string& name : wan_names())
      if (wan_config(name).dim == c.dim && wan_config(name).depth == c.depth) c.model = name;
  return c;
}

WanConfig changed_wan(const WanConfig& from, const ConvertRequest& r) {
  WanConfig c = from;
  const auto refuse = [&](bool given, const char* option) {
    if (given) fail("convert: ", option, " is given, but ", r.in, " is a Wan");
  };
  refuse(r.image.has_value(), "--image"), refuse(r.classes > 0, "--classes"),
      refuse(!r.blocks.empty(), "--blocks N|RxC");
  const std::string attention = r.attention.empty() ? c.attention : r.attention;
  if (attention != "softmax" && attention != "mhla" && attention != "linear")
    fail("convert: --attention is ", attention, ", expected softmax, mhla or linear for a Wan");
  const bool turns = attention != c.attention || (!r.layers.empty() && attention != "softmax");
  const auto needs_turn = [&](bool given, const char* option) {
    if (given && !turns)
      fail("convert: ", option, " is given, but the attention stays ", c.attention, ", expected --attention mhla");
  };
  needs_turn(!r.layers.empty(), "--layers"), needs_turn(!r.mix_init.empty(), "--mix-init");
  needs_turn(!r.variant.empty(), "--variant"), needs_turn(r.official, "--official");
  if (turns) {
    if (attention != c.attention) c.normalizer = attention == "linear" ? "paper" : "none";
    c.attention = attention, c.layers = {};
    if (attention != "softmax")
      c.layers = wan_layers(r.layers.empty() ? "all" : r.layers, c.depth, "convert: --layers");
    if (attention == "softmax") c.gate = "none", c.lepe = 0;
    if (!r.mix_init.empty()) c.mix_init = r.mix_init;
    if (r.official) c.official = true;
    if (!r.variant.empty()) {
      c.gate = r.variant == "gate" || r.variant == "both" ? "silu" : "none";
      c.lepe = r.variant == "cpe" || r.variant == "both" ? 5 : 0;
    }
  }
  if (r.blocks3) {
    if (c.attention != "mhla") fail("convert: --blocks is given for ", c.attention, " attention, expected mhla");
    c.blocks = *r.blocks3;
  }
  check(c);
  return c;
}

torch::ScalarType loaded_dtype(const ConvertRequest& r, const Weights& given) {
  if (!r.dtype.empty()) return dtype_of(r);
  for (const auto& [name, value] : given)  // as the file has them
    if (value.is_floating_point() && value.dim() > 1) return value.scalar_type();
  return torch::kFloat;
}

}  // namespace

bool is_wan(const ConvertRequest& r) {
  if (const fs::path file = wan_config_file(r); !file.empty()) return is_wan_config(file);
  const std::vector<std::string> names = wan_names();
  return std::find(names.begin(), names.end(), r.model) != names.end();
}

void convert_wan(const ConvertRequest& r, apps::ConvertResult& result) {
  const torch::NoGradGuard no_gradient;
  const WanConfig from = described_wan(r), to = changed_wan(from, r);
  const ModelSize size = size_of(from, {from.patch[0], from.patch[1], from.patch[2]});
  expect_room(size, to == from ? 1 : 2, r.in);
  const fs::path weights = wan_weights_path(r);
  const Weights given = mapped_weights(weights);
  Wan model = [&] {
    const UnfilledWeights unfilled;
    return Wan(from);
  }();
  model->to(loaded_dtype(r, given));
  labelled(weights.string(), [&] { load_published(*model, given); });
  if (to != from) model = with_attention(*model, to);
  model->eval();
  const WanNames names = r.to == "diffusers" ? WanNames::kDiffusers : WanNames::kOriginal;
  const Companions companions =
      fs::is_directory(r.in) ? companions_in(wan_config_file(r).parent_path(), ModelKind::kGenerator) : Companions();
  if (r.to == "published") {
    write_weights(r.out, to_published(to, weights_of(*model), names), {{"format", "pt"}});
  } else {
    write_to(r.out, [&](const fs::path& folder) {
      save_wan(*model, folder, names);
      write_companions(companions, folder);
    });
  }
  result = {r.out, r.to, to.model, to.attention, count_parameters(*model)};
}

}  // namespace mhla::weights
