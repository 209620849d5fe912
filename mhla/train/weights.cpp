#include "mhla/train/weights.h"

#include <set>

#include "mhla/core/error.h"
#include "mhla/models/weights_file.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::train {

torch::Tensor tensor_in(const Safetensors& file, std::size_t index) {
  const ConstView view = file.view(index);
  const Safetensors::Entry entry = file.entry(index);
  return torch::from_blob(const_cast<void*>(view.data), entry.shape, ops::scalar_type_of(view.dtype));
}

NamedTensors tensors_of(const torch::nn::Module& model) {
  NamedTensors all;
  for (const auto& item : model.named_parameters()) all.emplace_back(item.key(), item.value().detach());
  for (const auto& item : model.named_buffers()) all.emplace_back(item.key(), item.value().detach());
  return all;
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors, const Metadata& metadata) {
  write_weights(path, Weights(tensors.begin(), tensors.end()), metadata);
}

std::vector<std::size_t> expect_tensors(const Safetensors& file, const std::string& prefix, const NamedTensors& tensors,
                                        bool all) {
  std::set<std::string> wanted;
  std::vector<std::size_t> found;
  for (const auto& [name, tensor] : tensors) {
    const std::string full = prefix + name;
    const auto index = file.find(full);
    if (!index) fail(file.label(), ": tensor '", full, "' is missing, expected ", shape_text(tensor.sizes().vec()));
    const Safetensors::Entry entry = file.entry(*index);
    const std::vector<std::int64_t> shape = tensor.sizes().vec();
    if (entry.shape != shape)
      fail(file.label(), ": tensor '", full, "' has shape ", shape_text(entry.shape), ", expected ", shape_text(shape));
    if (ops::scalar_type_of(entry.dtype) != tensor.scalar_type())
      fail(file.label(), ": tensor '", full, "' is ", safetensors_name(entry.dtype), ", expected ",
           c10::toString(tensor.scalar_type()));
    wanted.insert(full);
    found.push_back(*index);
  }
  for (std::size_t i = 0; all && i < file.size(); ++i) {
    const std::string name(file.entry(i).name);
    if (name.rfind(prefix, 0) == 0 && wanted.count(name) == 0)
      fail(file.label(), ": tensor '", name, "' is no part of this model");
  }
  return found;
}

void read_tensors(const Safetensors& file, const std::string& prefix, const NamedTensors& tensors, bool all) {
  const std::vector<std::size_t> found = expect_tensors(file, prefix, tensors, all);
  const torch::NoGradGuard no_gradient;
  for (std::size_t i = 0; i < found.size(); ++i) {
    torch::Tensor target = tensors[i].second;
    target.copy_(tensor_in(file, found[i]));
  }
}

}  // namespace mhla::train
