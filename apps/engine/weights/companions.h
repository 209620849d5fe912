// What goes with a model besides its weights and its config.json: how inputs are prepared, the names of classes, the
// tokenizer, how samples are made. All that evaluation and sampling need and that a conversion must not lose.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "mhla/io/safetensors.h"

namespace mhla::weights {

enum class ModelKind : std::uint8_t { kClassifier, kLanguage, kGenerator };
using Companions = std::map<std::string, std::string>;  // file name, bytes

// Of a folder: its own files, or of a checkpoint those of its run. A run made before there was a preprocess.json gets
// one from its train.json.
Companions companions_in(const std::filesystem::path& folder, ModelKind kind);
// Of a published file: what companions_metadata() put into it, else the files beside `config` where that is the
// config.json of a model.
Companions companions_of_file(const std::filesystem::path& file, const std::filesystem::path& config, ModelKind kind);

void write_companions(const Companions& companions, const std::filesystem::path& folder);
// Into the header of a published file, which has no folder: the small ones.
Metadata companions_metadata(const Companions& companions);

}  // namespace mhla::weights
