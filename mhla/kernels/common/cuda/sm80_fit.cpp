#include "mhla/kernels/common/cuda/sm80_fit.h"

#include <algorithm>
#include <cstdlib>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"
#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla::sm80 {
namespace {

bool aligned(const ConstView& x) {
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (x.shape[axis] > 1 && x.stride[axis] % 8 != 0) return false;
  }
  return true;
}

}  // namespace

std::string fit_device(const Problem& p) {
  if (!cuda_built()) return "built without CUDA";
  if (p.q.device == kCpu) return "memory is on the CPU";
  const DeviceFacts device = device_facts(p.q.device);
  if (device.major < 8) return str("compute capability ", device.major, ".", device.minor, ", expected 8.0 or more");
  if (device.shared_bytes_per_block < kLeastSharedBytes)
    return str(device.shared_bytes_per_block >> 10, " KiB of shared memory, expected at least ",
               kLeastSharedBytes >> 10);
  return "";
}

std::string fit_hopper(const Problem& p) {
  if (std::string reason = fit_device(p); !reason.empty()) return reason;
  const DeviceFacts device = device_facts(p.q.device);
  if (device.major == 9 && device.minor == 0) return "";
  return str("compute capability ", device.major, ".", device.minor, ", expected 9.0");
}

int most_shared_bytes(int device) {
  static const int asked = [] {  // 0: as the device has
    const char* text = std::getenv("MHLA_SHARED_KIB");
    return text == nullptr ? 0 : std::max(std::atoi(text) << 10, kLeastSharedBytes);
  }();
  const int there = static_cast<int>(device_facts(device).shared_bytes_per_block);
  return asked > 0 ? std::min(asked, there) : there;
}

std::string fit_common(const Problem& p, std::int64_t columns) {
  if (p.dtype() != DType::kBF16) return str("dtype ", name_of(p.dtype()));
  if (p.Hm > 1 && p.group() > 1) return "a mix per head with shared kv heads";
  if (p.Hm > 1 && p.mix.stride[0] == 0) return "a mix per head whose heads share memory";
  if (tiles_of(padded_size(p.D), columns).rows == 0) return str("D = ", p.D, ", E = ", p.E, ": too large");
  if (p.M > kMaxBlocks) return str(p.M, " blocks, more than ", kMaxBlocks);
  const std::int64_t sequences = p.maybe_cu_seqlens.given() ? static_cast<std::int64_t>(p.sequences.size()) : p.B;
  const std::int64_t items = sequences * p.H * (padded_size(p.E) / 8);  // parts of the columns count too
  if (items > INT32_MAX / std::max<std::int64_t>(p.M, 1) || p.C > INT32_MAX / 2)
    return "more blocks than 32 bits count";
  return "";
}

bool boxes_take(const ConstView& x) {
  constexpr std::int64_t kMostStride = std::int64_t{1} << 39;  // 2^40 bytes
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (x.shape[axis] > 1 && (x.stride[axis] < 0 || x.stride[axis] >= kMostStride)) return false;
  }
  return x.shape[1] <= 1 || x.stride[1] > 0;
}

void refuse_boxes(int status, const ConstView& x, int width, int height) {
  fail("sm90: cuTensorMapEncodeTiled: error ", status, " for shape ", shape_text(x), ", strides ", x.stride[0], ", ",
       x.stride[1], ", ", x.stride[2], ", boxes of ", width, " x ", height);
}

void refuse_summary_boxes(int status, std::int64_t count, std::int64_t step, int D, int E) {
  fail("sm90: cuTensorMapEncodeTiled: error ", status, " for ", count, " summaries of [", D, ", ", E, "], ", step,
       " values apart");
}

bool needs_padding(const Problem& p) {
  if (p.D != padded_size(p.D) || p.E != padded_columns(p.E)) return true;
  for (const ConstView& view : {p.q, p.k, p.v, p.maybe_q_den, p.maybe_k_den, p.dout}) {
    if (view.given() && !aligned(view)) return true;
  }
  for (const View& view : {p.out, p.dq, p.dk, p.dv, p.maybe_dq_den, p.maybe_dk_den}) {
    if (view.given() && !aligned(view)) return true;
  }
  return false;
}

}  // namespace mhla::sm80
