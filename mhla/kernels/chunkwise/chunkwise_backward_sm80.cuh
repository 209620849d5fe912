// Backward of the causal form, per tile of 64 tokens of a chunk i. With w = scale / den, c = -(num . dout) /
// den, m = mix[i,i], x = dout_t . v_s, r = w_t (x + c_t):
//   dq~_t = w_t (a_t + c_t b_t),  a_t = P_i dout_t + m sum_{s <= t} x k~_s,  b_t = zP_i + m sum_{s <= t} k~_s,
//           and den = eps + q~ b, num . dout = q~ a
//   dk~_s = dS_i v_s + dz_i + m sum_{t >= s} r q~_t,  dv_s = dS_i^T k~_s + m sum_{t >= s} w_t (q~_t k~_s) dout_t
//   dmix[i,i] = sum_{s <= t} (q~_t k~_s) r = sum_s k~_s (sum_{t >= s} r q~_t)
// Sums over E go part by part (chunkwise_sm80_plan.h).
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm80.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"

namespace mhla::sm80 {

// Shared memory of a stream: a summary, or two tiles.
template <class S>
constexpr int chunk_stream_bytes(int D) {
  const int summary = summary_bytes(D, S::kTiles), tiles = 2 * kChunkTileBytes<S>;
  return summary > tiles ? summary : tiles;
}

// Waits for all copies of all threads; what was there before must not be read any more.
__device__ inline void all_there() {
  copy_commit();
  copy_wait<0>();
  __syncthreads();
}

// acc += a S^T over the columns of all parts, a: 16 rows of a tile in shared memory, a tile of it per part; S: in
// `sums`, of the units of a head.
// at_part(part) is called while that part of the summary is there.
template <class S, class F>
__device__ inline void multiply_parts(const Arguments& p, float (&acc)[S::kColumns][4], const char* a, const Bf16* sums,
                                      int local, int index, char* stream, const F& at_part) {
  const int lane = threadIdx.x % 32, X = S::D(p) * S::E(p) + S::D(p);
  for (int part = 0; part < p.parts; ++part) {
    if (part > 0) __syncthreads();
    copy_summary<S>(p, sums + (static_cast<std::int64_t>(local * p.parts + part) * p.M + index) * X, stream);
    all_there();
    const std::uint32_t left = shared_address(a + part * kChunkTileBytes<S>) + lane % 16 * S::kPitch;
    multiply_by_rows<S>(
        p, acc,
        [&](int step, std::uint32_t(&x)[4]) {
          load_matrices(x, left + step * 32 + lane / 16 * second_half(step, S::E(p)));
        },
        stream, 0);
    at_part(part);
  }
}

// x[step] += a y^T over the columns of all parts for subtiles [begin, end) of 16 rows of y, whose first part is there:
// the others come through its place. a as in multiply_parts.
template <class S, class F>
__device__ inline void pair_parts(const Arguments& p, float (&x)[4][1][2][4], const char* a, char* y, int begin,
                                  int end, const F& copy_part) {
  for (int part = 0; part < p.parts; ++part) {
    if (part > 0) {
      __syncthreads();
      copy_part(part);
      all_there();
    }
    std::uint32_t left[1][S::kRows][4];
    load_tile<S>(left[0], a + part * kChunkTileBytes<S>, S::E(p));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step >= begin && step < end) multiply_pairs<S, 1>(x[step], left, y + step * 16 * S::kPitch, S::E(p));
    }
  }
}

// w and c of 64 tokens to shared memory, zeros behind the end of the chunk.
__device__ inline void copy_weights(const float2* from, int first, int size, float2* to) {
  const int t = threadIdx.x;
  if (t < kPhaseTokens) copy8(shared_address(to + t), first + t < size ? from + first + t : from, first + t < size);
}

// Launches for the heads of a round, tiles of 64 tokens each. A kernel has as many variants as there are sizes and
// feature maps, so each has a file of its own: chunkwise_backward_{queries,free_queries,keys,values}_sm80.cu.
void launch_normalized_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                      cudaStream_t stream);
void launch_free_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                cudaStream_t stream);
void launch_causal_key_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                cudaStream_t stream);
void launch_causal_value_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                  cudaStream_t stream);

// One block of threads a tile of a row: a query head, a kv head or a part of one.
template <class Kernel>
void launch_tiles(const char* name, Kernel kernel, std::int64_t rows, int bytes, const Arguments& a, const Gradients& g,
                  int tiles, cudaStream_t stream) {
  launch_next(name, kernel, static_cast<unsigned>(rows * a.M * tiles), kChunkThreads, bytes, stream, a, g, tiles);
}

}  // namespace mhla::sm80
