// dq, dS~ and dz~ of common/cuda/sm80_backward.cuh on warpgroups, for heads whose tiles fill two panels:
//   w = scale / den, c = -(num . dout) / den, dq~ = w (dout S~^T + c z~), dS~ = (w q~)^T dout, dz~ = (w q~)^T c
// The first warpgroup copies tiles of 64 tokens. Readers take them in turn: they make dq, and replace q by w q~ in
// shared memory. The last warpgroup makes dS~ and dz~ of that. A reader has one fence.proxy.async for each tile, as
// long after it wrote dq as can be, so that stores to memory are not what it waits for.
#pragma once

#include "mhla/kernels/common/cuda/sm80_backward.cuh"
#include "mhla/kernels/common/cuda/sm90_items.cuh"
#include "mhla/kernels/common/cuda/warpgroup_wide.cuh"

namespace mhla::sm90 {

template <class S>
struct QueryRoleTiles {
  static constexpr int kPanels = S::kRows / 4, kReaders = 2, kStages = 4;
  static constexpr int kThreads = (2 + kReaders) * kGroupThreads, kSlots = ItemQueue::kPlaces;  // slots: of S~
  static constexpr int kTile = kPanels * kPanelBytes, kStage = 2 * kTile;  // 64 tokens of q; of q and dout
  static constexpr int kSummary = kSummaryPanelBytes<kPanels>, kZ = kPanels * kPanels * kPanelBytes;
  static constexpr int kSummariesAt = kStages * kStage, kTermsAt = kSummariesAt + kSlots * kSummary;
  static constexpr int kRingAt = kTermsAt + kStages * kPanelAlign, kSummaryRingAt = kRingAt + Ring<kStages>::kBytes,
                       kScaledAt = kSummaryRingAt + Ring<kSlots>::kBytes;  // barriers: w q~ is there
  static constexpr int kItemsAt = kScaledAt + kStages * 8, kBytes = kPanelAlign + kItemsAt + kItemQueueBytes;
  [[nodiscard]] static __device__ ItemQueue items(const Arguments& p, std::uint32_t base) {
    return {base + kItemsAt, p.maybe_taken, p.units * p.M};
  }
  // Of a thread that copies, of a reader, of one that sums: together what the block of threads starts with.
  static constexpr int kCopyRegisters = 56, kReadRegisters = 144, kSumRegisters = 168;
  static_assert(kStages % kReaders == 0);  // a stage is always read by the same warpgroup
  static_assert(kSummary % kPanelAlign == 0 && kBytes <= kMaxSharedBytes);
  static_assert(kCopyRegisters + kReaders * kReadRegisters + kSumRegisters <=
                65536 / kThreads / 8 * 8 * (2 + kReaders));
};

// acc = dout S~^T of 64 tokens, 64 columns of dout at a time. dout comes by ldmatrix: as an operand in shared memory it
// would need a fence.
template <int kPanels>
__device__ inline void multiply_by_summary(Accumulator (&acc)[kPanels], std::uint32_t dout, std::uint64_t summary) {
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int part = 0; part < kPanels; ++part) {
    std::uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_matrices(a[step], dout + part * kPanelBytes + panel_offset(row, step * 2 + lane / 16));
    }
    begin_products(acc);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_panel_columns(acc[panel], a[step],
                               summary + (part * kPanels + panel) * (kPanelBytes / 16) + step * kNextColumns,
                               part > 0 || step > 0);
      }
    }
    finish_products(acc);
  }
}

// w and c of the two tokens of this lane, and what is made of them.
template <class S, bool kDen>
struct QueryWeights {
  using T = QueryRoleTiles<S>;
  float w[2], c[2];

  // From dout S~^T of 64 tokens from place `first` on.
  __device__ QueryWeights(const Arguments& p, const Accumulator (&acc)[T::kPanels], std::uint32_t q, std::uint32_t z,
                          const BlockTokens& block, int first, const float* all_den, float* all_dden) {
    const int lane = threadIdx.x % 32, row16 = static_cast<int>(threadIdx.x) / 32 % 4 * 16, D = S::D(p),
              place = first + row16 + lane / 4, last = static_cast<int>(block.size) - 1;
    float den[2] = {}, dot[2] = {};
#pragma unroll
    for (int step = 0; step < 4 * T::kPanels; ++step) {
      std::uint32_t x[4];
      load_matrices(x, q + step / 4 * kPanelBytes + panel_offset(row16 + lane % 16, step % 4 * 2 + lane / 16));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int j = step * 2 + tile;
        const float2 y = unpack_bf16(shared_word(z + j / 8 * 8 * kPanelRowBytes + j % 8 * 16 + lane % 4 * 4));
        if (j * 8 >= D) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 f = unpack_bf16(feature_pair(S::map(p), x[tile * 2 + half]));
          const float(&sum)[4] = acc[j / 8][j % 8];
          den[half] = fmaf(f.x, y.x, fmaf(f.y, y.y, den[half]));
          dot[half] = fmaf(f.x, sum[2 * half], fmaf(f.y, sum[2 * half + 1], dot[half]));
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool valid = place + half * 8 <= last;
      const float total = p.eps + quad_sum(den[half]), sum = quad_sum(dot[half]);
      w[half] = !valid ? 0.0f : p.normalized ? p.scale / total : p.scale;
      c[half] = valid && p.normalized ? -sum / total : 0.0f;
      if constexpr (kDen) {  // den is in memory, and its gradient w c goes there instead
        const std::int64_t at = block.token(min(place + half * 8, last));
        const float given = __ldcg(all_den + at);
        w[half] = valid ? p.scale / given : 0.0f, c[half] = 0.0f;
        if (valid && lane % 4 == 0) all_dden[at] = -w[half] * (sum / given);
      }
    }
  }

  // c as eight equal rows: the right side of dz~.
  __device__ void write_terms(std::uint32_t terms) const {
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    // Lanes q and q ^ 1 of two neighbouring tokens: a word of both.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float other = __shfl_xor_sync(0xffffffffu, c[half], 4);
      const int token = row + half * 8;
      const std::uint32_t pair = token % 2 == 0 ? pack_bf16(c[half], other) : pack_bf16(other, c[half]);
      const int copy = lane % 4 * 2 + token % 2;  // four of the eight rows by either token
      set_shared_word(terms + panel_offset(copy, token / 8) + token % 8 / 2 * 4, pair);
    }
  }

  // w q~ in place of q; dq as words of two columns.
  __device__ void scale_queries(const Arguments& p, const Accumulator (&acc)[T::kPanels], std::uint32_t q,
                                std::uint32_t z, std::uint32_t (&dq)[4 * T::kPanels][4]) const {
    const int lane = threadIdx.x % 32, row16 = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
    for (int step = 0; step < 4 * T::kPanels; ++step) {
      const std::uint32_t at = q + step / 4 * kPanelBytes + panel_offset(row16 + lane % 16, step % 4 * 2 + lane / 16);
      std::uint32_t x[4];
      load_matrices(x, at);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int j = step * 2 + tile;
        const float2 y = unpack_bf16(shared_word(z + j / 8 * 8 * kPanelRowBytes + j % 8 * 16 + lane % 4 * 4));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t& word = x[tile * 2 + half];
          float a = acc[j / 8][j % 8][2 * half], b = acc[j / 8][j % 8][2 * half + 1];
          if constexpr (!kDen) a = fmaf(c[half], y.x, a), b = fmaf(c[half], y.y, b);
          dq[step][tile * 2 + half] = through_slope(S::map(p), word, pack_bf16(a * w[half], b * w[half]));
          const float2 f = unpack_bf16(feature_pair(S::map(p), word));
          word = pack_bf16(f.x * w[half], f.y * w[half]);
        }
      }
      store_matrices(at, x[0], x[1], x[2], x[3]);
    }
  }
};

// Words of two columns of 64 tokens to their rows in memory, 16 bytes at a time.
template <int kSteps>
__device__ inline void write_words(const std::uint32_t (&words)[kSteps][4], Bf16* to, std::int64_t stride, int X,
                                   const BlockTokens& block, int first) {
  const int lane = threadIdx.x % 32, place = first + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4,
            last = static_cast<int>(block.size) - 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Bf16* const row = to + block.token(min(place + half * 8, last)) * stride;
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      std::uint32_t y[4] = {words[step][half], words[step][2 + half], words[step + 1][half], words[step + 1][2 + half]};
      transpose_quad(y);
      const int column = (step * 2 + lane % 4) * 8;
      store16_where(place + half * 8 <= last && column < X, row + column, uint4{y[0], y[1], y[2], y[3]});
    }
  }
}

// 64 rows of sums from row d of this lane on, as rows of E values in memory.
template <int kTiles>
__device__ inline void write_sums(const float (&acc)[kTiles][4], Bf16* to, int d, int D, int E) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < kTiles; j += 4) {
      std::uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) y[i] = pack_bf16(acc[j + i][2 * half], acc[j + i][2 * half + 1]);
      transpose_quad(y);
      const int column = (j + static_cast<int>(threadIdx.x) % 4) * 8;
      store16_where(d + half * 8 < D && column < E, to + (d + half * 8) * E + column, uint4{y[0], y[1], y[2], y[3]});
    }
  }
}

// dq of the tiles of a reader, w q~ and c of them.
template <class S, bool kDen>
__device__ inline void read_queries(const Arguments& p, const Gradients& g, std::uint32_t base) {
  using T = QueryRoleTiles<S>;
  const Ring<T::kStages> ring{base + T::kRingAt};
  const Ring<T::kSlots> summary_ring{base + T::kSummaryRingAt};
  RingPlace<T::kStages> at;
  const ItemQueue items = T::items(p, base);
  const int group = warpgroup_index();
  int turn = 1;  // whose tile comes next
  if constexpr (kDen) after_previous();
  for (ItemWalk walk(items, false); walk.more(); walk.next()) {
    const Item item(p, walk.item);
    const int size = static_cast<int>(item.block.size);
    const std::uint32_t summary = base + T::kSummariesAt + walk.place.stage * T::kSummary;
    summary_ring.wait_full(walk.place);
    publish_shared();  // copies were ordinary writes
    for (int h = 0; h < p.group; ++h) {
      const int head = item.u.head * p.group + h;
      for (int first = 0; first < size; first += 64, at.next(), turn = turn == T::kReaders ? 1 : turn + 1) {
        if (turn != group) continue;
        const std::uint32_t q = base + at.stage * T::kStage;
        ring.wait_full(at);
        Accumulator acc[T::kPanels];
        multiply_by_summary(acc, q + T::kTile, panel_descriptor(summary));
        const QueryWeights<S, kDen> weights(p, acc, q, summary + T::kZ, item.block, first,
                                            kDen ? p.den_row(item.u.batch, head) : nullptr,
                                            kDen ? g.dden_row(p, item.u.batch, head) : nullptr);
        weights.write_terms(base + T::kTermsAt + at.stage * kPanelAlign);
        std::uint32_t dq[4 * T::kPanels][4];
        weights.scale_queries(p, acc, q, summary + T::kZ, dq);
        publish_shared();
        barrier_arrive(base + T::kScaledAt + at.stage * 8);
        if (g.dq.data != nullptr) write_words(dq, g.dq.at(item.u.batch, head), g.dq.token, S::D(p), item.block, first);
      }
    }
    summary_ring.release(walk.place);
  }
}

// dS~ and dz~ of blocks, in p.mixed.
template <class S>
__device__ inline void sum_queries(const Arguments& p, std::uint32_t base) {
  using T = QueryRoleTiles<S>;
  const Ring<T::kStages> ring{base + T::kRingAt};
  RingPlace<T::kStages> at;
  const ItemQueue items = T::items(p, base);
  const int D = S::D(p), E = S::E(p), lane = threadIdx.x % 32,
            row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  for (ItemWalk walk(items, false); walk.more(); walk.next()) {
    const int i = walk.item, size = item_size(p, i);
    WideSums<64 * T::kPanels> acc[T::kPanels] = {};  // 64 rows each
    float dz[T::kPanels][4] = {};
    for (int h = 0; h < p.group; ++h) {
      for (int first = 0; first < size; first += 64, at.next()) {
        const std::uint32_t q = base + at.stage * T::kStage;
        const std::uint64_t left = panel_descriptor(q), right = wide_descriptor(q + T::kTile, kPanelBytes),
                            terms = panel_descriptor(base + T::kTermsAt + at.stage * kPanelAlign);
        barrier_wait(base + T::kScaledAt + at.stage * 8, at.parity);
        publish_shared();  // copies of dout were ordinary writes
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) settle_sums(acc[rows]), settle_sums(dz[rows]);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int rows = 0; rows < T::kPanels; ++rows) {
            const std::uint64_t a = left + rows * (kPanelBytes / 16) + step * kNextRows;
            multiply_transposed_by_rows(acc[rows], a, right + step * kNextRows, true);
            add_column_sums(dz[rows], a, terms + step * kNextColumns);
          }
        }
        warpgroup_commit();
        warpgroup_wait<0>();
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) settle_sums(acc[rows]), settle_sums(dz[rows]);
        ring.release(at);
      }
    }
    Bf16* const to = p.mixed + static_cast<std::int64_t>(i) * (D * E + D);
#pragma unroll
    for (int rows = 0; rows < T::kPanels; ++rows) {
      const int d = rows * 64 + row;
      write_sums(acc[rows], to, d, D, E);
      if (lane % 4 == 0 && d < D) to[D * E + d] = __float2bfloat16_rn(dz[rows][0]);
      if (lane % 4 == 0 && d + 8 < D) to[D * E + d + 8] = __float2bfloat16_rn(dz[rows][2]);
    }
  }
}

// q and dout of tiles, S~ and z~ of blocks to shared memory.
template <class S>
__device__ inline void copy_queries(const Arguments& p, const Gradients& g, std::uint32_t base) {
  using T = QueryRoleTiles<S>;
  const Ring<T::kStages> ring{base + T::kRingAt};
  const Ring<T::kSlots> summary_ring{base + T::kSummaryRingAt};
  RingPlace<T::kStages> at;
  const ItemQueue items = T::items(p, base);
  const int D = S::D(p), E = S::E(p);
  TileMover mover;
  bool waited = false;
  const auto bring_summary = [&](const ItemWalk& walk) {
    if (!waited) after_previous(), allow_next(), waited = true;
    summary_ring.wait_empty(walk.place);
    copy_summary_and_z<T::kPanels>(p.query_sums + static_cast<std::int64_t>(walk.item) * (D * E + D), D, E,
                                   base + T::kSummariesAt + walk.place.stage * T::kSummary);
    summary_ring.copied(walk.place);
  };
  for (ItemWalk walk(items, threadIdx.x == 0); walk.more(); walk.next()) {
    const Item item(p, walk.item);
    const int size = static_cast<int>(item.block.size);
    if (waited) bring_summary(walk);
    for (int h = 0; h < p.group; ++h) {
      const int head = item.u.head * p.group + h;
      const Bf16 *q = p.q.at(item.u.batch, head), *dout = g.dout.at(item.u.batch, head);
      for (int first = 0; first < size; first += 64, at.next()) {
        const std::uint32_t to = base + at.stage * T::kStage;
        mover.find(item.block, first);
        ring.wait_empty(at);
        mover.copy<T::kPanels>(q, p.q.token, D, to);
        mover.copy<T::kPanels>(dout, g.dout.token, E, to + T::kTile);
        ring.copied(at);
        // q and dout come from before the kernels of this pass: the first ones travel while those still run.
        if (!waited && (at.stage + 1 == T::kStages || first + 64 >= size)) bring_summary(walk);
      }
    }
  }
  copy_commit();
  copy_wait<0>();
}

template <class S, bool kDen = false>
__global__ void __launch_bounds__(QueryRoleTiles<S>::kThreads, 1) role_query_gradient_kernel(Arguments p, Gradients g) {
  using T = QueryRoleTiles<S>;
  extern __shared__ char unaligned[];  // [kStages] q, dout; [kSlots] S~, z~; [kStages] c; rings; items
  const std::uint32_t base = shared_address(aligned_panels(unaligned));
  if (threadIdx.x == 0) {
    Ring<T::kStages>{base + T::kRingAt}.init(4);
    Ring<T::kSlots>{base + T::kSummaryRingAt}.init(T::kReaders * 4);
    for (int i = 0; i < T::kStages; ++i) barrier_init(base + T::kScaledAt + i * 8, kGroupThreads);
    T::items(p, base).init(T::kThreads);
  }
  publish_shared();
  __syncthreads();
  const int group = warpgroup_index();
  if (group == 0) {
    keep_registers<T::kCopyRegisters>();
    copy_queries<S>(p, g, base);
  } else if (group <= T::kReaders) {
    take_registers<T::kReadRegisters>();
    read_queries<S, kDen>(p, g, base);
  } else {
    take_registers<T::kSumRegisters>();
    sum_queries<S>(p, base);
  }
}

template <class S, bool kDen = false>
void launch_role_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  using T = QueryRoleTiles<S>;
  launch_persistent(role_query_gradient_kernel<S, kDen>, T::kThreads, T::kBytes, a, stream,
                    "sm90 role_query_gradient_kernel", g);
}

}  // namespace mhla::sm90
