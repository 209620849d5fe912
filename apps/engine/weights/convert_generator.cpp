// Models that generate images: DiT and SANA under our names and published ones, with another attention, at another
// size. What a folder says of its process and classes goes along.
#include <algorithm>
#include <filesystem>

#include "apps/engine/weights/companions.h"
#include "apps/engine/weights/weights.h"
#include "mhla/diffusion/generation_config.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"
#include "mhla/models/dit/dit.h"
#include "mhla/models/sana/sana.h"
#include "mhla/models/weights_folder.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla::weights {
namespace {

namespace fs = std::filesystem;
using apps::ConvertRequest;

enum class Source : std::uint8_t { kOther, kDit, kDitDiffusers, kSana };

bool is_one_of(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Where the config.json is: of a folder, of transformer/ in a pipeline of diffusers, or none.
fs::path folder_of(const ConvertRequest& r) {
  const fs::path in = r.in, part = in / "transformer";
  if (!fs::is_directory(in)) return {};
  return !fs::exists(in / "config.json") && fs::exists(part / "config.json") ? part : in;
}

fs::path config_of(const ConvertRequest& r) {
  const fs::path folder = folder_of(r);
  if (folder.empty()) return r.config;
  return fs::exists(folder / "config.json") ? folder / "config.json" : fs::path();
}

Source source_of(const JsonValue& config) {
  const auto text = [&](const char* key) {
    const JsonValue* value = config.find(key);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  if (is_dit_diffusers(config)) return Source::kDitDiffusers;
  if (text("family") == "sana" || text("_class_name") == "SanaTransformer2DModel") return Source::kSana;
  return text("family") == "dit" || text("family") == "dig" ? Source::kDit : Source::kOther;
}

Source source_of(const ConvertRequest& r) {
  if (const fs::path config = config_of(r); !config.empty()) return source_of(read_json_object(config));
  if (is_one_of(r.model, dit_names())) return Source::kDit;
  return is_one_of(r.model, sana_names()) ? Source::kSana : Source::kOther;
}

// The weights of the request. Those of a run have our names, as all folders of DiT.
Weights given_weights(const ConvertRequest& r) {
  const fs::path folder = folder_of(r);
  if (folder.empty() || r.weights.empty() || r.weights == "model")
    return mapped_weights(folder.empty() ? fs::path(r.in) : folder);
  const fs::path file = folder / (r.weights + ".safetensors");
  if (!fs::exists(file))
    fail("convert: --weights is ", r.weights, ", but ", r.in, " has no ", file.filename().string());
  return mapped_weights(file);
}

Companions given_companions(const ConvertRequest& r) {
  if (fs::is_directory(r.in)) return companions_in(r.in, ModelKind::kGenerator);
  if (fs::path(r.in).extension() != ".safetensors") return {};  // an index of shards
  return companions_of_file(r.in, r.config, ModelKind::kGenerator);
}

std::array<std::int64_t, 2> only_blocks(const ConvertRequest& r) {
  if (r.blocks.size() != 1)
    fail("convert: --blocks has ", r.blocks.size(), " stages, expected one: ", r.in, " has one stage");
  return r.blocks[0];
}

// Positions and mixing matrices stay f32: they are small, and formulas are compared with them.
Weights in_dtype(Weights weights, torch::ScalarType dtype) {
  for (auto& [name, value] : weights) {
    const bool exact =
        name == "pos_embed" || name.find("mix") != std::string::npos || name.find("piece_attn") != std::string::npos;
    if (value.is_floating_point()) value = value.detach().to(exact ? torch::kFloat : dtype);
  }
  return weights;
}

std::string mix_init_of(const ConvertRequest& r, const std::string& attention) {
  return !r.mix_init.empty() ? r.mix_init : attention == "linear" ? "uniform" : "linear";
}

void refuse_without_attention(const ConvertRequest& r, bool changes) {
  if (changes) return;
  if (!r.mix_init.empty()) fail("convert: --mix-init is given, but the attention stays, expected --attention mhla");
  if (!r.variant.empty()) fail("convert: --variant is given, but the attention stays, expected --attention");
}

// ---- DiT

DitConfig described(const ConvertRequest& r, Source source, const Weights& weights) {
  const fs::path file = config_of(r);
  DitConfig start;
  if (source == Source::kDitDiffusers) {
    start = parse_dit_diffusers(read_json_object(file), file.string());
  } else if (!file.empty()) {
    start = read_dit_config(file);
    if (fs::is_directory(r.in)) {  // of ours: it says everything
      if (!r.model.empty() || r.classes > 0 || r.official)
        fail("convert: --model, --classes and --official are for files, but ", r.in, " has a config.json");
      return start;
    }
  } else {
    // MHLA's options are in the names of the file; without it none is set.
    start = dit_config(r.model, "softmax");
    if (r.official) start.official = true, start.attention = "mhla";
  }
  if (r.classes > 0) start.classes = r.classes;
  DitConfig config = labelled(r.in, [&] { return dit_config_for(weights, start); });
  if (source == Source::kDitDiffusers) config.norm2_eps = start.norm2_eps;
  check(config);
  // The number of heads is the named model's, so the rest must be, too.
  if (file.empty() && (config.dim != start.dim || config.depth != start.depth || config.patch != start.patch))
    fail("convert: ", r.in, " has ", config.depth, " blocks of ", config.dim, " channels and patches of ", config.patch,
         ", expected ", start.depth, " of ", start.dim, " and ", start.patch, " for --model ", r.model,
         ": --model FILE takes the config.json of any other");
  return config;
}

Dit loaded_dit(const ConvertRequest& r, Source source) {
  const Weights weights = given_weights(r);
  const DitConfig config = described(r, source, weights);
  expect_room(size_of(config), 1, r.in);
  Dit model(config);
  const bool ours = source == Source::kDit && fs::is_directory(r.in);
  labelled(r.in, [&] { ours ? load_state(*model, weights) : load_published(*model, weights); });
  model->eval();
  return model;
}

Dit changed(Dit model, const ConvertRequest& r) {
  DitConfig config = model->config();
  const std::string from = config.attention;
  const bool turns = !r.attention.empty() && r.attention != from;
  refuse_without_attention(r, turns);
  if (r.image) config = at_size(config, (*r.image)[0], (*r.image)[1]);
  if (!r.blocks.empty() && !turns) {
    if (from != "mhla") fail("convert: --blocks is given, but ", r.in, " has ", from, " attention, expected mhla");
    config.blocks = only_blocks(r);
  }
  check(config);
  if (config != model->config()) {
    expect_room(size_of(config), 2, r.in);
    model = resized(*model, config);
  }
  if (!turns) return model;
  config.attention = r.attention, config.official = false;
  if (r.attention == "mhla") config.mix_init = mix_init_of(r, from);
  if (!r.blocks.empty()) config.blocks = only_blocks(r);
  if (!r.variant.empty()) config = with_variant(config, r.variant);
  check(config);
  expect_room(size_of(config), 2, r.in);
  return with_attention(*model, config);
}

void write_dit(const DitImpl& model, const ConvertRequest& r, Companions companions) {
  const DitConfig& config = model.config();
  const torch::ScalarType dtype = dtype_of(r);
  if (companions.count(kGenerationFile) == 0)
    companions[kGenerationFile] =
        write_json(fields_to_json(dit_generation(config.channels, config.learn_sigma)), 2) + "\n";
  if (r.to == "published")
    return write_weights(r.out, in_dtype(published_weights(model), dtype), companions_metadata(companions));
  const bool theirs = r.to == "diffusers";
  const Weights weights = in_dtype(theirs ? published_weights(model, DitNames::kDiffusers) : state_of(model), dtype);
  const JsonValue json = theirs ? dit_diffusers_json(config) : fields_to_json(config);
  write_to(r.out, [&](const fs::path& folder) {
    OutputFolder place(folder);
    write_weights_folder(place, theirs ? "diffusion_pytorch_model" : "model", weights);
    write_file(place.claim("config.json"), write_json(json, 2) + "\n");
    write_companions(companions, folder);
    place.keep();
  });
}

// ---- SANA

Sana loaded_sana(const ConvertRequest& r) {
  const fs::path file = config_of(r);
  const SanaConfig config = !file.empty() ? read_sana_config(file) : sana_config(r.model);
  expect_room(size_of(config, 1, 1), 1, r.in);
  Sana model(config);
  labelled(r.in, [&] { load_published(*model, given_weights(r)); });
  model->eval();
  return model;
}

Sana changed(const Sana& model, const ConvertRequest& r) {
  SanaConfig config = model->config();
  if (r.image) fail("convert: --image is given, but SANA takes samples of any size");
  if (r.classes > 0 || r.official || !r.variant.empty())
    fail("convert: --classes, --official and --variant are given, but ", r.in, " is a SANA");
  const std::string from = config.attention;
  const bool turns = !r.attention.empty() && r.attention != from;
  refuse_without_attention(r, turns);
  if (turns) {
    const SanaConfig usual = sana_config(config.model, r.attention);
    config.attention = r.attention, config.eps = usual.eps, config.features = usual.features;
    if (r.attention == "mhla") config.mix_init = mix_init_of(r, from);
  }
  if (!r.blocks.empty()) {
    if (config.attention != "mhla")
      fail("convert: --blocks is given for ", config.attention, " attention, expected mhla");
    config.blocks = only_blocks(r);
  }
  check(config);
  if (config == model->config()) return model;
  expect_room(size_of(config, 1, 1), 2, r.in);
  return with_attention(*model, config);
}

GenerationConfig generation_of_sana(const ConvertRequest& r) {
  const fs::path config = config_of(r);
  return config.empty() ? sana_generation() : sana_generation(config, r.in);
}

void write_sana(Sana model, const ConvertRequest& r, Companions companions) {
  if (companions.count(kGenerationFile) == 0)
    companions[kGenerationFile] = write_json(fields_to_json(generation_of_sana(r)), 2) + "\n";
  const torch::ScalarType dtype = dtype_of(r);
  if (r.to == "published")
    return write_weights(r.out, in_dtype(to_published(model->config(), state_of(*model), SanaNames::kOriginal), dtype),
                         companions_metadata(companions));
  model->to(dtype);
  write_to(r.out, [&](const fs::path& folder) {
    save_sana(*model, folder, r.to == "diffusers" ? SanaNames::kDiffusers : SanaNames::kOriginal);
    write_companions(companions, folder);
  });
}

template <class Config>
apps::ConvertResult result_of(const ConvertRequest& r, const Config& config, const torch::nn::Module& model) {
  return {r.out, r.to, config.model, config.attention, count_parameters(model)};
}

}  // namespace

torch::ScalarType dtype_of(const ConvertRequest& r) {
  if (r.dtype == "bf16") return torch::kBFloat16;
  return r.dtype == "f16" ? torch::kHalf : torch::kFloat;
}

bool is_generator(const ConvertRequest& request) { return source_of(request) != Source::kOther; }

void convert_generator(const ConvertRequest& r, apps::ConvertResult& result) {
  const torch::NoGradGuard no_gradient;
  const Companions companions = given_companions(r);
  const Source source = source_of(r);
  if (source == Source::kSana) {
    const Sana model = changed(loaded_sana(r), r);
    write_sana(model, r, companions);
    result = result_of(r, model->config(), *model);
    return;
  }
  const Dit model = changed(loaded_dit(r, source), r);
  write_dit(*model, r, companions);
  result = result_of(r, model->config(), *model);
}

}  // namespace mhla::weights
