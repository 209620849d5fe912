// A model that is described by a file, such as the config.json of a run, instead of a name.
#pragma once

#include <set>
#include <string>

#include "mhla/io/fields.h"

namespace mhla::train {

inline bool is_model_file(const std::string& model) {
  const std::string tail = ".json";
  return model.find('/') != std::string::npos ||
         (model.size() > tail.size() && model.compare(model.size() - tail.size(), tail.size(), tail) == 0);
}

// Every field of a network but `without`: what options have to say where there is no file.
template <class Config>
JsonValue network_fields(const Config& network, const std::set<std::string>& without) {
  const JsonValue all = fields_to_json(network);
  JsonValue fields = JsonValue::object();
  for (const JsonValue::Member& member : all.members())
    if (without.count(member.key) == 0) fields.set(member.key, member.value);
  return fields;
}

}  // namespace mhla::train
