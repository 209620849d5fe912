// Which problems the `sm90` candidate takes. What it leaves to `cuda`: f32 and f16, packed sequences, q_den and k_den,
// the official normaliser, rows that 16-byte loads do not fit.
#include <utility>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm90_plan.h"

namespace mhla {
namespace {

std::string misaligned(const char* name, const ConstView& x) {
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) return str(name, " is not aligned to 16 bytes");
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (x.shape[axis] > 1 && x.stride[axis] % 8 != 0) {
      return str(name, ": stride ", x.stride[axis], " of axis ", axis, " is no multiple of 8");
    }
  }
  return "";
}

}  // namespace

std::string bidirectional_fit_sm90(const Problem& p) {
  if (p.q.device == kCpu) return "memory is on cpu";
  if (const std::string missing = cuda_missing(); !missing.empty()) return missing;
  const DeviceFacts device = device_facts(p.q.device);
  if (device.major != 9 || device.minor != 0) {
    return str("compute capability ", device.major, ".", device.minor, ", expected 9.0");
  }
  return sm90::fit_problem(p);
}

std::string sm90::fit_problem(const Problem& p) {
  if (p.dtype() != DType::kBF16) return str("dtype ", name_of(p.dtype()));
  if (p.normalizer == Normalizer::kOfficial) return "normalizer official";
  if (p.has_den()) return "q_den and k_den";
  if (p.maybe_cu_seqlens.given()) return "cu_seqlens";
  if (p.Hm > 1 && p.group() > 1) return "a mix per head with shared kv heads";
  if (p.D % 8 != 0 || p.E % 8 != 0) return str("D = ", p.D, ", E = ", p.E, ": no multiples of 8");
  if (tiles_of(p.D, p.E).rows == 0) return str("D = ", p.D, ", E = ", p.E, ": above 128");
  if (p.M > kMaxBlocks) return str(p.M, " blocks, more than ", kMaxBlocks);
  if (p.B * p.H > INT32_MAX / p.M || p.C > INT32_MAX / 2) return "more blocks than 32 bits count";
  for (const auto& [name, view] :
       {std::pair<const char*, ConstView>{"q", p.q}, {"k", p.k}, {"v", p.v}, {"out", p.out}}) {
    if (std::string reason = misaligned(name, view); !reason.empty()) return reason;
  }
  return "";
}

}  // namespace mhla
