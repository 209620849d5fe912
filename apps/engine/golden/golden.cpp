// A golden case from the program's memory to LibTorch and back.
#include "apps/engine/golden/golden.h"

#include <cstring>

#include "mhla/core/error.h"
#include "mhla/ops/ops.h"

namespace mhla::golden {
namespace {

std::map<std::string, Family::Compute>& families() {
  static std::map<std::string, Family::Compute> all;
  return all;
}

torch::TensorOptions place_of(const std::string& backend) {
  if (backend == "simd") return torch::kFloat;
  if (backend == "ref") return torch::kDouble;
  if (backend != "cuda") fail("backend '", backend, "' cannot run a module in f32, expected simd, ref or cuda");
  if (!torch::cuda::is_available()) fail("backend cuda: this LibTorch sees no CUDA device");
  return torch::TensorOptions(torch::kFloat).device(torch::kCUDA, 0);
}

}  // namespace

Family::Family(const std::string& name, const Compute& compute) { families()[name] = compute; }

bool runs_on(const std::string& backend) {
  return backend == "simd" || backend == "ref" || (backend == "cuda" && torch::cuda::is_available());
}

void compute(const apps::GoldenRequest& request, std::map<std::string, Tensor>& results) {
  ops::set_num_threads(0);
  const torch::TensorOptions place = place_of(request.backend);
  Case c{{request.config}, {}};
  for (const auto& [name, given] : request.inputs)
    c.tensors[name] = torch::from_blob(given.data(), given.shape(), torch::kDouble).to(place, false, true);
  const auto family = families().find(request.family);
  if (family == families().end()) fail("family '", request.family, "' is unknown to the engine");
  for (const auto& [name, value] : family->second(c)) {
    const torch::Tensor wide = value.detach().to(torch::kCPU, torch::kDouble).contiguous();
    Tensor tensor(DType::kF64,
                  wide.dim() == 0 ? std::vector<std::int64_t>{1} : wide.sizes().vec());  // as files have it
    std::memcpy(tensor.data(), wide.data_ptr<double>(), static_cast<std::size_t>(wide.numel()) * sizeof(double));
    results.insert_or_assign(name, std::move(tensor));
  }
}

}  // namespace mhla::golden
