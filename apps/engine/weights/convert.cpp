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

namespace mhla::weights {
namespace {

std::array<std::int64_t, 2> pair_of(const JsonValue& json) {
  return {json.at(std::size_t{0}).as_int(), json.at(std::size_t{1}).as_int()};
}

ClassifierConfig described(const JsonValue& request) {
  const std::string file = text_of(request, "config");
  if (!file.empty()) return read_classifier_config(file);
  const std::string attention = text_of(request, "attention");
  ClassifierConfig config = classifier_config(text_of(request, "model"), attention.empty() ? "mhla" : attention,
                                              request.contains("official") && request.at("official").as_bool());
  if (request.contains("classes")) config.classes = request.at("classes").as_int();
  return config;
}

// Before a model is made beside one that there is: `models` of this size at once, and the file they come from.
void expect_room(const ModelSize& size, double models, const std::filesystem::path& in) {
  std::error_code none;
  const std::filesystem::path file = std::filesystem::is_directory(in) ? in / "model.safetensors" : in;
  const auto bytes = std::filesystem::file_size(file, none);
  expect_fits(str("convert: a model of ", static_cast<std::int64_t>(size.parameters), " parameters"),
              MemoryEstimate()
                  .add("weights", 4 * models * size.parameters)
                  .add("file of weights", none ? 0.0 : static_cast<double>(bytes)));
}

// The model of a folder with the attention and the size that are asked for.
AnyClassifier changed(AnyClassifier model, const JsonValue& request) {
  ClassifierConfig config = model->config();
  const std::string attention = text_of(request, "attention");
  if (!attention.empty() && attention != config.attention) config.attention = attention, config.qkv_bias = true;
  if (request.contains("image")) config.image = pair_of(request.at("image"));
  if (request.contains("blocks")) {
    config.blocks.clear();
    for (const JsonValue& blocks : request.at("blocks").items()) config.blocks.push_back(pair_of(blocks));
  }
  check(config);
  if (config == model->config()) return model;
  expect_room(size_of(config), 2, text_of(request, "in"));
  return adapted(std::move(model), config);
}

// A language model: its config.json says so, or its name.
bool is_language_model(const JsonValue& request) {
  const std::filesystem::path in = text_of(request, "in"), folder_config = in / "config.json";
  std::filesystem::path config = text_of(request, "config");
  if (std::filesystem::is_directory(in) && std::filesystem::exists(folder_config)) config = folder_config;
  if (config.empty()) {
    for (const std::string& name : lm_names()) {
      if (name == text_of(request, "model")) return true;
    }
    return false;
  }
  const JsonValue json = read_json_object(config);
  const JsonValue* family = json.find("family");
  return family != nullptr && family->is_string() && family->as_string() == "lm";
}

JsonValue convert_language_model(const JsonValue& request) {
  const std::string in = text_of(request, "in"), out = text_of(request, "out"), config = text_of(request, "config");
  for (const char* key : {"image", "blocks", "classes"}) {
    if (request.contains(key)) fail("convert: ", key, " is given, but ", in, " is a language model");
  }
  const std::string attention = text_of(request, "attention");
  LanguageModel model{nullptr};
  Companions companions;
  if (std::filesystem::is_directory(in)) {
    if (!attention.empty()) fail("convert: attention is given, but ", in, " says it in its config.json");
    expect_room(size_of(read_lm_config(std::filesystem::path(in) / "config.json"), 1), 1, in);
    model = load_language_model(in);
    companions = companions_in(in, /*language=*/true);
  } else {
    const LmConfig network = !config.empty()
                                 ? read_lm_config(config)
                                 : lm_config(text_of(request, "model"), attention.empty() ? "mhla" : attention,
                                             request.contains("official") && request.at("official").as_bool());
    expect_room(size_of(network, 1), 1, in);
    model = LanguageModel(network);
    labelled(in, [&] { load_published(*model, read_weights(in)); });
    companions = companions_of_file(in, config, /*language=*/true);
  }
  const bool published = text_of(request, "to") == "published";
  write_to(out, /*folder=*/!published, [&] {
    if (published) return write_weights(out, published_weights(*model), companions_metadata(companions));
    save_language_model(*model, out);
    write_companions(companions, out);
  });
  return JsonValue()
      .set("out", out)
      .set("names", published ? "published" : "ours")
      .set("model", model->config().model)
      .set("attention", model->config().attention)
      .set("parameters", count_parameters(*model));
}

}  // namespace

JsonValue convert_model(const JsonValue& request) {
  if (is_language_model(request)) return convert_language_model(request);
  const std::string in = text_of(request, "in"), out = text_of(request, "out");
  AnyClassifier model;
  Companions companions;
  if (std::filesystem::is_directory(in)) {
    expect_room(size_of(read_classifier_config(std::filesystem::path(in) / "config.json")), 1, in);
    model = load_classifier(in);
    companions = companions_in(in, /*language=*/false);
    model = changed(model, request);
  } else {
    const ClassifierConfig network = described(request);
    check(network);
    expect_room(size_of(network), 1, in);
    model = make_classifier(network);
    labelled(in, [&] { load_published(*model, read_weights(in)); });
    JsonValue sizes;  // what the published file was trained with is in the description already
    for (const char* key : {"image", "blocks"}) {
      if (request.contains(key)) sizes.set(key, request.at(key));
    }
    if (!sizes.is_null()) model = changed(model, sizes);
    companions = companions_of_file(in, text_of(request, "config"), /*language=*/false);
  }
  const bool published = text_of(request, "to") == "published";
  write_to(out, /*folder=*/!published, [&] {
    if (published) return write_weights(out, published_weights(*model), companions_metadata(companions));
    save_classifier(*model, out);
    write_companions(companions, out);
  });
  const ClassifierConfig& c = model->config();
  JsonValue row;
  row.set("out", out)
      .set("names", published ? "published" : "ours")
      .set("model", c.model)
      .set("attention", c.attention);
  row.set("parameters", count_parameters(*model));
  return row;
}

}  // namespace mhla::weights
