// linear_rows.h for sm_90. A cluster of blocks of threads shares a tile of columns: each takes a slice of K, at most
// 384 of it, so that all rows and the weights of the tile lie in shared memory. Weights come first, while the previous
// kernel still runs; then rows, through their norm. Sums of the slices are added up through distributed shared memory,
// in the order of slices, every block for its share of the tile. What a norm of whole rows divides by is known only
// then, and multiplies the sums.
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/linear/linear_rows_job.h"

namespace mhla {
namespace {

using namespace cuda;

constexpr int kBlock = 256, kWarps = kBlock / 32;
constexpr int kPad = 8;  // elements after a row: eight rows lie in different banks

// Where a block stands in its cluster, and memory of the others.
__device__ inline int cluster_rank() {
  std::uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ inline float4 load_of_block(std::uint32_t address, int rank) {
  float4 x{};
#if __CUDA_ARCH__ >= 900
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(there)
               : "memory");
#else
  (void)address, (void)rank;
#endif
  return x;
}

struct alignas(16) Eight {
  bf16 x[8];
};
struct alignas(8) Four {
  bf16 x[4];
};

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

// Rows of the first operand through what stands before the product, into shared memory; zeros after the last of K.
// A warp has rows warp, warp + 8, ...: all of them on their way before the first is used.
template <int kM>
__device__ void take_plain(const LinearRowsJob& p, int k, bf16* rows, int pitch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* const x = static_cast<const bf16*>(p.x) + k;
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int row = warp + i * kWarps;
    for (int c = lane * 8; c < p.slice; c += 256)
      copy16(shared_address(rows + row * pitch + c), x + row * p.x_stride + c, row < p.R && k + c < p.K);
  }
}

template <int kM>
__device__ void take_normed(const LinearRowsJob& p, int k, bf16* rows, int pitch, float* squares) {
  constexpr int kChunks = kRowsSlice / 128;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const x = static_cast<const float*>(p.x) + k;
  const bf16* const scale = static_cast<const bf16*>(p.scale) + k;
  float4 value[2 * kM][kChunks];
  Four weight[kChunks];
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const int c = j * 128 + lane * 4;
    const bool there = c < p.slice && k + c < p.K;
    weight[j] = there ? *reinterpret_cast<const Four*>(scale + c) : Four{};
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = warp + i * kWarps;
      value[i][j] = there && row < p.R ? *reinterpret_cast<const float4*>(x + row * p.x_stride + c) : float4{};
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int row = warp + i * kWarps;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int c = j * 128 + lane * 4;
      const float4 v = value[i][j];
      sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
      if (c >= p.slice) continue;
      Four four;
      four.x[0] = narrow<bf16>(v.x * widen(weight[j].x[0])), four.x[1] = narrow<bf16>(v.y * widen(weight[j].x[1]));
      four.x[2] = narrow<bf16>(v.z * widen(weight[j].x[2])), four.x[3] = narrow<bf16>(v.w * widen(weight[j].x[3]));
      *reinterpret_cast<Four*>(rows + row * pitch + c) = four;
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[row] = sum;
  }
}

template <int kM>
__device__ void take_heads(const LinearRowsJob& p, int k, bf16* rows, int pitch) {
  constexpr int kChunks = (kRowsSlice + 255) / 256;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lanes = p.head / 8;  // of a head
  const bf16 *const x = static_cast<const bf16*>(p.x) + k, *const gate = static_cast<const bf16*>(p.gate) + k;
  const float share = 1.0f / static_cast<float>(p.head);
  const Eight weight = reinterpret_cast<const Eight*>(p.scale)[lane % lanes];
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    const int c = j * 256 + lane * 8;
    const bool there = c < p.slice && k + c < p.K;
    Eight value[2 * kM], factor[2 * kM];
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = warp + i * kWarps;
      const bool given = there && row < p.R;
      value[i] = given ? *reinterpret_cast<const Eight*>(x + row * p.x_stride + c) : Eight{};
      factor[i] = given ? *reinterpret_cast<const Eight*>(gate + row * p.gate_stride + c) : Eight{};
    }
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      float sum = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum = fmaf(widen(value[i].x[e]), widen(value[i].x[e]), sum);
      for (int away = lanes / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
      const float unit = rsqrtf(sum * share + p.eps);
#pragma unroll
      for (int e = 0; e < 8; ++e)
        value[i].x[e] = narrow<bf16>(widen(value[i].x[e]) * unit * widen(weight.x[e]) * silu(widen(factor[i].x[e])));
      if (c < p.slice) *reinterpret_cast<Eight*>(rows + (warp + i * kWarps) * pitch + c) = value[i];
    }
  }
}

// Tiles of 16 kM rows and kPairs pairs of 8 columns. With kSwiglu the second half of the columns are those of `second`.
template <int kM, int kPairs, RowsBefore kBefore, RowsAfter kAfter>
__global__ void __launch_bounds__(kBlock) linear_rows_kernel(const __grid_constant__ LinearRowsJob p) {
  constexpr int kRows = 16 * kM, kTile = 16 * kPairs, kGroups = kWarps / kM, kOwn = (kPairs + kGroups - 1) / kGroups;
  constexpr int kOutputs = kAfter == RowsAfter::kSwiglu ? kTile / 2 : kTile;  // columns of a tile that are written
  constexpr int kSumPitch = kTile + 4;
  bf16* const rows = reinterpret_cast<bf16*>(dynamic_shared());
  const int pitch = p.slice + kPad;
  bf16* const weights = rows + kRows * pitch;
  float* const sums = reinterpret_cast<float*>(rows);  // when the product is done
  const int region = (kRows + kTile) * pitch * 2, staged = kRows * kSumPitch * 4;
  float* const squares = reinterpret_cast<float*>(dynamic_shared() + (region > staged ? region : staged));
  const int slices = gridDim.y, rank = cluster_rank(), k = rank * p.slice;
  const int first = blockIdx.x * kOutputs, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Output `column` of the tile, as a row of the weights; negative: there is none.
  const auto row_of = [&](int column) -> const bf16* {
    if constexpr (kAfter == RowsAfter::kSwiglu) {
      const bool second = column >= kOutputs;
      const int o = first + column - (second ? kOutputs : 0);
      if (o >= p.O) return nullptr;
      return static_cast<const bf16*>(second ? p.second : p.weight) + o * (second ? p.second_stride : p.weight_stride);
    } else {
      const int o = first + column;
      if (o < p.O) return static_cast<const bf16*>(p.weight) + o * p.weight_stride;
      return o < p.O + p.O2 ? static_cast<const bf16*>(p.second) + (o - p.O) * p.second_stride : nullptr;
    }
  };
#pragma unroll
  for (int i = 0; i < kTile / kWarps; ++i) {
    const int column = warp + i * kWarps;
    const bf16* const from = row_of(column);
    for (int c = lane * 8; c < p.slice; c += 256)
      copy16(shared_address(weights + column * pitch + c), from ? from + k + c : static_cast<const bf16*>(p.weight),
             from != nullptr && k + c < p.K);
  }
  copy_commit();

  wait_for_previous();
  allow_next();

  // This block's share of the outputs, four at a time. What is added comes while the product runs.
  constexpr int kAcross = kOutputs / 4;
  const int shares = p.R * kAcross, own = rank * kBlock + static_cast<int>(threadIdx.x);
  float4 add{};
  if constexpr (kAfter == RowsAfter::kAdd) {
    const int o = first + own % kAcross * 4;
    if (own < shares && o < p.O) add = *reinterpret_cast<const float4*>(p.add + own / kAcross * p.add_stride + o);
  }
  if constexpr (kBefore == RowsBefore::kPlain) take_plain<kM>(p, k, rows, pitch), copy_commit();
  if constexpr (kBefore == RowsBefore::kNorm) take_normed<kM>(p, k, rows, pitch, squares);
  if constexpr (kBefore == RowsBefore::kHeadNorm) take_heads<kM>(p, k, rows, pitch);
  copy_wait<0>();
  __syncthreads();

  const int m = warp % kM, group = warp / kM, inner = lane % 8, middle = lane / 8 % 2 * 8, last = lane / 16 * 8;
  float total[kOwn][2][4] = {};
  const bf16* const a = rows + (m * 16 + lane % 16) * pitch + last;
  const bf16* const b = weights + (group * 16 + last + inner) * pitch + middle;
#pragma unroll 4
  for (int d = 0; d < p.slice; d += 16) {
    std::uint32_t x[4];
    load_matrices(x, shared_address(a + d));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (group + i * kGroups >= kPairs) continue;
      std::uint32_t y[4];
      load_matrices(y, shared_address(b + i * kGroups * 16 * pitch + d));
      multiply_add(total[i][0], x, y[0], y[1]);
      multiply_add(total[i][1], x, y[2], y[3]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (group + i * kGroups >= kPairs) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = m * 16 + lane / 4 + e % 4 / 2 * 8;
      const int column = (group + i * kGroups) * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2;
      sums[row * kSumPitch + column] = total[i][e / 4][e % 4];
    }
  }
  cluster_barrier();

  const auto sum_of = [&](const float* at) {
    float4 sum = load_of_block(shared_address(at), 0);
    for (int slice = 1; slice < slices; ++slice) {
      const float4 more = load_of_block(shared_address(at), slice);
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    return sum;
  };
  for (int share = own; share < shares; share += slices * kBlock) {
    const int row = share / kAcross, column = share % kAcross * 4, o = first + column;
    if (o >= p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0)) continue;
    float factor = 1;
    if constexpr (kBefore == RowsBefore::kNorm) {
      const float4 four = sum_of(squares + row / 4 * 4);
      const float square = row % 4 == 0 ? four.x : row % 4 == 1 ? four.y : row % 4 == 2 ? four.z : four.w;
      factor = rsqrtf(square / static_cast<float>(p.K) + p.eps);
    }
    const float4 y = sum_of(sums + row * kSumPitch + column);
    float value[4] = {factor * y.x, factor * y.y, factor * y.z, factor * y.w};
    if constexpr (kAfter == RowsAfter::kAdd) {
      if (share != own) add = *reinterpret_cast<const float4*>(p.add + row * p.add_stride + o);
      *reinterpret_cast<float4*>(static_cast<float*>(p.out) + row * p.out_stride + o) = {
          add.x + value[0], add.y + value[1], add.z + value[2], add.w + value[3]};
    } else {
      if constexpr (kAfter == RowsAfter::kSwiglu) {
        const float4 z = sum_of(sums + row * kSumPitch + kOutputs + column);
        const float second[4] = {factor * z.x, factor * z.y, factor * z.z, factor * z.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) value[e] = silu(value[e]) * second[e];
      }
      Four four;
#pragma unroll
      for (int e = 0; e < 4; ++e) four.x[e] = narrow<bf16>(value[e]);
      const bool second = kAfter == RowsAfter::kStore && o >= p.O;
      bf16* const out = second ? static_cast<bf16*>(p.second_out) + row * p.second_out_stride + o - p.O
                               : static_cast<bf16*>(p.out) + row * p.out_stride + o;
      *reinterpret_cast<Four*>(out) = four;
    }
  }
  cluster_barrier();  // nobody leaves while others read its sums
}

template <int kM, int kPairs, RowsBefore kBefore, RowsAfter kAfter>
void launch_rows(const LinearRowsJob& p, int slices, void* stream) {
  constexpr int kRows = 16 * kM, kTile = 16 * kPairs, kOutputs = kAfter == RowsAfter::kSwiglu ? kTile / 2 : kTile;
  const int columns = p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0);
  const int region = (kRows + kTile) * (p.slice + kPad) * 2, staged = kRows * (kTile + 4) * 4;
  launch_cluster(linear_rows_kernel<kM, kPairs, kBefore, kAfter>,
                 dim3(static_cast<unsigned>((columns + kOutputs - 1) / kOutputs), static_cast<unsigned>(slices)),
                 kBlock, p, static_cast<std::size_t>((region > staged ? region : staged) + kRows * 4), stream,
                 "linear_rows_kernel");
}

template <int kPairs, RowsBefore kBefore, RowsAfter kAfter>
void launch_tiles(const LinearRowsJob& p, int slices, void* stream) {
  if (p.R <= 16) return launch_rows<1, kPairs, kBefore, kAfter>(p, slices, stream);
  if (p.R <= 32) return launch_rows<2, kPairs, kBefore, kAfter>(p, slices, stream);
  launch_rows<4, kPairs, kBefore, kAfter>(p, slices, stream);
}

// Tiles of 32 columns where something is added, which is where outputs are few, else of 96.
template <RowsBefore kBefore>
void launch_before(const LinearRowsParams& params, const LinearRowsJob& p, int slices, void* stream) {
  switch (params.after) {
    case RowsAfter::kAdd: return launch_tiles<2, kBefore, RowsAfter::kAdd>(p, slices, stream);
    case RowsAfter::kSwiglu: return launch_tiles<6, kBefore, RowsAfter::kSwiglu>(p, slices, stream);
    case RowsAfter::kStore: return launch_tiles<6, kBefore, RowsAfter::kStore>(p, slices, stream);
  }
}

}  // namespace

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream) {
  switch (params.before) {
    case RowsBefore::kPlain: return launch_before<RowsBefore::kPlain>(params, job, slices, stream);
    case RowsBefore::kNorm: return launch_before<RowsBefore::kNorm>(params, job, slices, stream);
    case RowsBefore::kHeadNorm: return launch_before<RowsBefore::kHeadNorm>(params, job, slices, stream);
  }
}

}  // namespace mhla
