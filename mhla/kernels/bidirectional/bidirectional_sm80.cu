// Forward of the bidirectional form in bf16: candidate `sm80`, and `sm90`, which has kernels of its own for short
// sequences of heads that suit a warpgroup, for equal blocks that come in boxes and for long blocks
// (bidirectional_sm90.cuh). Where a head's summaries fit shared memory, one kernel does everything and memory sees q,
// k, v and out once (bidirectional_fused_sm80.cu). Where they do not and the sequence is short, sums go over all pairs
// of tokens (pair_kernel). Else three kernels: summaries, mixing, output, in rounds of heads (kRoundBytes). So do all
// sequences with q_den and k_den, with kernels for the denominators between them (bidirectional_den_sm80.cu).
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80_cuts.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80_pairs.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80_readout.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
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
  Forward(const Problem& p, Workspace& ws, bool hopper)
      : p_(p), tiles_(tiles_of(p.D, p.E)), hopper_(hopper), units_(p.B * p.Hkv) {
    const int most = most_shared_bytes(p.q.device);
    if (p.has_den()) {
      den_ = ws.take<float>(p.B * p.H * p.N, "denominators");
    } else {
      short_ = hopper && on_warpgroups(p.M, p.C, tiles_);
      if (p.N <= kMostFusedTokens) plan_ = fused_plan(p.M, p.D, tiles_, most);
      pairs_ = over_pairs(p.M, p.C, tiles_, most);
      if (hopper && boxes_take(p.q) && boxes_take(p.k) && boxes_take(p.v) && boxes_take(p.out)) {
        const sm90::BlockBoxes boxes = sm90::block_boxes(p.layout, p.N);
        short_boxes_ = sm90::pairs_in_boxes(p.M, p.C, tiles_, boxes);
        boxes_ = sm90::box_plan(p.M, p.N, p.D, tiles_, boxes, most);
      }
      if (short_ || boxes_.fits || pairs_ || plan_.stages > 0) return;
    }
    const std::int64_t block = p.D * p.E + p.D;
    packed_mix_ = ws.take<uint4>(p.Hm * packed_mix_units(mix_rows_of(p, hopper), p.M), "packed mix");
    at_once_ = units_at_once(units_, 2 * p.M * block);
    if (!p.has_den()) kept_ = KeptSums(p, units_ * p.M, block);
    if (!kept_.given()) summaries_ = ws.take<Bf16>(at_once_ * p.M * block, "summaries");
  }

  void run() {
    Arguments a = arguments_of(p_, hopper_);
    a.packed_mix = packed_mix_, a.summaries = a.mixed = summaries_;
    a.units = static_cast<int>(units_);
    const cudaStream_t stream = stream_of(p_.stream);
    if (p_.has_den()) a.maybe_den = den_, a.normalized = false;
    if (short_boxes_) return sm90::launch_short_boxes(p_, a, stream);
    if (short_) return sm90::launch_short(p_, a, stream);
    if (boxes_.fits) return sm90::launch_box_fused(p_, a, boxes_, stream);
    if (plan_.stages > 0) return launch_fused(a, plan_, stream);
    pairs_ ? pairs(a, stream) : phases(a, stream);
  }

 private:
  void pairs(const Arguments& a, cudaStream_t stream) const {
    const PairShape shape = pair_shape(p_, p_.H);
    const int bytes = pair_shared_bytes(shape.tiles, tiles_);
    with_spec<false>(a, [&](auto spec) {
      using S = decltype(spec);
      const auto kernel = pair_kernel<S, (S::kRows >= 8 ? 1 : 2)>;  // as registers allow
      launch_next("pair_kernel", kernel, static_cast<unsigned>(p_.B * p_.H), kPairThreads, bytes, stream, a, shape);
    });
  }

  void phases(Arguments a, cudaStream_t stream) const {
    launch_pack_mix(a, static_cast<int>(p_.Hm), false, stream);
    for (std::int64_t first = 0; first < units_; first += at_once_) {
      a.first_unit = static_cast<int>(first), a.units = static_cast<int>(std::min(at_once_, units_ - first));
      if (kept_.given()) a.summaries = kept_.summaries(first * p_.M), a.mixed = kept_.mixed(first * p_.M);
      if (p_.has_den()) {
        launch_den_summaries(a, strided<const Bf16>(p_.maybe_k_den), stream);
        launch_denominators(a, strided<const Bf16>(p_.maybe_q_den), nullptr, stream);
        launch_den_readout(a, stream);
      } else {
        launch_summaries(a, stream);
        read_out(a, stream);
      }
    }
  }

  static void read_out(const Arguments& a, cudaStream_t stream) {
    if (on_panels(a)) return sm90::launch_panel_readout(a, stream);
    with_spec<false>(a, [&](auto spec) { launch_readout<decltype(spec)>(a, stream); });
  }

  const Problem& p_;
  Tiles tiles_;
  bool hopper_ = false, short_ = false, short_boxes_ = false, pairs_ = false;
  FusedPlan plan_;
  sm90::BoxPlan boxes_;
  std::int64_t units_ = 0, at_once_ = 0;
  uint4* packed_mix_ = nullptr;
  KeptSums kept_;
  Bf16* summaries_ = nullptr;
  float* den_ = nullptr;  // with q_den and k_den
};

void run_forward(const Problem& problem, Workspace& workspace, bool hopper) {
  run_padded(problem, workspace, [&](const Problem& padded) {
    run_cut(padded, workspace, [&](const Problem& cut) {
      Forward pass(cut, workspace, hopper);
      if (!workspace.counting()) pass.run();
    });
  });
}

}  // namespace sm80

void bidirectional_forward_sm80(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_forward(problem, workspace, false);
}
void bidirectional_forward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_forward(problem, workspace, true);
}

}  // namespace mhla
