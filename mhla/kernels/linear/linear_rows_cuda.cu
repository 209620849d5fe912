// linear_rows.h for cards from sm_90 on that have no kernel of their own. A cluster of blocks of threads shares a tile
// of columns: each takes a slice of K, at most 384 of it, so that all rows and the weights of the tile lie in shared
// memory. Weights come first, while the previous kernels still run; then rows, through their norm. Sums of the slices
// are added up through distributed shared memory, in the order of slices, every block for its share of the tile. What a
// norm of whole rows divides by is known only then, and multiplies the sums. Within a slice the sums of even and of odd
// steps of 16 are added at the end. The next kernel may start as soon as the weights of this one are requested, before
// wait_for_previous(): in a chain of these kernels two or three wait with their weights in shared memory while one
// computes. A kernel that starts so early reads nothing before its own wait but weights and what earlier steps have
// left.
#include <type_traits>

#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/linear/linear_rows.cuh"
#include "mhla/kernels/linear/linear_rows_end.cuh"

namespace mhla {
namespace {

using namespace cuda;

constexpr int kBlock = kRowsBlock, kWarps = kRowsWarps;

// Tiles of 16 kM rows and kPairs pairs of 8 columns. With kSwiglu the second half of the columns are those of `second`,
// in the first tiles of kTurned those that the first half is turned with.
// At least three blocks of threads fit a multiprocessor's registers: those of this kernel and of the next.
template <int kM, int kPairs, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
__global__ void __launch_bounds__(kBlock, 3) linear_rows_kernel(const __grid_constant__ LinearRowsJob p) {
  constexpr int kRows = 16 * kM, kTile = 16 * kPairs, kGroups = kWarps / kM, kOwn = (kPairs + kGroups - 1) / kGroups;
  constexpr int kSumPitch = kTile + kRowsSumPad;
  bf16* const rows = reinterpret_cast<bf16*>(dynamic_shared());
  const int pitch = p.slice + kRowsPad;
  bf16* const weights = rows + kRows * pitch;
  float* const sums = reinterpret_cast<float*>(rows);  // when the product is done
  float* const squares = reinterpret_cast<float*>(dynamic_shared() + rows_squares_at(kRows, kTile, p.slice));
  const int slices = gridDim.y, rank = cluster_rank(), k = rank * p.slice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = static_cast<int>(blockIdx.x);
  const RowsTile<kAfter, kTurned> own_tile(p, tile, kTile);
#pragma unroll
  for (int i = 0; i < kTile / kWarps; ++i) {
    const int column = warp + i * kWarps;
    const bf16* const from = own_tile.row_of(p, column);
    for (int c = lane * 8; c < p.slice; c += 256)
      copy16(shared_address(weights + column * pitch + c), from ? from + k + c : static_cast<const bf16*>(p.weight),
             from != nullptr && k + c < p.K);
  }
  copy_commit();
  const LaneScale<kBefore> scale(p, k);

  allow_next();
  const int blocks = static_cast<int>(gridDim.x * gridDim.y), block = tile * slices + rank;
  for (int line = block * kBlock + static_cast<int>(threadIdx.x); line < p.next_lines; line += blocks * kBlock)
    prefetch_line(p.next + static_cast<std::int64_t>(line) * kRowsLine);
  wait_for_previous();

  RowsEnd<kBefore, kAfter, kTurned> end(p, own_tile.outputs() / 4, 0, rank * kBlock + static_cast<int>(threadIdx.x),
                                        slices * kBlock);
  end.begin(p, own_tile, /*angles_too=*/kM < 4);  // where there are registers for them
  take_rows<kM>(p, scale, k, rows, pitch, squares);
  copy_commit();
  copy_wait<0>();
  __syncthreads();

  const int m = warp % kM, group = warp / kM, inner = lane % 8, middle = lane / 8 % 2 * 8, last = lane / 16 * 8;
  float total[2][kOwn][2][4] = {};  // of even steps and of odd ones: half as many wait for each other
  const bf16* const a = rows + (m * 16 + lane % 16) * pitch + last;
  const bf16* const b = weights + (group * 16 + last + inner) * pitch + middle;
  const auto multiply = [&](float(&sum)[kOwn][2][4], int d) {
    std::uint32_t x[4];
    load_matrices(x, shared_address(a + d));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (group + i * kGroups >= kPairs) continue;
      std::uint32_t y[4];
      load_matrices(y, shared_address(b + i * kGroups * 16 * pitch + d));
      multiply_add(sum[i][0], x, y[0], y[1]);
      multiply_add(sum[i][1], x, y[2], y[3]);
    }
  };
#pragma unroll 2
  for (int d = 0; d < p.slice; d += 32) {
    multiply(total[0], d);
    if (d + 16 < p.slice) multiply(total[1], d + 16);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (group + i * kGroups >= kPairs) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = m * 16 + lane / 4 + e % 4 / 2 * 8;
      const int column = (group + i * kGroups) * 16 + e / 4 * 8 + lane % 4 * 2 + e % 2;
      sums[row * kSumPitch + column] = total[0][i][e / 4][e % 4] + total[1][i][e / 4][e % 4];
    }
  }
  cluster_barrier();

  const auto finish = [&](auto most) {
    constexpr int kMost = most();
    end.finish(
        p, own_tile,
        [&](int row) {
          const Parts<float, kMost> parts(squares + row, kBefore == RowsBefore::kNorm ? slices : 0);
          return [parts, slices] { return parts.sum(slices); };
        },
        [&](int row, int column, float4& y, float4& z) {
          const float* const at = sums + row * kSumPitch + column;
          sum_parts<kMost>(at, own_tile.pairs() ? at + kTile / 2 : nullptr, slices, y, z);
        });
  };
  if (slices <= 4)
    finish(std::integral_constant<int, 4>());
  else
    finish(std::integral_constant<int, kRowsMostSlices>());
  cluster_barrier();  // nobody leaves while others read its sums
}

template <int kM, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_rows(const LinearRowsJob& p, int slices, void* stream) {
  constexpr const char* kName = "linear_rows_kernel";
  constexpr int kRows = 16 * kM, kTile = rows_tile(kAfter), kOutputs = kAfter == RowsAfter::kSwiglu ? kTile / 2 : kTile;
  const int columns = p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0);
  const int tiles = rows_tiles(columns, p.turned, kOutputs).all;
  const auto kernel = linear_rows_kernel<kM, kTile / 16, kBefore, kAfter, kTurned>;
  // Blocks of two kernels share a multiprocessor where both divide its memory between cache and shared memory alike.
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      kName);
  launch_cluster(kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(slices)), kBlock, p,
                 static_cast<std::size_t>(rows_bytes(kRows, kTile, p.slice)), stream, kName);
}

template <RowsBefore kBefore, RowsAfter kAfter, bool kTurned = false>
void launch_tiles(const LinearRowsJob& p, int slices, void* stream) {
  if (p.R <= 16) return launch_rows<1, kBefore, kAfter, kTurned>(p, slices, stream);
  if (p.R <= 32) return launch_rows<2, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_rows<4, kBefore, kAfter, kTurned>(p, slices, stream);
}

template <RowsBefore kBefore>
void launch_before(const LinearRowsParams& params, const LinearRowsJob& p, int slices, void* stream) {
  switch (params.after) {
    case RowsAfter::kAdd: return launch_tiles<kBefore, RowsAfter::kAdd>(p, slices, stream);
    case RowsAfter::kSwiglu: return launch_tiles<kBefore, RowsAfter::kSwiglu>(p, slices, stream);
    case RowsAfter::kStore: return launch_tiles<kBefore, RowsAfter::kStore>(p, slices, stream);
  }
}

}  // namespace

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream) {
  if (job.turned > 0) return launch_tiles<RowsBefore::kNorm, RowsAfter::kStore, true>(job, slices, stream);
  switch (params.before) {
    case RowsBefore::kPlain: return launch_before<RowsBefore::kPlain>(params, job, slices, stream);
    case RowsBefore::kNorm: return launch_before<RowsBefore::kNorm>(params, job, slices, stream);
    case RowsBefore::kHeadNorm: return launch_before<RowsBefore::kHeadNorm>(params, job, slices, stream);
  }
}

}  // namespace mhla
