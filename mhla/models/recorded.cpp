#include "mhla/models/recorded.h"

#include "mhla/core/error.h"
#include "mhla/models/published_names.h"
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

Weights recompute(const RecordedFamilies& known, const std::string& family, const RecordedCase& recorded) {
  for (const RecordedFamily& one : known) {
    if (one.name == family) return one.compute(recorded);
  }
  fail("family '", family, "' is unknown here");
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
  RecordedCase c{{parse_json(text->second, "metadata")}, {}};
  const std::string prefix = name + "/";
  const std::string lender = c.text("param_case", "") + "/param.";  // whose parameters the case has
  for (auto& [key, value] : weights_in(open)) {
    if (starts_with(key, prefix)) c.tensors[key.substr(prefix.size())] = value;
    if (starts_with(key, lender)) c.tensors[key.substr(lender.size() - 6)] = value;
  }
  return c;
}

}  // namespace mhla
