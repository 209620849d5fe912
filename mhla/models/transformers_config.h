// The config.json of a run opens with transformers, too: "model_type" and "architectures" name the Python class of
// python/mhla/hf. What transformers' save_pretrained adds to such a file is none of a network's fields.
#pragma once

#include <string>

#include "mhla/io/json.h"

namespace mhla {

// The fields of a network with the keys that transformers looks for: of the families lm, deit and vlt; others stay as
// they are.
JsonValue for_transformers(JsonValue fields);

// The object without the keys of transformers. A "model_type" of another model is refused; `label` opens the error.
JsonValue without_transformers(const JsonValue& object, const std::string& label);

}  // namespace mhla
