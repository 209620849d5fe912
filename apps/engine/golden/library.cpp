// The C interface of apps/engine/golden_modules.h.
#include <cstring>

#include "apps/engine/golden/golden.h"
#include "apps/engine/golden_modules.h"
#include "mhla/core/error.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch_error.h"

namespace mhla::golden {
namespace {

Tensors compute(const std::string& family, const Case& c) {
  if (family == "LM layer") return compute_lm_layer(c);
  if (family == "video module") return compute_video(c);
  if (family == "DiT module") return compute_window(c, /*dit=*/true);
  if (family == "image classification module") return compute_window(c, /*dit=*/false);
  if (family == "linear attention module") return compute_linear_attention(c);
  if (family == "DeiT model") return compute_deit(c);
  fail("family '", family, "' is unknown to this library");
}

torch::TensorOptions place_of(const std::string& backend) {
  if (backend == "simd") return torch::kFloat;
  if (backend == "ref") return torch::kDouble;
  if (backend != "cuda") fail("backend '", backend, "' cannot run a module in f32, expected simd, ref or cuda");
  if (!torch::cuda::is_available()) fail("backend cuda: this LibTorch sees no CUDA device");
  return torch::TensorOptions(torch::kFloat).device(torch::kCUDA, 0);
}

void run(const mhla_golden_request& request, mhla_golden_result result, void* context) {
  const torch::TensorOptions place = place_of(request.backend);
  Case c{.config = parse_json(request.config, "metadata"), .tensors = {}};
  for (int i = 0; i < request.count; ++i) {
    const mhla_golden_tensor& given = request.tensors[i];
    const at::IntArrayRef shape(given.shape, static_cast<std::size_t>(given.rank));
    c.tensors[given.name] =
        torch::from_blob(const_cast<double*>(given.data), shape, torch::kDouble).to(place, false, true);
  }
  for (const auto& [name, value] : compute(request.family, c)) {
    const torch::Tensor wide = value.detach().to(torch::kCPU, torch::kDouble).contiguous();
    const mhla_golden_tensor out{name.c_str(), wide.data_ptr<double>(), static_cast<int>(wide.dim()),
                                 wide.sizes().data()};
    result(context, &out);
  }
}

}  // namespace
}  // namespace mhla::golden

extern "C" {

int mhla_golden_interface(void) { return MHLA_GOLDEN_INTERFACE; }

int mhla_golden_can(const char* backend) {
  const std::string_view name = backend;
  return name == "simd" || name == "ref" || (name == "cuda" && torch::cuda::is_available()) ? 1 : 0;
}

int mhla_golden_compute(const struct mhla_golden_request* request, mhla_golden_result result, void* context,
                        char* reason, size_t reason_size) {
  try {
    mhla::ops::set_num_threads(0);
    mhla::golden::run(*request, result, context);
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(reason, mhla::ops::short_reason(error).c_str(), reason_size - 1);
  }
  return 1;
}
}
