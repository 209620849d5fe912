// A recorded case of published code as plain arrays, for rooms that do not know LibTorch. Values are f64, whatever the
// file has.
#pragma once

#include <filesystem>
#include <map>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/io/recorded_options.h"

namespace mhla {

struct RecordedArray {
  std::vector<std::int64_t> shape;  // a scalar is [1]
  std::vector<double> values;

  [[nodiscard]] ConstView view() const { return {values.data(), DType::kF64, shape}; }
};
inline RecordedArray recorded_scalar(double value) { return {{1}, {value}}; }

using RecordedArrays = std::map<std::string, RecordedArray>;

struct RecordedArraysCase : RecordedOptions {
  RecordedArrays arrays;  // "in.ref", ...

  // Refuses a name that is not there, and another number of axes; `letters` names them in the message.
  [[nodiscard]] const RecordedArray& array(const std::string& name, std::size_t axes, const char* letters) const;
};

// What cases of a family are computed by: every output, by the names of the golden file.
struct RecordedArraysFamily {
  const char* name;
  RecordedArrays (*compute)(const RecordedArraysCase&);
};
using RecordedArraysFamilies = std::vector<RecordedArraysFamily>;
RecordedArrays recompute(const RecordedArraysFamilies& known, const std::string& family,
                         const RecordedArraysCase& recorded);

// A case of a golden file. Expected values come along: for tests.
RecordedArraysCase read_recorded_arrays(const std::filesystem::path& file, const std::string& name);

}  // namespace mhla
