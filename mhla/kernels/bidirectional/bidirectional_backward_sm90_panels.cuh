// The backward phases of common/cuda/sm80_backward.cuh on warpgroups, for heads whose tiles fill panels. The first
// warpgroup copies, the others multiply. Queries of heads that fill two panels have a kernel with more roles
// (bidirectional_backward_sm90_queries.cuh).
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_queries.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"
#include "mhla/kernels/common/cuda/sm90_items.cuh"

namespace mhla::sm90 {

// Queries of heads that fill one panel: a warpgroup has 64 tokens of a tile for dq, then all of dS~ over them.
template <class S>
struct QueryGradientTiles {
  static constexpr int kPanels = 1, kGroups = 1, kTokens = 64, kStages = 4;
  static constexpr int kThreads = (1 + kGroups) * kGroupThreads, kBlocks = 2;
  static constexpr int kTile = kPanels * kPanelBytes, kPair = 2 * kTile,
                       kStage = kGroups * kPair;  // 64 tokens; q, dout
  static constexpr int kSummary = kSummaryPanelBytes<kPanels>, kZ = kPanels * kPanels * kPanelBytes;
  static constexpr int kSummariesAt = kStages * kStage;
  static constexpr int kTermsAt = kSummariesAt + 2 * kSummary;             // [2][kGroups] c of 64 tokens, in eight rows
  static constexpr int kWeightsAt = kTermsAt + 2 * kGroups * kPanelAlign;  // [2][kTokens] w
  static constexpr int kRingAt = kWeightsAt + 2 * kTokens * 4, kSummaryRingAt = kRingAt + Ring<kStages>::kBytes;
  static constexpr int kItemsAt = kSummaryRingAt + Ring<2>::kBytes, kBytes = kPanelAlign + kItemsAt + kItemQueueBytes;
  static_assert(S::kRows / 4 == kPanels);
  static_assert(kSummary % kPanelAlign == 0 && kBytes <= kMaxSharedBytes &&
                kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

// w = scale / den and c = -(num . dout) / den of 64 tokens, and dq~ = w (dout S~^T + c z~). kDen: den of the tokens of
// the head is in memory, and its gradient w c goes there instead.
template <class S, bool kDen>
__device__ inline void panel_query_gradient(const Arguments& p, const Gradients& g, const char* q, const char* dout,
                                            const char* summary, const BlockTokens& block, int first, Bf16* maybe_dq,
                                            float* weights, char* terms, const float* all_den, float* all_dden) {
  using T = QueryGradientTiles<S>;
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4, place = first + row,
            last = static_cast<int>(block.size) - 1, D = S::D(p);
  const std::uint64_t left = panel_descriptor(shared_address(dout)), right = panel_descriptor(shared_address(summary));
  Accumulator acc[T::kPanels];  // dout S~^T
  begin_products(acc);
#pragma unroll
  for (int panel = 0; panel < T::kPanels; ++panel) {
#pragma unroll
    for (int step = 0; step < 4 * T::kPanels; ++step) {
      multiply_panels(acc[panel], left + step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns,
                      right + (step / 4 * T::kPanels + panel) * (kPanelBytes / 16) + step % 4 * kNextColumns, step > 0);
    }
  }
  finish_products(acc);
  // f(panel, tile, z~ of its two columns of this lane)
  const auto each_z = [&](const auto& f) {
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        f(panel, j,
          unpack_bf16(*reinterpret_cast<const std::uint32_t*>(summary + T::kZ + panel * 8 * kPanelRowBytes + j * 16 +
                                                              lane % 4 * 4)));
      }
    }
  };
  float den[2] = {}, dot[2] = {};
  each_z([&](int panel, int j, float2 z) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto raw = *reinterpret_cast<const std::uint32_t*>(q + panel * kPanelBytes +
                                                               panel_offset(row + half * 8, j) + lane % 4 * 4);
      const float2 x = unpack_bf16(feature_pair(S::map(p), raw));
      if (panel * 64 + j * 8 >= D) continue;
      den[half] = fmaf(x.x, z.x, fmaf(x.y, z.y, den[half]));
      dot[half] = fmaf(x.x, acc[panel][j][2 * half], fmaf(x.y, acc[panel][j][2 * half + 1], dot[half]));
    }
  });
  float w[2], c[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool valid = place + half * 8 <= last;
    const float total = p.eps + quad_sum(den[half]), sum = quad_sum(dot[half]);
    w[half] = !valid ? 0.0f : p.normalized ? p.scale / total : p.scale;
    c[half] = valid && p.normalized ? -sum / total : 0.0f;
    if constexpr (kDen) {
      const std::int64_t at = block.token(min(place + half * 8, last));
      const float given = __ldcg(all_den + at);
      w[half] = valid ? p.scale / given : 0.0f, c[half] = 0.0f;
      if (valid && lane % 4 == 0) all_dden[at] = -w[half] * (sum / given);
    }
    const int token = row + half * 8;
    if (lane % 4 == 0) weights[token] = w[half];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int copy = lane % 4 * 2 + i;
      *reinterpret_cast<Bf16*>(terms + panel_offset(copy, token / 8) + token % 8 * 2) = __float2bfloat16_rn(c[half]);
    }
  }
  if (maybe_dq == nullptr) return;
  if constexpr (!kDen) {
    each_z([&](int panel, int j, float2 z) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        acc[panel][j][2 * half] = fmaf(c[half], z.x, acc[panel][j][2 * half]);
        acc[panel][j][2 * half + 1] = fmaf(c[half], z.y, acc[panel][j][2 * half + 1]);
      }
    });
  }
  Bf16 *upper = maybe_dq + block.token(min(place, last)) * g.dq.token,
       *lower = maybe_dq + block.token(min(place + 8, last)) * g.dq.token;
#pragma unroll
  for (int panel = 0; panel < T::kPanels; ++panel) {
    const int column = panel * 64, X = min(64, D - column);
    const char* x = q + panel * kPanelBytes;
    write_panel_row<0, true>(acc[panel], w[0], place <= last, upper + column, X, S::map(p), x, row);
    write_panel_row<1, true>(acc[panel], w[1], place + 8 <= last, lower + column, X, S::map(p), x, row + 8);
  }
}

template <class S, bool kDen = false>
__global__ void __launch_bounds__(QueryGradientTiles<S>::kThreads, QueryGradientTiles<S>::kBlocks)
    panel_query_gradient_kernel(Arguments p, Gradients g) {
  using T = QueryGradientTiles<S>;
  extern __shared__ char unaligned[];  // [kStages][kGroups] q, dout; [2] S~, z~; c; w; rings; items
  char* const shared = aligned_panels(unaligned);
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + T::kRingAt};
  const Ring<2> summary_ring{base + T::kSummaryRingAt};
  const ItemQueue items{base + T::kItemsAt, p.maybe_taken, p.units * p.M};
  const int group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) {
    ring.init(T::kGroups * 4), summary_ring.init(T::kGroups * 4), items.init(T::kThreads);
  }
  publish_shared();
  __syncthreads();
  after_previous();
  RingPlace<T::kStages> at;
  if (group == 0) {
    TileMover mover;
    for (ItemWalk walk(items, threadIdx.x == 0); walk.more(); walk.next()) {
      const int i = walk.item;
      const Item item(p, i);
      summary_ring.wait_empty(walk.place);
      copy_summary_and_z<T::kPanels>(p.query_sums + static_cast<std::int64_t>(i) * (D * E + D), D, E,
                                     base + T::kSummariesAt + walk.place.stage * T::kSummary);
      summary_ring.copied(walk.place);
      for (int h = 0; h < p.group; ++h) {
        const int head = item.u.head * p.group + h;
        const Bf16 *q = p.q.at(item.u.batch, head), *dout = g.dout.at(item.u.batch, head);
        for (int first = 0; first < static_cast<int>(item.block.size); first += T::kTokens, at.next()) {
          ring.wait_empty(at);
#pragma unroll
          for (int part = 0; part < T::kGroups; ++part) {
            const std::uint32_t to = base + at.stage * T::kStage + part * T::kPair;
            mover.find(item.block, first + part * 64);
            mover.copy<T::kPanels>(q, p.q.token, D, to);
            mover.copy<T::kPanels>(dout, g.dout.token, E, to + T::kTile);
          }
          ring.copied(at);
        }
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    const int own = group - 1, lane = threadIdx.x % 32,
              d = own * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    int turn = 0;  // of w and c
    for (ItemWalk walk(items, false); walk.more(); walk.next()) {
      const int i = walk.item;
      const Item item(p, i);
      const int size = static_cast<int>(item.block.size);
      const char* summary = shared + T::kSummariesAt + walk.place.stage * T::kSummary;
      summary_ring.wait_full(walk.place);
      Accumulator acc[T::kPanels] = {};
      float z[4] = {};
      for (int h = 0; h < p.group; ++h) {
        const int head = item.u.head * p.group + h;
        Bf16* maybe_dq = g.dq.data == nullptr ? nullptr : g.dq.at(item.u.batch, head);
        for (int first = 0; first < size; first += T::kTokens, at.next(), turn ^= 1) {
          const char* stage = shared + at.stage * T::kStage;
          float* weights = reinterpret_cast<float*>(shared + T::kWeightsAt) + turn * T::kTokens;
          char* terms = shared + T::kTermsAt + turn * T::kGroups * kPanelAlign;
          ring.wait_full(at);
          publish_shared();  // copies were ordinary writes
          panel_query_gradient<S, kDen>(p, g, stage + own * T::kPair, stage + own * T::kPair + T::kTile, summary,
                                        item.block, first + own * 64, maybe_dq, weights + own * 64,
                                        terms + own * kPanelAlign, kDen ? p.den_row(item.u.batch, head) : nullptr,
                                        kDen ? g.dden_row(p, item.u.batch, head) : nullptr);
          publish_shared();
          named_barrier(1, T::kGroups * kGroupThreads);  // w and c are there
#pragma unroll
          for (int part = 0; part < T::kGroups; ++part) {
            const std::uint32_t q = base + at.stage * T::kStage + part * T::kPair;
            const std::uint64_t dout = panel_descriptor(q + T::kTile),
                                term = panel_descriptor(shared_address(terms + part * kPanelAlign));
            std::uint32_t a[4][4];
            load_panel_columns(a, q + own * kPanelBytes);
#pragma unroll
            for (int step = 0; step < 4; ++step) {
              feature_fragment(S::map(p), a[step]);
#pragma unroll
              for (int side = 0; side < 2; ++side) {
                const float2 w =
                    *reinterpret_cast<const float2*>(weights + part * 64 + step * 16 + side * 8 + lane % 4 * 2);
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                  const float2 x = unpack_bf16(a[step][side * 2 + k]);
                  a[step][side * 2 + k] = pack_bf16(x.x * w.x, x.y * w.y);
                }
              }
            }
            begin_products(acc, z);
#pragma unroll
            for (int step = 0; step < 4; ++step) {
#pragma unroll
              for (int panel = 0; panel < T::kPanels; ++panel) {
                multiply_panel_rows(acc[panel], a[step], dout + panel * (kPanelBytes / 16) + step * kNextRows);
              }
              add_row_sums(z, a[step], term + step * kNextColumns);
            }
            finish_products(acc, z);
          }
          ring.release(at);
        }
      }
      summary_ring.release(walk.place);
      Bf16* to = p.mixed + static_cast<std::int64_t>(i) * (D * E + D);
#pragma unroll
      for (int panel = 0; panel < T::kPanels; ++panel) {
        const int column = panel * 64, X = min(64, E - column);
        write_panel_row<0>(acc[panel], 1.0f, d < D, to + d * E + column, X);
        write_panel_row<1>(acc[panel], 1.0f, d + 8 < D, to + (d + 8) * E + column, X);
      }
      if (lane % 4 == 0 && d < D) to[D * E + d] = __float2bfloat16_rn(z[0]);
      if (lane % 4 == 0 && d + 8 < D) to[D * E + d + 8] = __float2bfloat16_rn(z[2]);
    }
  }
}

// Keys: two warpgroups take tiles of 64 tokens in turn, dk~ = v dS^T + dz, dv = k~ dS.
template <class S>
struct KeyGradientTiles {
  static constexpr int kPanels = S::kRows / 4, kStages = 4, kReaders = 2, kThreads = (1 + kReaders) * kGroupThreads;
  static constexpr int kTile = kPanels * kPanelBytes, kStage = 2 * kTile;  // of k or v; of both
  static constexpr int kSummary = kSummaryPanelBytes<kPanels>, kZ = kPanels * kPanels * kPanelBytes;
  static constexpr int kSummariesAt = kStages * kStage, kRingAt = kSummariesAt + 2 * kSummary,
                       kSummaryRingAt = kRingAt + Ring<kStages>::kBytes;
  static constexpr int kItemsAt = kSummaryRingAt + Ring<2>::kBytes, kBytes = kPanelAlign + kItemsAt + kItemQueueBytes;
  static constexpr int kBlocks = kPanels == 1 ? 2 : 1;
  static_assert(kStages % kReaders == 0 && kBytes <= kMaxSharedBytes && kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

template <class S>
__global__ void __launch_bounds__(KeyGradientTiles<S>::kThreads, KeyGradientTiles<S>::kBlocks)
    panel_key_gradient_kernel(Arguments p, Gradients g) {
  using T = KeyGradientTiles<S>;
  extern __shared__ char unaligned[];  // [kStages] k, v; [2] dS, dz; rings; items
  char* const shared = aligned_panels(unaligned);
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + T::kRingAt};
  const Ring<2> summary_ring{base + T::kSummaryRingAt};
  const ItemQueue items{base + T::kItemsAt, p.maybe_taken, p.units * p.M};
  const int group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) ring.init(4), summary_ring.init(T::kReaders * 4), items.init(T::kThreads);
  publish_shared();
  __syncthreads();
  after_previous();
  RingPlace<T::kStages> at;
  if (group == 0) {
    TileMover mover;
    for (ItemWalk walk(items, threadIdx.x == 0); walk.more(); walk.next()) {
      const int i = walk.item;
      const Item item(p, i);
      const Bf16 *k = item.u.k(p), *v = item.u.v(p);
      summary_ring.wait_empty(walk.place);
      copy_summary_and_z<T::kPanels>(p.mixed + static_cast<std::int64_t>(i) * (D * E + D), D, E,
                                     base + T::kSummariesAt + walk.place.stage * T::kSummary);
      summary_ring.copied(walk.place);
      for (int first = 0; first < static_cast<int>(item.block.size); first += 64, at.next()) {
        mover.find(item.block, first);
        ring.wait_empty(at);
        mover.copy<T::kPanels>(k, p.k.token, D, base + at.stage * T::kStage);
        mover.copy<T::kPanels>(v, p.v.token, E, base + at.stage * T::kStage + T::kTile);
        ring.copied(at);
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    int turn = 1;  // whose tile comes next
    for (ItemWalk walk(items, false); walk.more(); walk.next()) {
      const Item item(p, walk.item);
      const int last = static_cast<int>(item.block.size) - 1;
      const char* summary = shared + T::kSummariesAt + walk.place.stage * T::kSummary;
      const std::uint64_t rows = panel_descriptor(shared_address(summary));
      summary_ring.wait_full(walk.place);
      for (int first = 0; first <= last; first += 64, at.next(), turn = turn == T::kReaders ? 1 : turn + 1) {
        if (turn != group) continue;
        const char* k = shared + at.stage * T::kStage;
        const std::uint64_t v = panel_descriptor(shared_address(k + T::kTile));
        const int place = first + row;
        const std::int64_t token[2] = {item.block.token(min(place, last)), item.block.token(min(place + 8, last))};
        ring.wait_full(at);
        publish_shared();  // copies were ordinary writes
        if (g.dv.data != nullptr) {
          std::uint32_t a[4 * T::kPanels][4];
          load_panel_rows<T::kPanels>(a, shared_address(k));
#pragma unroll
          for (int step = 0; step < 4 * T::kPanels; ++step) feature_fragment(S::map(p), a[step]);
          Accumulator acc[T::kPanels] = {};
          begin_products(acc);
#pragma unroll
          for (int step = 0; step < 4 * T::kPanels; ++step) {
#pragma unroll
            for (int panel = 0; panel < T::kPanels; ++panel) {
              multiply_panel_rows(acc[panel], a[step],
                                  rows + panel * T::kPanels * (kPanelBytes / 16) + step * kNextRows);
            }
          }
          finish_products(acc);
          Bf16* dv = g.dv.at(item.u.batch, item.u.head);
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
            const int column = panel * 64, X = min(64, E - column);
            write_panel_row<0>(acc[panel], 1.0f, place <= last, dv + token[0] * g.dv.token + column, X);
            write_panel_row<1>(acc[panel], 1.0f, place + 8 <= last, dv + token[1] * g.dv.token + column, X);
          }
        }
        if (g.dk.data != nullptr) {
          Accumulator acc[T::kPanels];
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float2 z = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
                  summary + T::kZ + panel * 8 * kPanelRowBytes + j * 16 + lane % 4 * 4));
              acc[panel][j][0] = acc[panel][j][2] = p.normalized ? z.x : 0.0f;
              acc[panel][j][1] = acc[panel][j][3] = p.normalized ? z.y : 0.0f;
            }
          }
          begin_products(acc);
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
#pragma unroll
            for (int step = 0; step < 4 * T::kPanels; ++step) {
              multiply_panels(acc[panel], v + step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns,
                              rows + (step / 4 * T::kPanels + panel) * (kPanelBytes / 16) + step % 4 * kNextColumns,
                              true);
            }
          }
          finish_products(acc);
          Bf16* dk = g.dk.at(item.u.batch, item.u.head);
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
            const int column = panel * 64, X = min(64, D - column);
            const char* x = k + panel * kPanelBytes;
            write_panel_row<0, true>(acc[panel], 1.0f, place <= last, dk + token[0] * g.dk.token + column, X, S::map(p),
                                     x, row);
            write_panel_row<1, true>(acc[panel], 1.0f, place + 8 <= last, dk + token[1] * g.dk.token + column, X,
                                     S::map(p), x, row + 8);
          }
        }
        ring.release(at);
      }
      summary_ring.release(walk.place);
    }
  }
}

template <class S, bool kDen = false>
void launch_panel_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  if constexpr (S::kRows == 8) {
    launch_role_query_gradient<S, kDen>(a, g, stream);
  } else {
    using T = QueryGradientTiles<S>;
    launch_persistent(panel_query_gradient_kernel<S, kDen>, T::kThreads, T::kBytes, a, stream,
                      "sm90 panel_query_gradient_kernel", g);
  }
}

}  // namespace mhla::sm90
