#include "apps/cli/golden_library.h"

#include <dlfcn.h>

#include <cstring>

#include "apps/cli/plugin.h"
#include "mhla/core/error.h"

namespace mhla::apps {

GoldenLibrary::GoldenLibrary() {
  constexpr const char* kName = "libmhla_golden.so";
  void* library = open_plugin(kName, "MHLA_GOLDEN", reason_);
  if (library == nullptr) return;
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_golden_interface"));
  can_ = reinterpret_cast<decltype(can_)>(dlsym(library, "mhla_golden_can"));
  compute_ = reinterpret_cast<decltype(compute_)>(dlsym(library, "mhla_golden_compute"));
  if (interface == nullptr || can_ == nullptr || compute_ == nullptr) {
    reason_ = str(kName, " lacks the functions of apps/engine/golden_modules.h");
  } else if (interface() != MHLA_GOLDEN_INTERFACE) {
    reason_ = str(kName, " speaks interface ", interface(), ", expected ", MHLA_GOLDEN_INTERFACE);
  }
}

std::map<std::string, Tensor> GoldenLibrary::compute(const std::string& family, const std::string& config,
                                                     const std::string& backend,
                                                     const std::map<std::string, Tensor>& inputs) const {
  if (!reason_.empty()) fail(reason_);
  std::vector<mhla_golden_tensor> tensors;
  for (const auto& [name, tensor] : inputs) {
    tensors.push_back({name.c_str(), static_cast<const double*>(tensor.data()), static_cast<int>(tensor.shape().size()),
                       tensor.shape().data()});
  }
  const mhla_golden_request request{family.c_str(), config.c_str(), backend.c_str(), static_cast<int>(tensors.size()),
                                    tensors.data()};
  std::map<std::string, Tensor> results;
  const auto take = [](void* context, const mhla_golden_tensor* given) {
    Tensor tensor(DType::kF64, {given->shape, given->shape + given->rank});
    std::memcpy(tensor.data(), given->data, static_cast<std::size_t>(tensor.numel()) * sizeof(double));
    static_cast<std::map<std::string, Tensor>*>(context)->insert_or_assign(given->name, std::move(tensor));
  };
  char reason[4096] = {};
  if (compute_(&request, take, &results, reason, sizeof reason) != 0) fail(reason);
  return results;
}

}  // namespace mhla::apps
