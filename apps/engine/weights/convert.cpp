// Models: published names in and out; image models of another size or attention.
#include <filesystem>

#include "apps/engine/weights/companions.h"
#include "apps/engine/weights/weights.h"
#include "mhla/core/memory.h"
#include "mhla/io/json_object.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/lm/lm.h"
#include "mhla/models/model_size.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/ops.h"

namespace mhla::weights {
namespace {

using apps::ConvertRequest;

std::string attention_of(const ConvertRequest& request) {
  return request.attention.empty() ? "mhla" : request.attention;
}

ClassifierConfig described(const ConvertRequest& request) {
  if (!request.config.empty()) return read_classifier_config(request.config);
  ClassifierConfig config = classifier_config(request.model, attention_of(request), request.official);
  if (request.classes > 0) config.classes = request.classes;
  return config;
}

// The model of a folder with the attention and the size that are asked for.
AnyClassifier changed(AnyClassifier model, const std::string& attention, const ConvertRequest& request) {
  ClassifierConfig config = model->config();
  if (!attention.empty() && attention != config.attention) config.attention = attention, config.qkv_bias = true;
  if (request.image) config.image = *request.image;
  if (!request.blocks.empty()) config.blocks = request.blocks;
  check(config);
  if (config == model->config()) return model;
  expect_room(size_of(config), 2, request.in);
  return adapted(std::move(model), config);
}

// Options of models that generate images.
void refuse_for_others(const ConvertRequest& request) {
  const auto refuse = [&](bool given, const char* option) {
    if (given) fail("convert: ", option, " is given, but ", request.in, " is no model that generates images");
  };
  refuse(request.to == "diffusers", "--to diffusers"), refuse(!request.mix_init.empty(), "--mix-init");
  refuse(!request.variant.empty(), "--variant"), refuse(!request.weights.empty(), "--weights");
  refuse(!request.dtype.empty(), "--dtype");
}

// Other models of diffusers, such as the autoencoder of a pipeline.
void refuse_other_classes(const ConvertRequest& request) {
  const std::filesystem::path config = std::filesystem::path(request.in) / "config.json";
  if (!std::filesystem::exists(config)) return;
  const JsonValue json = read_json_object(config);
  if (const JsonValue* name = json.find("_class_name"); name != nullptr && name->is_string())
    fail("convert: ", config.string(), " is of ", name->as_string(),
         ", expected DiTTransformer2DModel, SanaTransformer2DModel or WanTransformer3DModel");
}

// A language model: its config.json says so, or its name.
bool is_language_model(const ConvertRequest& request) {
  const std::filesystem::path in = request.in, folder_config = in / "config.json";
  std::filesystem::path config = request.config;
  if (std::filesystem::is_directory(in) && std::filesystem::exists(folder_config)) config = folder_config;
  if (config.empty()) {
    for (const std::string& name : lm_names()) {
      if (name == request.model) return true;
    }
    return false;
  }
  const JsonValue json = read_json_object(config);
  const JsonValue* family = json.find("family");
  return family != nullptr && family->is_string() && family->as_string() == "lm";
}

void convert_language_model(const ConvertRequest& request, apps::ConvertResult& result) {
  const std::string &in = request.in, &out = request.out, &config = request.config;
  const auto refuse = [&](bool given, const char* what) {
    if (given) fail("convert: ", what, " is given, but ", in, " is a language model");
  };
  refuse(request.image.has_value(), "image"), refuse(!request.blocks.empty(), "blocks");
  refuse(request.classes > 0, "classes");
  LanguageModel model{nullptr};
  Companions companions;
  if (std::filesystem::is_directory(in)) {
    if (!request.attention.empty()) fail("convert: attention is given, but ", in, " says it in its config.json");
    expect_room(size_of(read_lm_config(std::filesystem::path(in) / "config.json"), 1), 1, in);
    model = load_language_model(in);
    companions = companions_in(in, ModelKind::kLanguage);
  } else {
    const LmConfig network =
        !config.empty() ? read_lm_config(config) : lm_config(request.model, attention_of(request), request.official);
    expect_room(size_of(network, 1), 1, in);
    model = LanguageModel(network);
    labelled(in, [&] { load_published(*model, read_weights(in)); });
    companions = companions_of_file(in, config, ModelKind::kLanguage);
  }
  const bool published = request.to == "published";
  if (published) {
    write_weights(out, published_weights(*model), companions_metadata(companions));
  } else {
    write_to(out, [&](const std::filesystem::path& folder) {
      save_language_model(*model, folder);
      write_companions(companions, folder);
    });
  }
  result = {out, published ? "published" : "ours", model->config().model, model->config().attention,
            count_parameters(*model)};
}

}  // namespace

void expect_room(const ModelSize& size, double models, const std::filesystem::path& in) {
  std::error_code none;
  const std::filesystem::path file = std::filesystem::is_directory(in) ? in / "model.safetensors" : in;
  const auto bytes = std::filesystem::file_size(file, none);
  expect_fits(str("convert: a model of ", static_cast<std::int64_t>(size.parameters), " parameters"),
              MemoryEstimate()
                  .add("weights", 4 * models * size.parameters)
                  .add("file of weights", none ? 0.0 : static_cast<double>(bytes)));
}

void convert_model(const ConvertRequest& request, apps::ConvertResult& result) {
  ops::set_num_threads(0);
  if (is_wan(request)) return convert_wan(request, result);
  if (request.blocks3 || !request.layers.empty())
    fail("convert: ", request.blocks3 ? "three numbers of --blocks are" : "--layers is", " given, but ", request.in,
         " is not a Wan transformer, expected ", request.blocks3 ? "rows and columns" : "a folder of one");
  if (is_generator(request)) return convert_generator(request, result);
  refuse_for_others(request);
  refuse_other_classes(request);
  if (is_language_model(request)) return convert_language_model(request, result);
  const std::string &in = request.in, &out = request.out;
  AnyClassifier model;
  Companions companions;
  if (std::filesystem::is_directory(in)) {
    expect_room(size_of(read_classifier_config(std::filesystem::path(in) / "config.json")), 1, in);
    model = load_classifier(in);
    companions = companions_in(in, ModelKind::kClassifier);
    model = changed(model, request.attention, request);
  } else {
    const ClassifierConfig network = described(request);
    check(network);
    expect_room(size_of(network), 1, in);
    model = make_classifier(network);
    labelled(in, [&] { load_published(*model, read_weights(in)); });
    model = changed(model, "", request);  // the attention of the published file is in the description already
    companions = companions_of_file(in, request.config, ModelKind::kClassifier);
  }
  const bool published = request.to == "published";
  if (published) {
    write_weights(out, published_weights(*model), companions_metadata(companions));
  } else {
    write_to(out, [&](const std::filesystem::path& folder) {
      save_classifier(*model, folder);
      write_companions(companions, folder);
    });
  }
  const ClassifierConfig& c = model->config();
  result = {out, published ? "published" : "ours", c.model, c.attention, count_parameters(*model)};
}

}  // namespace mhla::weights
