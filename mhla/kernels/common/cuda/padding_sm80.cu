// Copies of tensors to rows of whole 16-byte units, and of results back (sm80_padding.h). A thread has 8 values.
#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {
namespace {

constexpr int kPadThreads = 256;

// The row and the first column of this thread.
struct PadPlace {
  std::int64_t row, batch, token, head;
  int column;
  __device__ explicit PadPlace(const PaddedTensor& t) {
    const std::int64_t at = std::int64_t{blockIdx.x} * kPadThreads + threadIdx.x, pieces = t.padded / 8;
    row = at / pieces, column = static_cast<int>(at - row * pieces) * 8;
    const std::int64_t token_row = row / t.heads;
    head = row - token_row * t.heads, batch = token_row / t.tokens, token = token_row - batch * t.tokens;
  }
  template <class T>
  __device__ T* in(T* data, const std::int64_t (&strides)[3]) const {
    return data + batch * strides[0] + token * strides[1] + head * strides[2] + column;
  }
};

// Values c and c + 1 of a row of which `count` are left, zeros behind them.
__device__ inline std::uint32_t pair_at(const std::uint16_t* row, int c, std::int64_t count) {
  const std::uint32_t low = c < count ? row[c] : 0u, high = c + 1 < count ? row[c + 1] : 0u;
  return low | high << 16;
}

__global__ void __launch_bounds__(kPadThreads) pad_kernel(const __grid_constant__ PaddedTensor t) {
  after_previous();
  const PadPlace at(t);
  if (at.row >= t.row_count) return;
  const std::uint16_t* from = at.in(static_cast<const std::uint16_t*>(t.tensor), t.strides);
  const std::int64_t count = t.columns - at.column;
  std::uint32_t y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[i] = feature_pair(t.map, pair_at(from, 2 * i, count));
    if (2 * i >= count) y[i] = 0;  // phi(0) need not be 0
    if (2 * i + 1 >= count) y[i] &= 0xffffu;
  }
  *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(t.rows) + at.row * t.padded + at.column) = {y[0], y[1], y[2],
                                                                                                    y[3]};
}

__global__ void __launch_bounds__(kPadThreads) unpad_kernel(const __grid_constant__ PaddedTensor t) {
  after_previous();
  const PadPlace at(t);
  if (at.row >= t.row_count) return;
  const uint4 y =
      __ldcg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(t.rows) + at.row * t.padded + at.column));
  const std::uint32_t pairs[4] = {y.x, y.y, y.z, y.w};
  std::uint16_t* to = at.in(static_cast<std::uint16_t*>(t.tensor), t.strides);
  const std::int64_t count = t.columns - at.column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t pair = pairs[i];
    if (t.maybe_features != nullptr) {
      const std::uint16_t* x = at.in(static_cast<const std::uint16_t*>(t.maybe_features), t.feature_strides);
      pair = through_slope(t.map, pair_at(x, 2 * i, count), pair);
    }
    if (2 * i < count) to[2 * i] = static_cast<std::uint16_t>(pair);
    if (2 * i + 1 < count) to[2 * i + 1] = static_cast<std::uint16_t>(pair >> 16);
  }
}

template <class Kernel>
void launch_copies(const char* name, Kernel kernel, const std::vector<PaddedTensor>& tensors, cudaStream_t stream) {
  for (const PaddedTensor& t : tensors) {
    const std::int64_t threads = t.row_count * (t.padded / 8), blocks = (threads + kPadThreads - 1) / kPadThreads;
    if (blocks >= std::int64_t{1} << 31) fail("padding: ", threads, " pieces of rows, more than a grid has");
    launch_next(name, kernel, static_cast<unsigned>(blocks), kPadThreads, 0, stream, t);
  }
}

template <class AnyView>
PaddedTensor padded_tensor(const AnyView& x, std::int64_t padded, FeatureMap map, void* rows) {
  PaddedTensor t;
  t.tensor = const_cast<void*>(static_cast<const void*>(x.data)), t.rows = rows;
  for (std::size_t axis = 0; axis < 3; ++axis) t.strides[axis] = x.stride[axis];
  t.row_count = x.shape[0] * x.shape[1] * x.shape[2], t.tokens = x.shape[1], t.heads = x.shape[2];
  t.columns = x.shape[3], t.padded = padded, t.map = map;
  return t;
}

View rows_view(const PaddedTensor& t, int device) {
  View view(t.rows, DType::kBF16, {t.row_count / (t.tokens * t.heads), t.tokens, t.heads, t.padded});
  view.device = device;
  return view;
}

}  // namespace

ConstView Padding::input(const ConstView& x, std::int64_t padded, FeatureMap map, Workspace& ws, const char* name) {
  if (!x.given()) return x;
  const std::int64_t rows = x.shape[0] * x.shape[1] * x.shape[2];
  in_.push_back(padded_tensor(x, padded, map, ws.take<Bf16>(rows * padded, name)));
  return rows_view(in_.back(), x.device);
}

View Padding::output(const View& x, std::int64_t padded, const ConstView& maybe_features, Workspace& ws,
                     const char* name) {
  if (!x.given()) return x;
  const std::int64_t rows = x.shape[0] * x.shape[1] * x.shape[2];
  PaddedTensor t = padded_tensor(x, padded, map_, ws.take<Bf16>(rows * padded, name));
  if (maybe_features.given()) {
    t.maybe_features = maybe_features.data;
    for (std::size_t axis = 0; axis < 3; ++axis) t.feature_strides[axis] = maybe_features.stride[axis];
  }
  out_.push_back(t);
  return rows_view(t, x.device);
}

Padding::Padding(const Problem& p, Workspace& ws) : inner_(p), map_(p.feature_map) {
  Problem& to = inner_;
  const std::int64_t D = to.D = padded_size(p.D), E = to.E = padded_columns(p.E);
  to.feature_map = FeatureMap::kIdentity;
  to.q = input(p.q, D, map_, ws, "padded q"), to.k = input(p.k, D, map_, ws, "padded k");
  to.v = input(p.v, E, FeatureMap::kIdentity, ws, "padded v");
  to.maybe_q_den = input(p.maybe_q_den, D, map_, ws, "padded q_den");
  to.maybe_k_den = input(p.maybe_k_den, D, map_, ws, "padded k_den");
  to.dout = input(p.dout, E, FeatureMap::kIdentity, ws, "padded dout");
  to.out = output(p.out, E, {}, ws, "padded out");
  to.dq = output(p.dq, D, p.q, ws, "padded dq"), to.dk = output(p.dk, D, p.k, ws, "padded dk");
  to.dv = output(p.dv, E, {}, ws, "padded dv");
  to.maybe_dq_den = output(p.maybe_dq_den, D, p.maybe_q_den, ws, "padded dq_den");
  to.maybe_dk_den = output(p.maybe_dk_den, D, p.maybe_k_den, ws, "padded dk_den");
}

void Padding::copy_in() const { launch_copies("pad_kernel", pad_kernel, in_, stream_of(inner_.stream)); }
void Padding::copy_out() const { launch_copies("unpad_kernel", unpad_kernel, out_, stream_of(inner_.stream)); }

}  // namespace mhla::sm80
