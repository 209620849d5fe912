// linear_rows.h for sm_90 itself, with products of a warpgroup. A cluster of blocks of threads shares a tile of
// columns, each block a slice of K, as in linear_rows_cuda.cu. Weights are the first operand, 64 columns at a time, so
// that they leave shared memory once for all rows, and rows of x the second: 16, 32 or 64. A row's sums are those of
// its own column of the instruction, one chain over the steps of a slice. There is one block for a multiprocessor
// (rows_tile_sm90), so rows come to it once, and the block of the next kernel fits beside it with all its weights,
// which it requests before this kernel has ended.
#include "mhla/kernels/common/cuda/arguments.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/linear/linear_rows_finish.cuh"
#include "mhla/kernels/linear/linear_rows_take.cuh"

namespace mhla {
namespace {

using namespace cuda;

constexpr int kGroup = 128;  // threads of a warpgroup

// kGroups warpgroups have 64 columns of the tile each, the last ones of the tile for the last. Registers of two such
// blocks fit a multiprocessor. kSilu: gates come as they are.
template <int kN, int kGroups, int kPanels, RowsBefore kBefore, RowsAfter kAfter, bool kTurned, bool kSilu>
__global__ void __launch_bounds__(kGroups* kGroup, 2) rows_kernel(const __grid_constant__ LinearRowsJob p) {
  constexpr int kThreadCount = kGroups * kGroup, kWarps = kThreadCount / 32, kWidth = kPanels * kHalfPanelColumns;
  std::byte* const rows = dynamic_shared();
  std::byte* const weights = rows + kPanels * kN * kHalfPanelRowBytes;
  const int T = p.tile, slices = gridDim.y, rank = cluster_rank(), k = rank * p.slice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RowsTile<kAfter, kTurned> tile(p, static_cast<int>(blockIdx.x), T);
  const RowsExchange exchange(rows, p.places, p.R, T, slices, rank, kBefore == RowsBefore::kNorm);
#pragma unroll 2
  for (int column = warp; column < T; column += kWarps) {
    const bf16* const from = tile.row_of(p, column);
#pragma unroll
    for (int pass = 0; pass < (kWidth + 255) / 256; ++pass) {
      const int c = pass * 256 + lane * 8;
      const bool there = from != nullptr && c < p.slice && k + c < p.K;
      if (c < kWidth) copy16(shared_address(weights + place_of(T, column, c)), there ? from + k + c : p.weight, there);
    }
  }
  copy_commit();
  const TakeRows<kN, kWarps, kPanels, kBefore, kSilu> take(p, k);

  constexpr RowsOpen kOpens = rows_opens(kN, kBefore, kTurned);
  if constexpr (kOpens == RowsOpen::kAtOnce) allow_next();
  const int blocks = static_cast<int>(gridDim.x * gridDim.y), block = static_cast<int>(blockIdx.x) * slices + rank;
  for (int line = block * kThreadCount + static_cast<int>(threadIdx.x); line < p.next_lines;
       line += blocks * kThreadCount)
    prefetch_line(p.next + static_cast<std::int64_t>(line) * kRowsLine);
  expect_arguments(p);
  exchange.open();
  RowsFinish<kBefore, kAfter, kTurned> finish(p, tile, exchange, rank, slices);
  wait_for_previous();

  finish.load_early(static_cast<int>(threadIdx.x));
  take.to(rows, [&](int row, float sum) { exchange.send_square(row, sum); });
  copy_commit();
  copy_wait<0>();
  publish_shared();
  __syncthreads();
  if constexpr (kOpens == RowsOpen::kWithRows) allow_next();

  const int group = warpgroup_index(), least = group * 64, row = max(min(least, T - 64), 0);  // of the weights
  const bool works = least < T;
  float total[kN / 8][4] = {};
  if (works) {
    const std::uint64_t a_panel = T * kHalfPanelRowBytes / 16, b_panel = kN * kHalfPanelRowBytes / 16;
    std::uint64_t a = half_panel_descriptor(shared_address(weights + row * kHalfPanelRowBytes));
    std::uint64_t b = half_panel_descriptor(shared_address(rows));
    settle_sums(total);
    warpgroup_begin();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel, a += a_panel, b += b_panel) {
      multiply_panels(total, a, b, true);
      multiply_panels(total, a + kNextColumns, b + kNextColumns, true);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    settle_sums(total);
  }
  if constexpr (kOpens == RowsOpen::kWithSums) allow_next();
  if (!p.places.apart) {
    __syncthreads();
    exchange.expect_room();
  }
  if (works) {  // sums of columns `row` + ..., rows 8 j + ... of x
    const int column = row + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int x_row = j * 8 + lane % 4 * 2;
      exchange.send(x_row, column, least, x_row / 4 * 4 < p.R, total[j]);
    }
  }
  if (exchange.valid() == 0) return;
  exchange.receive();
  finish(kThreadCount);
}

template <int kN, int kGroups, int kPanels, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_rows(LinearRowsJob p, int slices, void* stream) {
  constexpr const char* kName = "linear_rows: sm90";
  const int columns = p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0);
  const int tiles = rows_tiles(columns, p.turned, kAfter == RowsAfter::kSwiglu ? p.tile / 2 : p.tile).all;
  constexpr bool kHeads = kBefore == RowsBefore::kHeadNorm;
  const auto kernel = kHeads && !p.silu_done ? rows_kernel<kN, kGroups, kPanels, kBefore, kAfter, kTurned, kHeads>
                                             : rows_kernel<kN, kGroups, kPanels, kBefore, kAfter, kTurned, false>;
  p.places = rows_places(kN, p.tile, p.slice, slices);
  // Blocks of two kernels share a multiprocessor where both divide its memory between cache and shared memory alike.
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      kName);
  launch_cluster(kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(slices)), kGroups * kGroup, p,
                 static_cast<std::size_t>(p.places.end), stream, kName);
}

template <int kGroups, int kPanels, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_tiles(const LinearRowsJob& p, int slices, void* stream) {
  if (p.R <= 16) return launch_rows<16, kGroups, kPanels, kBefore, kAfter, kTurned>(p, slices, stream);
  if (p.R <= 32) return launch_rows<32, kGroups, kPanels, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_rows<64, kGroups, kPanels, kBefore, kAfter, kTurned>(p, slices, stream);
}

template <int kGroups, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_panels(const LinearRowsJob& p, int slices, void* stream) {
  if (rows_panels(p.slice) == 8) return launch_tiles<kGroups, 8, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_tiles<kGroups, 12, kBefore, kAfter, kTurned>(p, slices, stream);
}

template <RowsBefore kBefore, RowsAfter kAfter, bool kTurned = false>
void launch_groups(const LinearRowsJob& p, int slices, void* stream) {
  if (p.tile <= 2 * 64) return launch_panels<2, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_panels<3, kBefore, kAfter, kTurned>(p, slices, stream);
}

}  // namespace

// For the pairs of rows_on_sm90().
void linear_rows_sm90(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream) {
  if (job.turned > 0) return launch_groups<RowsBefore::kNorm, RowsAfter::kStore, true>(job, slices, stream);
  switch (params.before) {
    case RowsBefore::kPlain: return launch_groups<RowsBefore::kPlain, RowsAfter::kAdd>(job, slices, stream);
    case RowsBefore::kHeadNorm: return launch_groups<RowsBefore::kHeadNorm, RowsAfter::kAdd>(job, slices, stream);
    case RowsBefore::kNorm:
      params.after == RowsAfter::kSwiglu ? launch_groups<RowsBefore::kNorm, RowsAfter::kSwiglu>(job, slices, stream)
                                         : launch_groups<RowsBefore::kNorm, RowsAfter::kStore>(job, slices, stream);
  }
}

}  // namespace mhla
