#include "mhla/models/weights_file.h"

#include "mhla/ops/tensor_view.h"

namespace mhla {

Weights weights_in(const Safetensors& file) {
  Weights weights;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const Safetensors::Entry entry = file.entry(i);
    const ConstView view = file.view(i);
    const at::ScalarType type = ops::scalar_type_of(entry.dtype);
    weights[std::string(entry.name)] = view.data == nullptr
                                           ? torch::empty(entry.shape, type)
                                           : torch::from_blob(const_cast<void*>(view.data), entry.shape, type).clone();
  }
  return weights;
}

Weights read_weights(const std::filesystem::path& path) { return weights_in(Safetensors::read(path)); }

void write_weights(const std::filesystem::path& path, const Weights& weights, const Metadata& metadata) {
  std::vector<torch::Tensor> kept;  // views do not own
  std::vector<NamedView> views;
  for (const auto& [name, value] : weights) {
    kept.push_back(value.detach().cpu().contiguous());
    views.push_back({name, ops::view_of(kept.back(), "write_weights", name.c_str())});
  }
  write_safetensors(path, views, metadata);
}

}  // namespace mhla
