// Phase 2 on warpgroups, 65 to 256 blocks: S~_i = sum_b mix[i,b] S_b over strips of columns, or dS_b = sum_i mix[i,b]
// dS~_i. mix lies in shared memory as panels, and so does a strip: all blocks of it, 64 columns a panel. One warpgroup
// copies strips, each of the others makes 64 rows of S~.
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// kSquares: blocks in units of 64.
template <int kSquares>
struct MixTiles {
  static constexpr int kRows = 64 * kSquares, kThreads = (1 + kSquares) * kGroupThreads;
  static constexpr int kColumns = 64;  // of a strip
  static constexpr int kMix = kSquares * kSquares * kPanelBytes, kStage = kRows * kPanelRowBytes;
  static constexpr int kStages = kSquares == 2 ? 4 : 3;
  static constexpr int kStagesAt = kMix, kRingAt = kStagesAt + kStages * kStage;
  static constexpr int kBytes = kPanelAlign + kRingAt + Ring<kStages>::kBytes;
  static constexpr int kBlocks = kSquares == 2 ? 2 : 1;  // of threads on a multiprocessor
  static_assert(kBytes <= kMaxSharedBytes && kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

// mix, or its transpose, as panels: columns 64 at a time, all rows; zeros where it is not used. A thread has 8 values.
__global__ void pack_panels_kernel(Arguments p, int rows, bool back) {
  after_previous();
  allow_next();
  clear_taken(p);
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);  // rows next to each other where mix has them
  const int row = back ? at % rows : at / (rows / 8), piece = back ? at / rows : at % (rows / 8);
  const float* mix = p.mix + blockIdx.y * p.mix_head;
  const auto value = [&](int column) {
    const bool used = row < p.M && column < p.M && (!p.causal || (back ? column > row : column < row));
    return !used  ? 0.0f
           : back ? mix[column * p.mix_row + row * p.mix_column]
                  : mix[row * p.mix_row + column * p.mix_column];
  };
  std::uint32_t y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = pack_bf16(value(piece * 8 + 2 * i), value(piece * 8 + 2 * i + 1));
  char* to = reinterpret_cast<char*>(p.packed_mix + blockIdx.y * packed_mix_units(p.mix_rows, p.M));
  *reinterpret_cast<uint4*>(to + piece / 8 * rows * kPanelRowBytes + panel_offset(row, piece % 8)) = {y[0], y[1], y[2],
                                                                                                      y[3]};
}

// The packed matrix of a head to shared memory, by `threads` threads from `thread` on.
template <int kSquares>
__device__ inline void copy_mix_panels(const Arguments& p, int head, std::uint32_t to, int thread, int threads) {
  const uint4* from = p.packed_mix + head * packed_mix_units(p.mix_rows, p.M);
#pragma unroll 4
  for (int i = thread; i < MixTiles<kSquares>::kMix / 16; i += threads) copy16(to + i * 16, from + i, true);
  copy_commit();
  copy_wait<0>();
  publish_shared();
}

// The strips of a block of threads: next to each other, so that it keeps the matrix of a head. Where causal heads share
// one, those of all units in turn, the last first: the second-level cache still holds what was written last.
struct MixWalk {
  int first, step, count;
  __device__ MixWalk(const Arguments& p, int strips, bool back) {
    const int items = p.units * strips, blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const bool in_turn = p.causal && !back && p.mix_head == 0;
    first = in_turn ? items - 1 - block : static_cast<int>(std::int64_t{items} * block / blocks);
    step = in_turn ? -blocks : 1;
    count = in_turn ? (items - block + blocks - 1) / blocks
                    : static_cast<int>(std::int64_t{items} * (block + 1) / blocks) - first;
  }
};

template <int kSquares>
__global__ void __launch_bounds__(MixTiles<kSquares>::kThreads, MixTiles<kSquares>::kBlocks)
    panel_mix_kernel(Arguments p, int X, int strips, bool back) {
  using T = MixTiles<kSquares>;
  constexpr int kReaders = kSquares * kGroupThreads;
  extern __shared__ char unaligned[];  // mix; [kStages] strips; ring
  char *const shared = aligned_panels(unaligned), *const stages = shared + T::kStagesAt;
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + T::kRingAt};
  const int group = warpgroup_index();
  const MixWalk walk(p, strips, back);
  // What a row takes from a block: everything, or in the causal form what lies before it. Squares of 64 x 64 that are
  // not used at all are passed over.
  const auto used = [&](int row, int block) { return !p.causal || (back ? block > row : block < row); };
  const auto passed_over = [&](int square, int b) { return p.causal && (back ? b < square : b > square); };
  const auto head_of = [&](int i) { return Unit(p, p.first_unit + i / strips).head; };
  const Bf16* const from = back ? p.mixed : p.summaries;
  if (threadIdx.x == 0) ring.init(kSquares * 4);
  int head = p.mix_head && walk.count > 0 ? head_of(walk.first) : 0;
  copy_mix_panels<kSquares>(p, head, base, static_cast<int>(threadIdx.x),
                            T::kThreads);  // packed before the last kernel
  __syncthreads();
  after_previous();
  allow_next();
  RingPlace<T::kStages> at;
  if (group == 0) {
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8;
    for (int n = 0, i = walk.first; n < walk.count; ++n, i += walk.step, at.next()) {
      const Bf16* strip = from + static_cast<std::int64_t>(i / strips) * p.M * X;
      const std::uint32_t to = base + T::kStagesAt + at.stage * T::kStage;
      ring.wait_empty(at);
#pragma unroll
      for (int row = row0; row < T::kRows; row += kGroupThreads / 8) {
        const int x = i % strips * T::kColumns + c * 8;
        const bool there = row < p.M && x < X;
        copy16(to + panel_offset(row, c), there ? strip + static_cast<std::int64_t>(row) * X + x : from, there);
      }
      ring.copied(at);
    }
    copy_commit();
    copy_wait<0>();
  } else {
    const int square = group - 1, lane = threadIdx.x % 32,
              row = square * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4, squares = (p.M + 63) / 64;
    const std::uint64_t mix = panel_descriptor(base + square * kPanelBytes);
    for (int n = 0, i = walk.first; n < walk.count; ++n, i += walk.step, at.next()) {
      if (p.mix_head && head_of(i) != head) {
        head = head_of(i);
        named_barrier(1, kReaders);
        copy_mix_panels<kSquares>(p, head, base, static_cast<int>(threadIdx.x) - kGroupThreads, kReaders);
        named_barrier(1, kReaders);
      }
      char* const strip = stages + at.stage * T::kStage;
      const std::uint64_t rows = panel_descriptor(shared_address(strip));
      Accumulator acc[1] = {};
      const auto multiply = [&](int b) {  // by 64 blocks
        begin_products(acc);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_panel_by_rows(acc[0], mix + b * (T::kStage / 16) + step * kNextColumns,
                                 rows + (b * 4 + step) * kNextRows, true);
        }
      };
      ring.wait_full(at);
      publish_shared();  // copies were ordinary writes
      begin_products(acc);
      for (int b = 0; b < squares; ++b) {
        if (!passed_over(square, b) && !(p.causal && b == square)) multiply(b);
      }
      finish_products(acc);
      if (p.causal) {  // of its own 64 blocks a row takes a part: zero times NaN is NaN
        bool finite = true;
        each_panel_word<kPanelBytes>(strip + square * kPanelBytes,
                                     [&](const uint4& x) { finite = finite && finite_words(x); });
        if (!all_hold(1, kReaders, finite)) {
          for (int b = 0; b < 64; ++b) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int i_row = row + half * 8, block = square * 64 + b;
              if (!used(i_row, block)) continue;
              const float m = __bfloat162float(
                  *reinterpret_cast<const Bf16*>(shared + square * T::kStage + panel_offset(i_row, b / 8) + b % 8 * 2));
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const float2 y =
                    unpack_bf16(*reinterpret_cast<const std::uint32_t*>(strip + panel_offset(block, j) + lane % 4 * 4));
                float(&sum)[4] = acc[0][j];
                if (!isfinite(y.x)) sum[2 * half] = fmaf(m, y.x, sum[2 * half]);
                if (!isfinite(y.y)) sum[2 * half + 1] = fmaf(m, y.y, sum[2 * half + 1]);
              }
            }
          }
          warpgroup_barrier(group);
          make_finite<kPanelBytes>(strip + square * kPanelBytes);
          publish_shared();
          warpgroup_barrier(group);
        }
        begin_products(acc);
        multiply(square);
        finish_products(acc);
      }
      ring.release(at);
      Bf16* to = p.mixed + static_cast<std::int64_t>(i / strips) * p.M * X;
      const int x = i % strips * T::kColumns, width = min(64, X - x);
      write_panel_row<0>(acc[0], 1.0f, row < p.M, to + static_cast<std::int64_t>(row) * X + x, width);
      write_panel_row<1>(acc[0], 1.0f, row + 8 < p.M, to + static_cast<std::int64_t>(row + 8) * X + x, width);
    }
  }
}

template <int kSquares>
void launch_mix_panels(const Arguments& a, bool back, cudaStream_t stream) {
  using T = MixTiles<kSquares>;
  const auto kernel = panel_mix_kernel<kSquares>;
  const int X = a.D * a.E + a.D, strips = (X + T::kColumns - 1) / T::kColumns;
  const unsigned blocks = blocks_for(kernel, T::kThreads, T::kBytes, std::int64_t{a.units} * strips);
  launch_next("sm90 panel_mix_kernel", kernel, blocks, T::kThreads, T::kBytes, stream, a, X, strips, back);
}

}  // namespace mhla::sm90
