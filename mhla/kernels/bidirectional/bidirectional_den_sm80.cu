// q_den and k_den of the bidirectional form. Their part of the operator is small: sums over blocks, one
// product of vectors a token, and back. These kernels do it on ordinary cores; z and dz lie where the summaries of k
// and v have theirs, so that mixing and dmix take them along (README.md, eq. 4, 9 and 10).
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80_readout.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm80 {
namespace {

constexpr int kDenThreads = 128, kDenLanes = 16,
              kDenRows = kDenThreads / kDenLanes;  // 16 lanes a token, 8 columns each

struct Eight {
  float x[8];
};
__device__ inline Eight features_at(const Arguments& p, const Bf16* at) {
  const uint4 raw = __ldg(reinterpret_cast<const uint4*>(at));
  const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  Eight y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack_bf16(feature_pair(p.map, pairs[i]));
    y.x[2 * i] = two.x, y.x[2 * i + 1] = two.y;
  }
  return y;
}

__device__ inline std::int64_t values_of_summary(const Arguments& p) { return std::int64_t{p.D} * p.E + p.D; }

// z = sum_s phi(x_s) over a block of keys, or dz~ = sum_t factor_t phi(x_t) over a block of queries of all heads of the
// group; behind the summary of the block. Eight rows of lanes take every eighth token each, then add up in order.
__global__ void __launch_bounds__(kDenThreads)
    den_sums_kernel(Arguments p, Strided<const Bf16> x, const float* maybe_factor, Bf16* summaries) {
  after_previous();
  __shared__ float sums[kDenRows][kDenLanes * 8];
  const Item item(p, blockIdx.x);
  const int lane = threadIdx.x % kDenLanes, row = threadIdx.x / kDenLanes, size = static_cast<int>(item.block.size);
  const int heads = maybe_factor == nullptr ? 1 : p.group;
  Eight sum = {};
  for (int h = 0; h < heads; ++h) {
    const int head = maybe_factor == nullptr ? item.u.head : item.u.head * p.group + h;
    const Bf16* base = x.at(item.u.batch, head) + lane * 8;
    const float* factors =
        maybe_factor + (static_cast<std::int64_t>(item.u.batch) * p.Hkv * p.group + head) * p.N;  // or not used
#pragma unroll 4
    for (int place = row; place < size && lane * 8 < p.D; place += kDenRows) {
      const std::int64_t token = item.block.token(place);
      const Eight y = features_at(p, base + token * x.token);
      const float factor = maybe_factor == nullptr ? 1.0f : __ldcg(factors + token);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.x[i] = fmaf(factor, y.x[i], sum.x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[row][lane * 8 + i] = sum.x[i];
  __syncthreads();
  const int d = threadIdx.x;
  if (d >= p.D) return;
  float total = sums[0][d];
#pragma unroll
  for (int other = 1; other < kDenRows; ++other) total += sums[other][d];
  summaries[blockIdx.x * values_of_summary(p) + p.D * p.E + d] = __float2bfloat16_rn(total);
}

// den_t = eps + phi(q_den_t) . z~, z~ behind S~ of the block, for all heads of the group.
__global__ void __launch_bounds__(kDenThreads)
    denominator_kernel(Arguments p, Strided<const Bf16> q_den, Bf16* maybe_copy) {
  after_previous();
  const Item item(p, blockIdx.x);
  const int lane = threadIdx.x % kDenLanes, row = threadIdx.x / kDenLanes, size = static_cast<int>(item.block.size);
  const Bf16* from = p.mixed + blockIdx.x * values_of_summary(p) + p.D * p.E;
  const bool there = lane * 8 < p.D;
  uint4 z = {};
  if (there) z = __ldcg(reinterpret_cast<const uint4*>(from + lane * 8));
  if (maybe_copy != nullptr && row == 0 && there) {
    *reinterpret_cast<uint4*>(maybe_copy + static_cast<std::int64_t>(blockIdx.x) * p.D + lane * 8) = z;
  }
  const float2 pairs[4] = {unpack_bf16(z.x), unpack_bf16(z.y), unpack_bf16(z.z), unpack_bf16(z.w)};
  for (int h = 0; h < p.group; ++h) {
    const int head = item.u.head * p.group + h;
    const Bf16* base = q_den.at(item.u.batch, head) + lane * 8;
    float* den = p.den_row(item.u.batch, head);
#pragma unroll 4  // so many tokens on their way
    for (int first = 0; first < size; first += kDenRows) {
      const int place = first + row;
      const std::int64_t token = item.block.token(min(place, size - 1));
      float sum = 0;
      if (there) {
        const Eight y = features_at(p, base + token * q_den.token);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = fmaf(y.x[2 * i], pairs[i].x, fmaf(y.x[2 * i + 1], pairs[i].y, sum));
      }
#pragma unroll
      for (int away = kDenLanes / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
      if (lane == 0 && place < size) den[token] = p.eps + sum;
    }
  }
}

// out_t = slope(x_t) factor_t z of the block: dq_den with dden and z~ for all heads of the group, dk_den with dz.
__global__ void __launch_bounds__(kDenThreads)
    den_gradient_kernel(Arguments p, Strided<const Bf16> x, const float* maybe_factor, const Bf16* z,
                        std::int64_t z_stride, Strided<Bf16> out) {
  after_previous();
  const Item item(p, blockIdx.x);
  const int lane = threadIdx.x % kDenLanes, row = threadIdx.x / kDenLanes, size = static_cast<int>(item.block.size);
  const int heads = maybe_factor == nullptr ? 1 : p.group;
  if (lane * 8 >= p.D) return;
  const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(z + blockIdx.x * z_stride + lane * 8));
  const float2 pairs[4] = {unpack_bf16(raw.x), unpack_bf16(raw.y), unpack_bf16(raw.z), unpack_bf16(raw.w)};
  for (int h = 0; h < heads; ++h) {
    const int head = maybe_factor == nullptr ? item.u.head : item.u.head * p.group + h;
    const Bf16* base = x.at(item.u.batch, head) + lane * 8;
    Bf16* to = out.at(item.u.batch, head) + lane * 8;
    const float* factors =
        maybe_factor + (static_cast<std::int64_t>(item.u.batch) * p.Hkv * p.group + head) * p.N;  // or not used
#pragma unroll 2
    for (int place = row; place < size; place += kDenRows) {
      const std::int64_t token = item.block.token(place);
      const uint4 at = __ldg(reinterpret_cast<const uint4*>(base + token * x.token));
      const float factor = maybe_factor == nullptr ? 1.0f : __ldcg(factors + token);
      const auto pair = [&](std::uint32_t here, float2 y) {
        return through_slope(p.map, here, pack_bf16(factor * y.x, factor * y.y));
      };
      *reinterpret_cast<uint4*>(to + token * out.token) = {pair(at.x, pairs[0]), pair(at.y, pairs[1]),
                                                           pair(at.z, pairs[2]), pair(at.w, pairs[3])};
    }
  }
}

unsigned items_of(const Arguments& a) { return static_cast<unsigned>(a.units * a.M); }

}  // namespace

void launch_den_sums(const Arguments& a, const Strided<const Bf16>& x, const float* maybe_factor, Bf16* summaries,
                     cudaStream_t stream) {
  launch_next("den_sums_kernel", den_sums_kernel, items_of(a), kDenThreads, 0, stream, a, x, maybe_factor, summaries);
}

void launch_den_summaries(const Arguments& a, const Strided<const Bf16>& k_den, cudaStream_t stream) {
  launch_block_summaries(a, stream);
  launch_den_sums(a, k_den, nullptr, a.summaries, stream);
  launch_mix(a, false, stream);
}

void launch_denominators(const Arguments& a, const Strided<const Bf16>& q_den, Bf16* maybe_copy, cudaStream_t stream) {
  launch_next("denominator_kernel", denominator_kernel, items_of(a), kDenThreads, 0, stream, a, q_den, maybe_copy);
}

void launch_q_den_gradient(const Arguments& a, const Strided<const Bf16>& q_den, const float* dden, const Bf16* z,
                           const Strided<Bf16>& out, cudaStream_t stream) {
  launch_next("den_gradient_kernel", den_gradient_kernel, items_of(a), kDenThreads, 0, stream, a, q_den, dden, z,
              std::int64_t{a.D}, out);
}

void launch_k_den_gradient(const Arguments& a, const Strided<const Bf16>& k_den, const Strided<Bf16>& out,
                           cudaStream_t stream) {
  const std::int64_t stride = std::int64_t{a.D} * a.E + a.D;
  launch_next("den_gradient_kernel", den_gradient_kernel, items_of(a), kDenThreads, 0, stream, a, k_den, nullptr,
              a.mixed + a.D * a.E, stride, out);
}

void launch_den_readout(const Arguments& a, cudaStream_t stream) {
  if (on_panels(a)) return sm90::launch_panel_den_readout(a, stream);
  with_den_spec(a, [&](auto spec) { launch_readout<decltype(spec), true>(a, stream); });
}

}  // namespace mhla::sm80
