// Weights that a training starts from (`init`).
#pragma once

#include <filesystem>
#include <set>

#include "mhla/io/json.h"
#include "mhla/modules/weight_names.h"

namespace mhla::train {

struct InitSource {
  std::string name;                    // as given, for messages
  std::filesystem::path file;          // safetensors
  std::string prefix;                  // of its tensors: "ema." in a checkpoint
  std::filesystem::path maybe_config;  // config.json of the file; empty: a file by itself
  std::filesystem::path maybe_folder;  // with the tokenizer
};

Weights read_init(const InitSource& source);  // the tensors of the file, without the prefix

// An Error that names the first field in which two networks differ, but for those that may.
void expect_same_network(const InitSource& source, const JsonValue& from, const JsonValue& to,
                         const std::set<std::string>& may_differ);

// Whether names of a file are those of `own` rather than the published ones of the same model, by which it has more of.
bool has_own_names(const Weights& own, const Weights& published, const Weights& given);

}  // namespace mhla::train
