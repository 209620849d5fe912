// Image models: published names in and out, another size, another attention.
#include <filesystem>

#include "apps/weights/weights.h"
#include "mhla/core/error.h"
#include "mhla/models/image_model.h"
#include "mhla/modules/zoo.h"

namespace mhla::weights {
namespace {

std::array<std::int64_t, 2> pair_of(const JsonValue& json) {
  return {json.at(std::size_t{0}).as_int(), json.at(std::size_t{1}).as_int()};
}

ImageConfig described(const JsonValue& request) {
  const std::string file = text_of(request, "config");
  if (!file.empty()) return read_image_config(file);
  const std::string attention = text_of(request, "attention");
  ImageConfig config = image_config(text_of(request, "model"), attention.empty() ? "mhla" : attention,
                                    request.contains("official") && request.at("official").as_bool());
  if (request.contains("classes")) config.classes = request.at("classes").as_int();
  return config;
}

// The model of a folder with the attention and the size that are asked for.
AnyImageModel changed(AnyImageModel model, const JsonValue& request) {
  ImageConfig config = model->config();
  const std::string attention = text_of(request, "attention");
  if (!attention.empty() && attention != config.attention) {
    config.attention = attention, config.qkv_bias = true;
    model = with_attention(*model, config);
  }
  if (request.contains("image")) config.image = pair_of(request.at("image"));
  if (request.contains("blocks")) {
    config.blocks.clear();
    for (const JsonValue& blocks : request.at("blocks").items()) config.blocks.push_back(pair_of(blocks));
  }
  check(config);
  return config == model->config() ? model : resized(*model, config);
}

}  // namespace

JsonValue convert_model(const JsonValue& request) {
  const std::string in = text_of(request, "in"), out = text_of(request, "out");
  AnyImageModel model;
  if (std::filesystem::is_directory(in)) {
    model = load_image_model(in);
    model = changed(model, request);
  } else {
    model = make_image_model(described(request));
    try {
      load_published(*model, read_weights(in));
    } catch (const Error& error) {
      fail(in, ": ", error.what());
    }
    JsonValue sizes;  // what the published file was trained with is in the description already
    for (const char* key : {"image", "blocks"}) {
      if (request.contains(key)) sizes.set(key, request.at(key));
    }
    if (!sizes.is_null()) model = changed(model, sizes);
  }
  const bool published = text_of(request, "to") == "published";
  if (published)
    write_weights(out, published_weights(*model), {{"format", "pt"}});
  else
    save_image_model(*model, out);
  const ImageConfig& c = model->config();
  JsonValue row;
  row.set("out", out)
      .set("names", published ? "published" : "ours")
      .set("model", c.model)
      .set("attention", c.attention);
  row.set("parameters", count_parameters(*model));
  return row;
}

}  // namespace mhla::weights
