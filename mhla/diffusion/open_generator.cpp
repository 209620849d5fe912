#include "mhla/diffusion/open_generator.h"

#include "mhla/core/labelled.h"
#include "mhla/data/class_names.h"
#include "mhla/io/json_object.h"
#include "mhla/models/dit/dit.h"
#include "mhla/models/sana/sana.h"
#include "mhla/models/weights_folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

std::string config_text(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

Weights weights_of_file(const fs::path& file, const std::string& prefix) {
  const Weights all = mapped_weights(file);
  Weights own;
  for (const auto& [name, value] : all)
    if (name.compare(0, prefix.size(), prefix) == 0) own[name.substr(prefix.size())] = value;
  if (own.empty()) fail("no tensor's name starts with '", prefix, "'");
  return own;
}

Generator load_dit_generator(const DitConfig& config, const Weights& weights,
                             const std::optional<std::array<std::int64_t, 2>>& size) {
  Dit model(config);
  load_state(*model, weights);
  if (size && *size != config.image) model = resized(*model, at_size(config, (*size)[0], (*size)[1]));
  model->eval();
  return {model.ptr(), model.ptr()};
}

Generator load_sana_generator(const SanaConfig& config, const Weights& weights) {
  Sana model(config);
  load_published(*model, weights);
  model->eval();
  return {model.ptr(), model.ptr()};
}

}  // namespace

const std::string& GeneratorPlan::model() const {
  return std::visit([](const auto& c) -> const std::string& { return c.model; }, network);
}

const std::string& GeneratorPlan::attention() const {
  return std::visit([](const auto& c) -> const std::string& { return c.attention; }, network);
}

std::int64_t GeneratorPlan::channels() const {
  return std::visit([](const auto& c) { return c.channels; }, network);
}

std::int64_t GeneratorPlan::patch() const {
  return std::visit([](const auto& c) { return c.patch; }, network);
}

bool GeneratorPlan::has_null_class() const {
  const auto* dit = std::get_if<DitConfig>(&network);
  return dit != nullptr && dit->has_null_class();
}

std::optional<std::array<std::int64_t, 2>> GeneratorPlan::own_size() const {
  if (const auto* dit = std::get_if<DitConfig>(&network)) return dit->image;
  if (generation.sample.size() == 2) return std::array{generation.sample[0], generation.sample[1]};
  return {};
}

GeneratorPlan GeneratorPlan::at(std::array<std::int64_t, 2> size) const {
  GeneratorPlan other = *this;
  if (auto* dit = std::get_if<DitConfig>(&other.network); dit != nullptr && dit->image != size)
    *dit = at_size(*dit, size[0], size[1]);
  return other;
}

ModelSize GeneratorPlan::size_at(std::array<std::int64_t, 2> size) const {
  const GeneratorPlan other = at(size);
  if (const auto* dit = std::get_if<DitConfig>(&other.network)) return size_of(*dit);
  return size_of(std::get<SanaConfig>(other.network), size[0], size[1]);
}

GeneratorPlan describe_generator(const fs::path& folder, const fs::path& companions) {
  const fs::path file = folder / "config.json";
  const JsonValue json = read_json_object(file);
  const std::string family = config_text(json, "family"), diffusers = config_text(json, "_class_name"),
                    transformers = config_text(json, "model_type");
  GeneratorPlan plan;
  plan.folder = folder;
  GenerationConfig usual;
  if (family == "sana" || diffusers == "SanaTransformer2DModel") {
    plan.network = parse_sana_config(json, file.string());
    usual = sana_generation(file, companions);
  } else if (diffusers == "DiTTransformer2DModel") {
    fail(file.string(), ": is of diffusers, expected a folder that `mhla convert` made of its weights");
  } else if (family == "dit" || family == "dig") {
    const DitConfig config = parse_dit_config(json, file.string());
    plan.network = config;
    plan.class_names = read_class_names(companions, config.classes);
    usual = dit_generation(config.channels, config.learn_sigma);
  } else {
    fail(file.string(), ": is of ",
         !diffusers.empty()      ? diffusers
         : !family.empty()       ? family
         : !transformers.empty() ? transformers
                                 : "another model",
         ", expected a model that generates images: dit, dig or sana");
  }
  plan.generation = read_generation_config(companions, usual);
  const auto* dit = std::get_if<DitConfig>(&plan.network);
  labelled((companions / kGenerationFile).string(),
           [&] { check(plan.generation, plan.channels(), dit != nullptr && dit->learn_sigma); });
  return plan;
}

Generator load_generator(const GeneratorPlan& plan, const fs::path& file, const std::string& prefix,
                         std::optional<std::array<std::int64_t, 2>> size) {
  const fs::path from = file.empty() ? plan.folder : file;
  return labelled(from.string(), [&] {
    const Weights weights = weights_of_file(from, prefix);
    if (const auto* dit = std::get_if<DitConfig>(&plan.network)) return load_dit_generator(*dit, weights, size);
    return load_sana_generator(std::get<SanaConfig>(plan.network), weights);
  });
}

}  // namespace mhla
