// A dispatch key that PyTorch leaves to its users: everything falls through it but the two calls that draw numbers.
#include "mhla/modules/unfilled.h"

#include <ATen/core/Generator.h>
#include <torch/library.h>

#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr c10::DispatchKey kUnfilled = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Tensor& left_as_it_is(at::Tensor& x, double /*a*/, double /*b*/, ops::Optional<at::Generator> /*generator*/) {
  return x;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  m.impl("uniform_", left_as_it_is);
  m.impl("normal_", left_as_it_is);
}

}  // namespace

UnfilledWeights::UnfilledWeights() : guard_(kUnfilled) {}

}  // namespace mhla
