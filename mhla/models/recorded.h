// A recorded case of published code: what went in, under the names of a golden file ("in.x", "param.blocks.0...",
// "dout"), and the options it ran with. `mhla verify --golden` and the tests of a room compute the rest from it.
#pragma once

#include "mhla/io/recorded_options.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

struct RecordedCase : RecordedOptions {
  Weights tensors;

  [[nodiscard]] bool has(const std::string& name) const { return tensors.count(name) != 0; }
  [[nodiscard]] const torch::Tensor& tensor(const std::string& name) const;  // refuses a name that is not there
  [[nodiscard]] torch::Tensor leaf(const std::string& name) const;           // a copy that takes gradients
  [[nodiscard]] torch::Tensor index(const std::string& name) const;          // as int64, whatever it was stored as
  [[nodiscard]] Weights weights(const std::string& prefix) const;
};

// What cases of a family are computed by: every output and gradient, by the names of the golden file.
struct RecordedFamily {
  const char* name;
  Weights (*compute)(const RecordedCase&);
};
using RecordedFamilies = std::vector<RecordedFamily>;
Weights recompute(const RecordedFamilies& known, const std::string& family, const RecordedCase& recorded);

// A case of a golden file. Expected values come along: for tests.
RecordedCase read_recorded(const std::filesystem::path& file, const std::string& name);
std::vector<std::string> recorded_names(const std::filesystem::path& file);

}  // namespace mhla
