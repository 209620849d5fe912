// linear_rows.h for sm_90 itself, with products of a warpgroup. A cluster of blocks of threads shares a tile of
// columns, each block a slice of K, as in linear_rows_cuda.cu. Weights are the first operand, 64 columns at a time, so
// that they leave shared memory once for all rows, and rows of x the second: 16, 32 or 64. A row's sums are those of
// its own column of the instruction: one chain over the steps of a slice, or two chains, one for each half of the
// slice, where a tile has no more than 64 columns. There is one block for a multiprocessor (rows_tile_sm90), so rows
// come to it once, and the block of the next kernel fits beside it with all its weights, which it requests before this
// kernel has ended.
#include "mhla/kernels/common/cuda/arguments.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/linear/linear_rows_end.cuh"
#include "mhla/kernels/linear/linear_rows_panels.cuh"

namespace mhla {
namespace {

using namespace cuda;

constexpr int kGroup = 128;  // threads of a warpgroup

// Where piece c / 8 of a row lies among panels of `rows` rows.
__device__ inline int place_of(int rows, int row, int c) {
  return c / kHalfPanelColumns * rows * kHalfPanelRowBytes + half_panel_offset(row, c % kHalfPanelColumns / 8);
}

__device__ inline uint4 pack_eight(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}

template <int kN, int kWarps>
inline constexpr int kOwnRows = (kN + kWarps - 1) / kWarps;  // of a warp

// Rows through what stands before the product, into panels of kN rows; a warp has rows warp, warp + kWarps, ..., all of
// them on their way at once. Zeros after the last of K. Rows after the last are left as they are: nobody reads their
// sums.
template <int kN, int kWarps, RowsBefore kBefore>
struct TakeRows {
  static constexpr int kPasses = (kRowsSlice + 255) / 256;
  const LinearRowsJob& p;
  int k;
  bf16* gates;  // [R][width()] in shared memory, kHeadNorm
  int warp, lane;
  uint4 scale[kPasses];  // loaded before the previous kernel has ended

  __device__ TakeRows(const LinearRowsJob& job, int from, bf16* room)
      : p(job),
        k(from),
        gates(room),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      scale[pass] = {};
      const int c = pass * 256 + lane * 8;
      if (!given(c)) continue;
      if constexpr (kBefore == RowsBefore::kNorm) scale[pass] = static_cast<const uint4*>(p.scale)[(k + c) / 8];
      if constexpr (kBefore == RowsBefore::kHeadNorm) scale[pass] = static_cast<const uint4*>(p.scale)[c % p.head / 8];
    }
  }
  [[nodiscard]] __device__ bool given(int c) const { return c < p.slice && k + c < p.K; }
  [[nodiscard]] __device__ int width() const { return rows_panels(p.slice) * kHalfPanelColumns; }

  __device__ void to(std::byte* panels, float* squares) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int c = pass * 256 + lane * 8;
      if (pass * 256 < width()) take(panels, squares, pass, c);
    }
  }

  __device__ void take(std::byte* panels, float* squares, int pass, int c) const {
    const bool there = given(c);
    if constexpr (kBefore == RowsBefore::kPlain) {
      const bf16* const x = static_cast<const bf16*>(p.x) + k + c;
#pragma unroll
      for (int i = 0; i < kOwnRows<kN, kWarps>; ++i) {
        const int row = warp + i * kWarps;
        if (row < p.R && c < width())
          copy16(shared_address(panels + place_of(kN, row, c)), there ? x + row * p.x_stride : p.x, there);
      }
    } else if constexpr (kBefore == RowsBefore::kNorm) {
      const float* const x = static_cast<const float*>(p.x) + k + c;
      float4 value[kOwnRows<kN, kWarps>][2];
#pragma unroll
      for (int i = 0; i < kOwnRows<kN, kWarps>; ++i) {
        const int row = warp + i * kWarps;
        const bool own = there && row < p.R;
        const float4* const from = reinterpret_cast<const float4*>(x + row * p.x_stride);
        value[i][0] = own ? from[0] : float4{}, value[i][1] = own ? from[1] : float4{};
      }
      float w[8];
      unpack_eight(scale[pass], w);
#pragma unroll
      for (int i = 0; i < kOwnRows<kN, kWarps>; ++i) {
        const int row = warp + i * kWarps;
        if (row >= p.R) break;
        const float4 &a = value[i][0], &b = value[i][1];
        float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, sum = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(v[e], v[e], sum), v[e] *= w[e];
        if (c < width()) *reinterpret_cast<uint4*>(panels + place_of(kN, row, c)) = pack_eight(v);
        sum = warp_sum(sum);
        if (lane == 0) squares[row] = pass == 0 ? sum : squares[row] + sum;
      }
    } else {
      const bf16 *const x = static_cast<const bf16*>(p.x) + k + c, *const gate =
                                                                       static_cast<const bf16*>(p.gate) + k + c;
#pragma unroll 1
      for (int row = warp; row < p.R; row += kWarps) {
        if (c >= width()) break;
        copy16(shared_address(panels + place_of(kN, row, c)), there ? x + row * p.x_stride : p.x, there);
        copy16(shared_address(gates + row * width() + c), there ? gate + row * p.gate_stride : p.gate, there);
      }
    }
  }

  // kHeadNorm: what take() has brought, x in its place and gates apart, becomes what is multiplied. A loop of few
  // instructions: those of a kernel that runs for some microseconds come from afar.
  __device__ void norm_heads(std::byte* panels) const {
    const int lanes = p.head / 8;  // of a head
    const float share = 1.0f / static_cast<float>(p.head);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int c = pass * 256 + lane * 8;
      if (pass * 256 >= width()) continue;
      float w[8];
      unpack_eight(scale[pass], w);
#pragma unroll 1
      for (int row = warp; row < p.R; row += kWarps) {
        uint4* const at = reinterpret_cast<uint4*>(panels + place_of(kN, row, c));
        float v[8] = {}, g[8] = {}, sum = 0;
        if (c < width()) {
          unpack_eight(*at, v);
          unpack_eight(*reinterpret_cast<const uint4*>(gates + row * width() + c), g);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(v[e], v[e], sum);
        for (int away = lanes / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
        const float unit = rsqrtf(sum * share + p.eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = v[e] * unit * w[e];
        if (!p.silu_done) {
#pragma unroll
          for (int e = 0; e < 8; ++e) g[e] = silu(g[e]);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] *= g[e];
        if (c < width()) *at = pack_eight(v);
      }
    }
  }
};

// Sums of a tile on their way between the blocks of a cluster, each block's share of them in one copy. Copies tell a
// barrier of the receiver when they are there. barrier.cluster with release is a fence of the whole card in the machine
// code (MEMBAR.ALL.GPU).
class ClusterExchange {
 public:
  __device__ ClusterExchange(const void* barriers, int blocks, int bytes)
      : ready_(shared_address(barriers)), full_(ready_ + 8), blocks_(blocks), bytes_(bytes) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ready_), "r"(blocks) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full_), "r"(blocks * bytes)
                   : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  // All threads, before the others: every block has its barriers, long since.
  __device__ void open() const { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
  // After a barrier of the block: blocks that come may overwrite the operands.
  __device__ void say_ready() const {
    if (static_cast<int>(threadIdx.x) < blocks_)
      asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                       address_in_block(ready_, static_cast<int>(threadIdx.x)))
                   : "memory");
  }
  // After a barrier of the block: block `i` of `from` goes to block i of the cluster, there to place `rank` of `to`.
  __device__ void send(const float* from, const float* to, int rank, bool when_ready) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= blocks_) return;
    if (when_ready) wait(ready_);
    const std::uint32_t source = shared_address(from) + i * bytes_, place = shared_address(to) + rank * bytes_;
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_in_block(place, i)),
                 "r"(source), "r"(bytes_), "r"(address_in_block(full_, i))
                 : "memory");
  }
  // All threads: returns when the blocks of all are there.
  __device__ void receive() const {
    wait(full_);
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  // Nobody leaves while others still copy from it.
  __device__ void leave() const {
    __syncwarp();
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  }

 private:
  __device__ static void wait(std::uint32_t barrier) {
    asm volatile(
        "{\n.reg .pred met;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 met, [%0], 0;\n@!met bra again;\n}" ::"r"(
            barrier)
        : "memory");
  }
  std::uint32_t ready_, full_;
  int blocks_, bytes_;
};

// kGroups warpgroups have 64 columns of the tile each, the last ones of the tile for the last; or two have the same 64
// and half of the slice each. Registers of two such blocks fit a multiprocessor.
template <int kN, int kGroups, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
__global__ void __launch_bounds__(kGroups* kGroup, 2) rows_kernel(const __grid_constant__ LinearRowsJob p) {
  constexpr int kThreadCount = kGroups * kGroup, kWarps = kThreadCount / 32;
  std::byte* const rows = dynamic_shared();
  const int T = p.tile, panels = rows_panels(p.slice), slices = gridDim.y, rank = cluster_rank(), k = rank * p.slice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const RowsPlaces at = rows_places(kN, T, p.slice, slices, kBefore == RowsBefore::kHeadNorm);
  std::byte* const weights = rows + panels * kN * kHalfPanelRowBytes;
  float *const leaving = reinterpret_cast<float*>(rows), *const coming = reinterpret_cast<float*>(rows + at.come);
  float* const squares = reinterpret_cast<float*>(rows + at.squares);
  const RowsTile<kAfter, kTurned> tile(p, static_cast<int>(blockIdx.x), T);
  const RowsExchange cut = rows_exchange(p.R, tile.outputs(), tile.pairs(), slices);
  const ClusterExchange exchange(rows + at.barriers, slices, cut.block * 4);
  for (int column = warp; column < T; column += kWarps) {
    const bf16* const from = tile.row_of(p, column);
    for (int c = lane * 8; c < panels * kHalfPanelColumns; c += 256) {
      const bool there = from != nullptr && c < p.slice && k + c < p.K;
      copy16(shared_address(weights + place_of(T, column, c)), there ? from + k + c : p.weight, there);
    }
  }
  copy_commit();
  const TakeRows<kN, kWarps, kBefore> take(p, k, reinterpret_cast<bf16*>(rows + at.gates));

  allow_next();
  const int blocks = static_cast<int>(gridDim.x * gridDim.y), block = static_cast<int>(blockIdx.x) * slices + rank;
  for (int line = block * kThreadCount + static_cast<int>(threadIdx.x); line < p.next_lines;
       line += blocks * kThreadCount)
    prefetch_line(p.next + static_cast<std::int64_t>(line) * kRowsLine);
  expect_arguments(p);
  wait_for_previous();

  const int fours = max(min(tile.outputs() / 4 - rank * cut.fours, cut.fours), 0);
  RowsEnd<kBefore, kAfter, kTurned> end(p, fours, rank * cut.fours, static_cast<int>(threadIdx.x), kThreadCount);
  end.begin(p, tile, /*angles_too=*/true);
  take.to(rows, squares);
  copy_commit();
  copy_wait<0>();
  if constexpr (kBefore == RowsBefore::kHeadNorm) take.norm_heads(rows);
  publish_shared();
  __syncthreads();

  const int group = warpgroup_index();
  const bool halves = T <= 64;  // of the panels, one for each of two warpgroups
  const int half = (panels + 1) / 2, begin = halves && group == 1 ? half : 0;
  const int finish = halves && group == 0 ? half : panels;
  const int row = halves ? 0 : min(group * 64, T - 64);  // of the weights
  std::uint64_t a = half_panel_descriptor(shared_address(weights + (begin * T + row) * kHalfPanelRowBytes));
  std::uint64_t b = half_panel_descriptor(shared_address(rows + begin * kN * kHalfPanelRowBytes));
  const int a_panel = T * kHalfPanelRowBytes / 16, b_panel = kN * kHalfPanelRowBytes / 16;
  float total[kN / 8][4] = {};
  settle_sums(total);
  // Every turn of the loop is a group of its own, or the compiler waits for each product.
#pragma unroll 1
  for (int panel = begin; panel < finish; ++panel, a += a_panel, b += b_panel) {
    warpgroup_begin();
    multiply_panels(total, a, b, true);
    multiply_panels(total, a + kNextColumns, b + kNextColumns, true);
    warpgroup_commit();
    warpgroup_wait<1>();
  }
  warpgroup_wait<0>();
  settle_sums(total);
  exchange.open();
  __syncthreads();
  constexpr bool kApart = rows_come_apart(kN);
  if (!kApart) exchange.say_ready();

  // Sums of columns `row` + ..., rows 8 j + ... of x.
  const int least = halves ? 0 : group * 64, own_row = lane % 4 * 2;
  const float per_fours = reciprocal(cut.fours);
  const auto each_sum = [&](const auto& f) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int column = row + warp % 4 * 16 + lane / 4 + side * 8;
      if (column < least || column >= T) continue;
      const bool second = tile.pairs() && column >= tile.half;
      const int own = second ? column - tile.half : column, owner = quotient(own / 4, per_fours);
      float* const to = leaving + owner * cut.block + own - owner * cut.fours * 4 + (second ? cut.fours * 4 : 0);
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) {
        const int x_row = i / 2 * 8 + own_row + i % 2;
        if (x_row < p.R) f(to[x_row * cut.pitch], total[i / 2][side * 2 + i % 2]);
      }
    }
  };
  if (!halves || group == 0) each_sum([](float& sum, float x) { sum = x; });
  if (halves) {
    __syncthreads();
    if (group == 1 && begin < finish) each_sum([](float& sum, float x) { sum += x; });
  }
  if constexpr (kBefore == RowsBefore::kNorm) {
    for (int i = warp; i < slices; i += kWarps) {
      for (int x_row = lane; x_row < p.R; x_row += 32)
        leaving[i * cut.block + p.R * cut.pitch + x_row] = squares[x_row];
    }
  }
  publish_shared();
  __syncthreads();
  exchange.send(leaving, coming, rank, !kApart);
  exchange.receive();
  end.finish(
      p, tile,
      [&](int x_row) {
        return [&, x_row] {
          float sum = 0;
          for (int i = 0; i < slices; ++i) sum += coming[i * cut.block + p.R * cut.pitch + x_row];
          return sum;
        };
      },
      [&](int x_row, int column, float4& y, float4& z) {
        const float* const from = coming + x_row * cut.pitch + column - rank * cut.fours * 4;
        for (int i = 0; i < slices; ++i) {
          add_to(y, *reinterpret_cast<const float4*>(from + i * cut.block));
          if (tile.pairs()) add_to(z, *reinterpret_cast<const float4*>(from + i * cut.block + cut.fours * 4));
        }
      });
  exchange.leave();
}

template <int kN, int kGroups, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_rows(const LinearRowsJob& p, int slices, void* stream) {
  constexpr const char* kName = "linear_rows: sm90";
  const int columns = p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0);
  const int tiles = rows_tiles(columns, p.turned, kAfter == RowsAfter::kSwiglu ? p.tile / 2 : p.tile).all;
  const auto kernel = rows_kernel<kN, kGroups, kBefore, kAfter, kTurned>;
  // Blocks of two kernels share a multiprocessor where both divide its memory between cache and shared memory alike.
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      kName);
  launch_cluster(
      kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(slices)), kGroups * kGroup, p,
      static_cast<std::size_t>(rows_places(kN, p.tile, p.slice, slices, kBefore == RowsBefore::kHeadNorm).end), stream,
      kName);
}

template <int kGroups, RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
void launch_tiles(const LinearRowsJob& p, int slices, void* stream) {
  if (p.R <= 16) return launch_rows<16, kGroups, kBefore, kAfter, kTurned>(p, slices, stream);
  if (p.R <= 32) return launch_rows<32, kGroups, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_rows<64, kGroups, kBefore, kAfter, kTurned>(p, slices, stream);
}

template <RowsBefore kBefore, RowsAfter kAfter, bool kTurned = false>
void launch_groups(const LinearRowsJob& p, int slices, void* stream) {
  if (p.tile <= 2 * 64) return launch_tiles<2, kBefore, kAfter, kTurned>(p, slices, stream);
  launch_tiles<3, kBefore, kAfter, kTurned>(p, slices, stream);
}

template <RowsBefore kBefore>
void launch_before(const LinearRowsParams& params, const LinearRowsJob& p, int slices, void* stream) {
  switch (params.after) {
    case RowsAfter::kAdd: return launch_groups<kBefore, RowsAfter::kAdd>(p, slices, stream);
    case RowsAfter::kSwiglu: return launch_groups<kBefore, RowsAfter::kSwiglu>(p, slices, stream);
    case RowsAfter::kStore: return launch_groups<kBefore, RowsAfter::kStore>(p, slices, stream);
  }
}

}  // namespace

void linear_rows_sm90(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream) {
  if (job.turned > 0) return launch_groups<RowsBefore::kNorm, RowsAfter::kStore, true>(job, slices, stream);
  switch (params.before) {
    case RowsBefore::kPlain: return launch_before<RowsBefore::kPlain>(params, job, slices, stream);
    case RowsBefore::kNorm: return launch_before<RowsBefore::kNorm>(params, job, slices, stream);
    case RowsBefore::kHeadNorm: return launch_before<RowsBefore::kHeadNorm>(params, job, slices, stream);
  }
}

}  // namespace mhla
