// Weights of whole files: attention layers by their published names, image models in folders.
#pragma once

#include <filesystem>
#include <functional>

#include "mhla/io/json.h"
#include "mhla/models/weights_file.h"

namespace mhla::weights {

// Where the attention layers of a file are: everything up to a part called attn or self_attn ("blocks.0.attn."), or the
// whole file ("") when nothing is called so.
std::vector<std::string> layer_prefixes(const Weights& weights);

JsonValue describe_layer(const Weights& weights, const std::string& prefix);  // prefix, family or reason

// Every attention layer under our names or back under those of its family; all other tensors as they are. Which family
// and how wide q, k and v are is kept in the metadata of the file.
JsonValue convert_layers(const JsonValue& request);
JsonValue convert_model(const JsonValue& request);

// Calls `write`, which makes the file `out` or fills the folder. A place that cannot be written to is the caller's
// mistake, an Error; what fails there all the same, such as a disk that is full, is a std::runtime_error.
void write_to(const std::filesystem::path& out, bool folder, const std::function<void()>& write);

std::string text_of(const JsonValue& request, const char* key);  // empty when it is not there

}  // namespace mhla::weights
