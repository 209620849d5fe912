// Forward of the bidirectional form on Hopper. Short sequences of heads that suit a warpgroup go over all pairs of
// tokens (short_kernel). Where a head's summaries fit shared memory, one kernel does everything and memory sees q, k, v
// and out once (bidirectional_fused_sm90.cu). Where they do not and the sequence is short, pairs again (pair_kernel).
// Else three kernels: summaries, mixing, output, in rounds of heads (kRoundBytes). So do all sequences with q_den and
// k_den, with kernels for the denominators between them (bidirectional_den_sm90.cu).
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_readout.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_short.cuh"
#include "mhla/kernels/common/cuda/sm80_padding.h"

namespace mhla {
namespace sm80 {

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
    if (p.has_den()) plan_.stages = 0, den_ = ws.take<float>(p.B * p.H * p.N, "denominators");
    if (!p.has_den() && (plan_.stages > 0 || over_pairs(p.M, p.C))) return;
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
    if (p_.has_den()) a.maybe_den = den_, a.normalized = false;
    with_spec<false>(a, [&](auto spec) {
      using S = decltype(spec);
      if (p_.has_den()) return phases<S>(a, stream);
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
      if (p_.has_den()) {
        launch_den_summaries(a, strided<const Bf16>(p_.maybe_k_den), stream);
        launch_denominators(a, strided<const Bf16>(p_.maybe_q_den), nullptr, stream);
        launch_den_readout(a, stream);
      } else {
        launch_summaries(a, stream);
        launch_readout<S>(a, stream);
      }
    }
  }

  const Problem& p_;
  FusedPlan plan_;
  std::int64_t units_ = 0, at_once_ = 0;
  uint4* packed_mix_ = nullptr;
  Bf16* summaries_ = nullptr;
  float* den_ = nullptr;  // with q_den and k_den
};

}  // namespace sm80

void bidirectional_forward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_padded(problem, workspace, [&](const Problem& padded) {
    sm80::Forward pass(padded, workspace);
    if (!workspace.counting()) pass.run();
  });
}

}  // namespace mhla
