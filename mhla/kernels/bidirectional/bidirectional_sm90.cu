// Forward of the bidirectional form on Hopper. Short sequences of heads that suit a warpgroup go over all pairs of
// tokens (short_kernel). Where a head's summaries fit shared memory, one kernel does everything and memory sees q, k, v
// and out once (bidirectional_fused_sm90.cu). Where they do not and the sequence is short, pairs again (pair_kernel).
// Else three kernels: summaries, mixing, output, in rounds of heads (kRoundBytes).
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_readout.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_short.cuh"

namespace mhla {
namespace sm90 {

struct Place {
  BlockTokens block;
  const Bf16* q;
  Bf16* out;
};

// Phase 3: out of a block for one query head after the other. S~ in shared memory, that of the next block on its way;
// warps take 16 tokens at a time.
template <class S>
__global__ void __launch_bounds__(128, S::kRows >= 8 ? 3 : 5) readout_kernel(Arguments p, int summary_bytes) {
  after_previous();
  extern __shared__ __align__(16) char shared[];  // [2]: S~, z~; places
  const int items = p.units * p.group * p.M, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  const auto unit_of = [&](int at) { return at / p.M / p.group; };
  const auto fetch = [&](int at, int buffer) {
    if (at < items) {
      const Bf16* from = p.summaries + (static_cast<std::int64_t>(unit_of(at)) * p.M + at % p.M) * (D * E + D);
      const std::uint32_t to = shared_address(shared + buffer * summary_bytes);
      for (int i = threadIdx.x; i < D * (E / 8); i += 128) {
        copy16(to + summary_row(i / (E / 8), S::kPitch) + i % (E / 8) * 16, from + i * 8, true);
      }
      for (int i = threadIdx.x; i < D / 8; i += 128) {
        copy16(to + summary_row(D, S::kPitch) + i * 16, from + D * E + i * 8, true);
      }
    }
    copy_commit();
  };
  auto* places = reinterpret_cast<Place*>(shared + 2 * summary_bytes);  // [3]: where the next blocks lie
  const auto place = [&](int at, int slot) {
    if (threadIdx.x == 0 && at < items) {
      const Unit u(p, p.first_unit + unit_of(at));
      const int head = u.head * p.group + at / p.M % p.group;
      places[slot] = Place{p.block(at % p.M), p.q.at(u.batch, head), u.out(p, head)};
    }
  };
  const int step = static_cast<int>(gridDim.x);
  int at = blockIdx.x, buffer = 0, slot = 0;
  fetch(at, 0);
  place(at, 0), place(at + step, 1);
  __syncthreads();
  Queries<S> queries;
  if (at < items) queries.load(p, places[0].q, places[0].block, warp * 16);
  for (; at < items; at += step, buffer ^= 1) {
    copy_wait<0>();
    __syncthreads();  // S~ is there, and all are done with the one before
    const int following = slot == 2 ? 0 : slot + 1;
    fetch(at + step, buffer ^ 1);
    place(at + 2 * step, following == 2 ? 0 : following + 1);
    const Place &here = places[slot], &there = places[following];
    const int size = static_cast<int>(here.block.size);
    bool loaded = false;  // the first tile of the next block
    for (int first = warp * 16; first < size; first += 64) {
      Queries<S> now = queries;
      if (first + 64 < size) {
        queries.load(p, here.q, here.block, first + 64);
      } else if (at + step < items) {
        queries.load(p, there.q, there.block, warp * 16);
        loaded = true;
      }
      const Readout<S> x(p, now, shared + buffer * summary_bytes);
      write_outputs<S>(p, x, here.out, here.block, first);
    }
    if (!loaded && at + step < items) queries.load(p, there.q, there.block, warp * 16);
    slot = following;
  }
}

// out = sum_s m(t, s) (q~_t k~_s) [v_s 1], R tiles of queries per warp at a time.
template <class S, int R>
__global__ void __launch_bounds__(kPairThreads, S::kRows >= 8 ? 1 : 2) pair_kernel(Arguments p, PairShape shape) {
  after_previous();
  extern __shared__ __align__(16) char shared[];
  PairWork<S> work(p, shape, shared);
  const PairTable& table = work.table;
  const int tiles = shape.tiles, kv = work.head / p.group, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  work.fill_tokens();
  work.fetch(p.k.at(work.batch, kv), p.k.token, p.v.at(work.batch, kv), p.v.token);
  work.fill_mix(work.head);
  const std::uint32_t ones = threadIdx.x % 32 < 4 ? 0x3f803f80u : 0u;  // column 0
  for (int own = warp * R; own == warp * R || own < tiles; own += kPairWarps * R) {
    std::uint32_t q[R][S::kRows][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      TileRows(table, own + r, tiles).load(q[r], p.q.at(work.batch, work.head), p.q.token, D);
      map_fragments<S>(p, q[r]);
    }
    float acc[R][S::kColumns][4] = {}, den[R][4] = {};
    for (int stage = 0; stage * kPairStageTiles < tiles; ++stage) {
      if (own == warp * R) work.arrive(stage);
      work.each_tile(stage, [&](int, int tile, auto whole) {
        const int count = whole ? 16 : table.counts[tile];
        float c[R][2][4] = {};
        multiply_pairs<S, R>(c, q, work.first + tile * 16 * S::kPitch, D);
        std::uint32_t a[R][4];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float m = table.mix[min(own + r, tiles - 1)][tile];
          each_pair([&](int t, int j, int column) { c[r][t][j] = whole || column < count ? c[r][t][j] * m : 0.0f; });
          pair_fragment(c[r], a[r]);
          multiply_add(den[r], a[r], ones, ones);
        }
        multiply_values<S, R>(acc, a, work.second + tile * 16 * S::kPitch);
      });
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float factors[2] = {output_factor(p, den[r][0]), output_factor(p, den[r][2])};
      TileRows(table, own + r, tiles).write<false>(acc[r], factors, p.out.at(work.batch, work.head), p.out.token, E);
    }
  }
}

class Forward {
 public:
  Forward(const Problem& p, Workspace& ws)
      : p_(p), plan_(fused_plan(p.M, p.D, tiles_of(p.D, p.E))), units_(p.B * p.Hkv) {
    if (plan_.stages > 0 || over_pairs(p.M, p.C)) return;
    const std::int64_t block = p.D * p.E + p.D;
    packed_mix_ = ws.take<uint4>(p.Hm * packed_mix_units(mix_rows_of(p), p.M), "packed mix");
    at_once_ = units_at_once(units_, 2 * p.M * block);
    summaries_ = ws.take<Bf16>(at_once_ * p.M * block, "summaries");
  }

  void run() {
    Arguments a = arguments_of(p_);
    a.packed_mix = packed_mix_, a.summaries = a.mixed = summaries_;
    a.units = static_cast<int>(units_);
    const cudaStream_t stream = stream_of(p_.stream);
    with_spec<false>(a, [&](auto spec) {
      using S = decltype(spec);
      if constexpr (S::kRows == 4) {
        if (on_warpgroups(p_.M, p_.C, S::kTiles)) return squares<S>(a, stream);
      } else {
        if (plan_.stages == 0 && over_pairs(p_.M, p_.C)) return pairs<S>(a, stream);
      }
      plan_.stages > 0 ? launch_fused(a, plan_, stream) : phases<S>(a, stream);
    });
  }

 private:
  template <class S>
  void pairs(const Arguments& a, cudaStream_t stream) {
    const auto kernel = pair_kernel<S, (S::kRows >= 8 ? 1 : 2)>;  // as registers allow
    const PairShape shape = pair_shape(p_, p_.H);
    const int bytes = pair_shared_bytes<S>(shape.tiles);
    launch_next("sm90 pair_kernel", kernel, static_cast<unsigned>(p_.B * p_.H), kPairThreads, bytes, stream, a, shape);
  }

  template <class S>
  void squares(const Arguments& a, cudaStream_t stream) {
    const PairShape shape = pair_shape(p_, p_.H);
    const int groups = short_groups(panel_rows(shape.tiles)), threads = groups * 128,
              bytes = short_shared_bytes(groups);
    const auto kernel = groups == 1 ? short_kernel<S, 1> : groups == 2 ? short_kernel<S, 2> : short_kernel<S, 4>;
    const std::int64_t heads = p_.B * p_.H;
    launch_next("sm90 short_kernel", kernel, blocks_for(kernel, threads, bytes, heads), threads, bytes, stream, a,
                shape, static_cast<int>(heads));
  }

  template <class S>
  void phases(Arguments a, cudaStream_t stream) {
    launch_pack_mix(a, static_cast<int>(p_.Hm), false, stream);
    for (std::int64_t first = 0; first < units_; first += at_once_) {
      a.first_unit = static_cast<int>(first), a.units = static_cast<int>(std::min(at_once_, units_ - first));
      launch_summaries(a, stream);
      const std::int64_t items = std::int64_t{a.units} * a.group * a.M;
      const bool panels = on_panels<S>(a, [&](auto spec) {
        using T = ReadoutTiles<decltype(spec)>;
        const auto kernel = panel_readout_kernel<decltype(spec)>;
        launch_next("sm90 panel_readout_kernel", kernel, blocks_for(kernel, T::kThreads, T::kBytes, items), T::kThreads,
                    T::kBytes, stream, a);
      });
      if (!panels) {
        const int summary = summary_bytes(a.D, S::kTiles), bytes = 2 * summary + 3 * static_cast<int>(sizeof(Place));
        launch_next("sm90 readout_kernel", readout_kernel<S>, blocks_for(readout_kernel<S>, 128, bytes, items), 128,
                    bytes, stream, a, summary);
      }
    }
  }

  const Problem& p_;
  FusedPlan plan_;
  std::int64_t units_ = 0, at_once_ = 0;
  uint4* packed_mix_ = nullptr;
  Bf16* summaries_ = nullptr;
};

}  // namespace sm90

void bidirectional_forward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm90::Forward pass(problem, workspace);
  if (!workspace.counting()) pass.run();
}

}  // namespace mhla
