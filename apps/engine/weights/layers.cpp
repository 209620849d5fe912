#include <set>

#include "apps/engine/weights/weights.h"
#include "mhla/core/error.h"
#include "mhla/io/folder.h"
#include "mhla/ops/ops.h"

namespace mhla::weights {
namespace {

constexpr const char *kFamilyKey = "mhla.family", *kWidthsKey = "mhla.widths";

Weights layer_of(const Weights& weights, const std::string& prefix) {
  Weights layer;
  for (const auto& [name, value] : weights) {
    if (name.compare(0, prefix.size(), prefix) == 0) layer[name.substr(prefix.size())] = value;
  }
  return layer;
}

// Rows of qkv that belong to q, k and v: those of the published parts, or a third each of one matrix.
std::vector<std::int64_t> widths_of(const Weights& published, const Weights& ours) {
  for (const char* end : {".weight", "_proj.weight"}) {
    const auto rows = [&](const char* part) { return published.at(str(part, end)).size(0); };
    if (published.count(str("q", end)) != 0) return {rows("q"), rows("k"), rows("v")};
  }
  const std::int64_t third = ours.at("qkv.weight").size(0) / 3;
  return {third, third, third};
}

std::string joined(const std::vector<std::int64_t>& widths) { return str(widths[0], ",", widths[1], ",", widths[2]); }

std::vector<std::int64_t> parse_widths(const std::string& text) {
  std::vector<std::int64_t> widths;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::size_t used = 0;
    std::int64_t value = 0;
    try {
      value = std::stoll(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != part.size() || value < 1)
      fail("convert: --widths is '", text, "', expected three numbers as in 512,512,1024");
    widths.push_back(value);
  }
  if (widths.size() != 3) fail("convert: --widths is '", text, "', expected three numbers as in 512,512,1024");
  return widths;
}

void replace(Weights& weights, const std::string& prefix, const Weights& before, const Weights& after) {
  for (const auto& [name, value] : before) weights.erase(prefix + name);
  for (const auto& [name, value] : after) weights[prefix + name] = value;
}

}  // namespace

namespace {

// Files of a converted model: of another one that lay there they go with its config.json.
bool is_of_model(const std::string& name) {
  for (const char* own :
       {"classes.json", "words.json", "preprocess.json", "generation.json", "tokenizer.json", "tokenizer.model",
        "tokenizer.fingerprint", "model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"})
    if (name == own) return true;
  const bool weights = name.rfind("model", 0) == 0 || name.rfind("diffusion_pytorch_model", 0) == 0;
  return weights && std::filesystem::path(name).extension() == ".safetensors";
}

}  // namespace

void write_to(const std::filesystem::path& out, const std::function<void(const std::filesystem::path&)>& write) {
  OutputFolder place(out);
  StagedFolder staged(out);
  write(staged.path());
  for (const auto& entry : std::filesystem::directory_iterator(staged.path()))
    place.claim(entry.path().filename().string());
  staged.commit(is_of_model);
  place.keep();
}

std::vector<std::string> layer_prefixes(const Weights& weights) {
  std::set<std::string> prefixes;
  for (const auto& [name, value] : weights) {
    for (std::size_t begin = 0, dot = name.find('.'); dot != std::string::npos;
         begin = dot + 1, dot = name.find('.', begin)) {
      const std::string part = name.substr(begin, dot - begin);
      if (part == "attn" || part == "self_attn") prefixes.insert(name.substr(0, dot + 1));
    }
  }
  if (prefixes.empty()) prefixes.insert("");
  return {prefixes.begin(), prefixes.end()};
}

void name_layers(const std::vector<apps::NamedShape>& names, std::vector<apps::LayerName>& layers) {
  Weights weights;
  for (const apps::NamedShape& tensor : names) weights[tensor.name] = torch::empty(tensor.shape, torch::kMeta);
  for (const std::string& prefix : layer_prefixes(weights)) {
    apps::LayerName& named = layers.emplace_back();
    named.prefix = prefix;
    const Weights layer = layer_of(weights, prefix);
    try {
      named.family = weight_family_of(layer);
    } catch (const Error& error) {
      const bool ours = layer.count("qkv.weight") != 0 && layer.count("out.weight") != 0 && layer.count("mix") != 0;
      (ours ? named.family : named.reason) = ours ? "mhla" : error.what();
    }
  }
}

void convert_layers(const apps::ConvertLayersRequest& request, apps::ConvertLayersResult& result) {
  ops::set_num_threads(0);
  const std::string &in = request.in, &out = request.out;
  const Safetensors file = Safetensors::read(in);
  Weights weights = weights_in(file);
  Metadata metadata = file.metadata();
  std::string family = request.family, widths = request.widths;
  const bool back = request.to == "published";
  const std::vector<std::string> prefixes =
      request.prefix.empty() ? layer_prefixes(weights) : std::vector<std::string>{request.prefix};
  const auto stored = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (back) {
    if (family.empty()) family = stored(kFamilyKey);
    if (widths.empty()) widths = stored(kWidthsKey);
    if (family.empty()) fail("convert: ", in, " does not say which family its names were of, expected --family");
  }
  for (const std::string& prefix : prefixes) {
    const Weights layer = layer_of(weights, prefix);
    if (layer.empty()) fail("convert: ", in, ": no name starts with '", prefix, "'");
    try {
      if (back) {
        const std::vector<std::int64_t> split = widths.empty() ? widths_of({}, layer) : parse_widths(widths);
        replace(weights, prefix, layer, to_published(layer, family, split));
        continue;
      }
      const std::string own(family.empty() ? weight_family_of(layer) : std::string_view(family));
      const Weights ours = from_published(layer, own);
      const std::string split = joined(widths_of(layer, ours));
      if (!widths.empty() && split != widths)
        fail("q, k and v have ", split, " rows, those of an earlier layer ", widths, ": name one with --prefix");
      family = own, widths = split;
      replace(weights, prefix, layer, ours);
    } catch (const Error& error) {
      fail("convert: ", in, ": ", prefix, " ", error.what());
    }
  }
  if (back)
    metadata.erase(kFamilyKey), metadata.erase(kWidthsKey);
  else
    metadata[kFamilyKey] = family, metadata[kWidthsKey] = widths;
  write_weights(out, weights, metadata);
  result = {out, family, static_cast<std::int64_t>(prefixes.size()), static_cast<std::int64_t>(weights.size())};
}

}  // namespace mhla::weights
