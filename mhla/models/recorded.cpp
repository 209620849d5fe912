#include "mhla/models/recorded.h"

#include "mhla/core/error.h"
#include "mhla/models/weights_file.h"

namespace mhla {

const torch::Tensor& RecordedCase::tensor(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) fail(name, " is missing");
  return found->second;
}

torch::Tensor RecordedCase::leaf(const std::string& name) const { return tensor(name).clone().requires_grad_(); }

torch::Tensor RecordedCase::index(const std::string& name) const { return tensor(name).to(torch::kLong); }

Weights RecordedCase::weights(const std::string& prefix) const {
  Weights found;
  for (const auto& [name, value] : tensors) {
    if (name.compare(0, prefix.size(), prefix) == 0) found[name.substr(prefix.size())] = value;
  }
  return found;
}

std::int64_t RecordedCase::integer(const char* key) const {
  if (!config.contains(key)) fail("metadata '", key, "' is missing");
  const std::int64_t value = config.at(key).as_int();
  if (value < 1) fail("metadata '", key, "' is ", value, ", expected a positive integer");
  return value;
}

double RecordedCase::number(const char* key, double otherwise) const {
  return config.contains(key) ? config.at(key).as_double() : otherwise;
}

bool RecordedCase::flag(const char* key, bool otherwise) const {
  return config.contains(key) ? config.at(key).as_bool() : otherwise;
}

std::string RecordedCase::text(const char* key) const {
  if (!config.contains(key)) fail("metadata '", key, "' is missing");
  return std::string(config.at(key).as_string());
}

std::string RecordedCase::text(const char* key, const char* otherwise) const {
  return config.contains(key) ? text(key) : otherwise;
}

void RecordedCase::expect_keys(std::initializer_list<const char*> known) const {
  for (const JsonValue::Member& member : config.members()) {
    bool found = false;
    for (const char* key : {"family", "note", "gradient_of", "seed"}) found = found || member.key == key;
    for (const char* key : known) found = found || member.key == key;
    if (!found) fail("metadata '", member.key, "' is no option of this family");
  }
}

std::vector<std::string> recorded_names(const std::filesystem::path& file) {
  const Safetensors open = Safetensors::read(file);
  std::vector<std::string> names;
  for (const auto& [name, text] : open.metadata()) names.push_back(name);
  return names;
}

RecordedCase read_recorded(const std::filesystem::path& file, const std::string& name) {
  const Safetensors open = Safetensors::read(file);
  const auto text = open.metadata().find(name);
  if (text == open.metadata().end()) fail(file.string(), ": no case is called '", name, "'");
  RecordedCase c{parse_json(text->second, "metadata"), {}};
  const std::string prefix = name + "/";
  for (auto& [key, value] : weights_in(open)) {
    if (key.compare(0, prefix.size(), prefix) == 0) c.tensors[key.substr(prefix.size())] = value;
  }
  return c;
}

}  // namespace mhla
