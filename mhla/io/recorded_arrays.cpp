#include "mhla/io/recorded_arrays.h"

#include "mhla/core/error.h"
#include "mhla/io/safetensors.h"

namespace mhla {
namespace {

double number_at(const ConstView& view, std::int64_t index) {
  switch (view.dtype) {
    case DType::kI64: return static_cast<double>(data_as<std::int64_t>(view)[index]);
    case DType::kU8: return static_cast<double>(data_as<std::uint8_t>(view)[index]);
    default: return load_f64(view.data, view.dtype, index);
  }
}

RecordedArray array_of(const ConstView& view) {
  RecordedArray array{{view.shape.begin(), view.shape.begin() + view.rank}, {}};
  for (std::int64_t i = 0; i < view.numel(); ++i) array.values.push_back(number_at(view, i));
  return array;
}

}  // namespace

const RecordedArray& RecordedArraysCase::array(const std::string& name, std::size_t axes, const char* letters) const {
  const auto found = arrays.find(name);
  if (found == arrays.end()) fail(name, " is missing");
  if (axes != 0 && found->second.shape.size() != axes)
    fail(name, " has shape ", shape_text(found->second.shape), ", expected ", letters);
  return found->second;
}

RecordedArrays recompute(const RecordedArraysFamilies& known, const std::string& family,
                         const RecordedArraysCase& recorded) {
  for (const RecordedArraysFamily& one : known) {
    if (one.name == family) return one.compute(recorded);
  }
  fail("family '", family, "' is unknown here");
}

RecordedArraysCase read_recorded_arrays(const std::filesystem::path& file, const std::string& name) {
  const Safetensors open = Safetensors::read(file);
  const auto text = open.metadata().find(name);
  if (text == open.metadata().end()) fail(file.string(), ": no case is called '", name, "'");
  RecordedArraysCase c{{parse_json(text->second, "metadata")}, {}};
  const std::string prefix = name + "/";
  for (std::size_t i = 0; i < open.size(); ++i) {
    const std::string key(open.entry(i).name);
    if (key.compare(0, prefix.size(), prefix) == 0) c.arrays[key.substr(prefix.size())] = array_of(open.view(i));
  }
  return c;
}

}  // namespace mhla
