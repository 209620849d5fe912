// The C interface of apps/engine/weights_interface.h.
#include <cstring>

#include "apps/commands.h"
#include "apps/engine/weights/weights.h"
#include "apps/engine/weights_interface.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch_error.h"

namespace mhla::weights {
namespace {

void run(const JsonValue& request, const std::function<void(const JsonValue&)>& row) {
  const std::string command = text_of(request, "command");
  if (command == "layers") {
    Weights weights;
    for (const JsonValue::Member& member : request.at("names").members()) {
      std::vector<std::int64_t> shape;
      for (const JsonValue& size : member.value.items()) shape.push_back(size.as_int());
      weights[member.key] = torch::empty(shape, torch::kMeta);
    }
    for (const std::string& prefix : layer_prefixes(weights)) row(describe_layer(weights, prefix));
  } else if (command == "convert") {
    row(request.contains("layers") ? convert_layers(request) : convert_model(request));
  } else {
    fail("command '", command, "' is unknown to this library");
  }
}

}  // namespace
}  // namespace mhla::weights

extern "C" {

int mhla_weights_interface(void) { return MHLA_WEIGHTS_INTERFACE; }

int mhla_weights_run(const char* request, mhla_weights_row row, void* context, char* reason, size_t reason_size) {
  try {
    try {
      mhla::ops::set_num_threads(0);
      mhla::weights::run(mhla::parse_json(request, "request"),
                         [&](const mhla::JsonValue& value) { row(context, mhla::write_json(value).c_str()); });
      return mhla::apps::kDone;
    } catch (const std::filesystem::filesystem_error& error) {
      mhla::fail_as(error);
    }
  } catch (const mhla::Error& error) {
    std::strncpy(reason, error.what(), reason_size - 1);
    return mhla::apps::kCallersMistake;
  } catch (const std::exception& error) {
    std::strncpy(reason, mhla::ops::short_reason(error).c_str(), reason_size - 1);
  }
  return mhla::apps::kFailed;
}
}
