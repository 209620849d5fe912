// Backward of the causal form in bf16, candidates `sm80` and `sm90` (chunkwise_backward_sm80.cuh): summaries and
// prefixes, again or kept by forward (KeptSums), dq with w and c of every token, dP, dmix, dS in place of dP, then dk
// and dv, in rounds of heads (kRoundBytes). Without a normaliser, and with up to 32 or 65 to 128 rows of mix, `sm90`
// makes S and dP first and mixes both at once. Workspace: 4 M (D E + D) bytes per kv head of a round, half of that
// where summaries were kept, 8 bytes per token and query head, dmix in parts. Packed sequences go group by group
// (chunkwise_sm80_plan.h).
#include "mhla/core/workspace.h"
#include "mhla/kernels/chunkwise/chunkwise_backward_sm80.cuh"
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_summaries_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"

namespace mhla {
namespace sm80 {
namespace {

// dP_i = sum_t (w q~_t)^T [dout_t c_t], in p.mixed: a block of threads per chunk and part.
template <class S>
__global__ void __launch_bounds__(S::kRows * 32, S::kRows >= 8 ? 2 : 4)
    prefix_gradient_kernel(Arguments p, Gradients g) {
  after_previous();
  constexpr int kStage = 2 * kChunkTileBytes<S> + kPhaseTokens * 8;
  extern __shared__ __align__(16) char shared[];  // [2] q, dout, weights
  const int unit = blockIdx.x / p.M, index = blockIdx.x % p.M, row = threadIdx.x / 32 * 16, D = S::D(p), E = S::E(p);
  const Unit u(p, p.first_unit + unit);
  const BlockTokens block = u.block(p, index);
  const int size = static_cast<int>(block.size), tiles = (size + kPhaseTokens - 1) / kPhaseTokens;
  const auto fetch = [&](int at) {  // tiles of one query head of the group after the other
    if (at < tiles * p.group) {
      const int head = u.head * p.group + at / tiles, first = at % tiles * kPhaseTokens;
      char* to = shared + at % 2 * kStage;
      copy_pair_rows<S, kPhaseTokens>(p, p.q.at(u.batch, head), p.q.token, g.dout.at(u.batch, head) + u.part * E,
                                      g.dout.token, block, first, to);
      auto* const weights_to = reinterpret_cast<float2*>(to + 2 * kChunkTileBytes<S>);
      const float2* weights =
          g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + block.origin + first;
      for (int t = threadIdx.x; t < kPhaseTokens; t += blockDim.x) {
        const bool valid = first + t < size;
        if (g.weights == nullptr) {
          weights_to[t] = {p.scale, 0.0f};
        } else {
          copy8(shared_address(weights_to + t), valid ? weights + t : weights, valid);
        }
      }
    }
    copy_commit();
  };
  SummaryGradient<S, S::kColumns> gradient;
  fetch(0);
  for (int at = 0; at < tiles * p.group; ++at) {
    fetch(at + 1);
    copy_wait<1>();
    __syncthreads();
    const char *q = shared + at % 2 * kStage, *dout = q + kChunkTileBytes<S>;
    const auto* weights = reinterpret_cast<const float2*>(q + 2 * kChunkTileBytes<S>);
    for (int step = 0; step < 4 && at % tiles * kPhaseTokens + step * 16 < size; ++step) {
      gradient.add(p, q + step * 16 * S::kPitch, dout + step * 16 * S::kPitch, weights + step * 16, row, 0);
    }
    __syncthreads();
  }
  if (u.part > 0) gradient.z[0] = gradient.z[2] = 0;  // the denominator's gradient counts once
  gradient.write(p, shared, p.mixed + static_cast<std::int64_t>(blockIdx.x) * (D * E + D), row, 0);
}

class CausalBackward {
 public:
  CausalBackward(const Problem& p, Workspace& ws, bool hopper)
      : p_(p), hopper_(hopper), plan_(sequence_plan(p)), parts_(column_parts(p.E)) {
    const std::int64_t block = p.D * (p.E / parts_) + p.D;
    tiles_ = static_cast<int>((p.C + kPhaseTokens - 1) / kPhaseTokens);
    packed_mix_ =
        ws.take<uint4>(2 * p.Hm * packed_mix_units(mix_rows_of(p, hopper), p.M), "packed mix and its transpose");
    std::int64_t summaries = 0, mix_parts = 0, diagonals = 0;  // of the largest group: one after the other has them
    for (const SequenceGroup& group : plan_.groups) {
      const Rounds rounds(p, group, parts_, hopper);
      summaries = std::max(summaries, rounds.at_once * parts_ * group.chunks * block);
      mix_parts = std::max(mix_parts, rounds.mix.floats());
      diagonals = std::max(diagonals, rounds.heads * group.chunks * tiles_);
    }
    kept_ = KeptSums(p, plan_.chunks * p.Hkv * parts_, block);
    if (!kept_.given()) summaries_ = ws.take<Bf16>(summaries, "summaries");
    mixed_ = ws.take<Bf16>(summaries, "prefixes");
    weights_ = ws.take<float2>(p.B * p.H * p.N, "weights of tokens");
    ranges_ = ws.take<TokenRange>(static_cast<std::int64_t>(plan_.ranges.size()), "packed sequences");
    if (!p.dmix.given()) return;
    mix_parts_ = ws.take<float>(mix_parts, "parts of dmix");
    diagonal_ = ws.take<float>(diagonals, "parts of the diagonal of dmix");
    if (p.M > p.L || plan_.groups.size() > 1) whole_ = ws.take<double>(p.Hm * p.M * p.M, "dmix of all chunks");
  }

  void run() {
    Arguments a = arguments_of(p_, hopper_);
    a.parts = static_cast<int>(parts_), a.E = static_cast<int>(p_.E / parts_);
    Gradients g = gradients_of(p_);
    g.weights = weights_, g.parts = mix_parts_, g.maybe_diagonal = diagonal_, g.diagonals = tiles_;
    g.maybe_whole = whole_, g.whole_rows = a.M;
    const cudaStream_t stream = stream_of(p_.stream);
    launch_ranges(plan_.ranges, ranges_, stream);
    for (const SequenceGroup& group : plan_.groups) {
      a.M = static_cast<int>(group.chunks);
      a.maybe_ranges = plan_.ranges.empty() ? nullptr : ranges_ + group.first;
      g.whole_begun = group.first > 0;
      phases(a, g, group, stream);
    }
    if (g.maybe_whole != nullptr) launch_mix_fold(g, p_.Hm, stream);
  }

 private:
  // The kv heads of a group, in rounds of equal size.
  struct Rounds {
    std::int64_t heads, at_once, count;
    MixGradient mix;
    Rounds(const Problem& p, const SequenceGroup& group, std::int64_t parts, bool hopper) : heads(group.count * p.Hkv) {
      const std::int64_t block = p.D * (p.E / parts) + p.D;
      at_once = units_at_once(heads, 4 * parts * group.chunks * block);
      count = (heads + at_once - 1) / at_once;
      mix = MixGradient(group.chunks, p.Hm, heads * parts, block, count, hopper, true);
    }
  };

  void phases(Arguments a, const Gradients& g, const SequenceGroup& group, cudaStream_t stream) const {
    const Rounds rounds(p_, group, parts_, hopper_);
    const int mixes = static_cast<int>(p_.Hm);
    Arguments back = a;
    a.packed_mix = packed_mix_, back.packed_mix = packed_mix_ + mixes * packed_mix_units(a.mix_rows, a.M);
    const bool packs = !both_at_once(a) || mixed_on_panels(a.mix_rows);
    if (packs) {
      launch_pack_mix(a, mixes, false, stream);
      launch_pack_mix(back, mixes, true, stream);
    }
    for (std::int64_t round = 0; round < rounds.count; ++round) {
      const std::int64_t first = round * rounds.at_once, heads = std::min(rounds.at_once, rounds.heads - first);
      a.first_unit = static_cast<int>(first * parts_), a.units = static_cast<int>(heads * parts_);
      a.first_of_pass = !packs && round == 0;
      a.summaries = summaries_, a.mixed = mixed_, a.query_sums = both_at_once(a) ? summaries_ : mixed_;
      const std::int64_t kept = (group.before * p_.Hkv + first * group.chunks) * parts_;
      if (kept_.given()) a.summaries = kept_.summaries(kept), a.query_sums = kept_.mixed(kept);
      if (both_at_once(a)) {
        at_once(a, back.packed_mix, g, rounds, round, heads, stream);
        continue;
      }
      summaries(a, a, stream);
      if (!kept_.given()) launch_mix(a, false, stream);
      query_gradient(a, g, heads, stream);
      prefix_gradient(a, a, g, stream);
      if (g.dmix != nullptr) rounds.mix.launch_products(a, g, round, p_.Hm, stream);
      Arguments unmix = a;
      unmix.packed_mix = back.packed_mix;
      launch_mix(unmix, true, stream);
      key_value_gradient(a, g, heads, stream);
    }
    if (g.dmix != nullptr) rounds.mix.launch_sum(a, g, rounds.heads, p_.Hm, stream);
  }

  // S and dP first, then everything that is mixed, where dP needs no denominators.
  [[nodiscard]] bool both_at_once(const Arguments& a) const {
    return hopper_ && sm90::mixes_both_at_once(a.mix_rows, p_.normalized());
  }

  void at_once(const Arguments& a, const uint4* back_mix, const Gradients& g, const Rounds& rounds, std::int64_t round,
               std::int64_t heads, cudaStream_t stream) const {
    Arguments sums = a;
    sums.long_blocks = p_.layout.block_size > 128;
    summaries(a, sums, stream);
    Gradients free = g;
    free.weights = nullptr;
    Arguments prefixes = a;
    prefixes.first_of_pass = a.first_of_pass && kept_.given();  // else S came before
    prefix_gradient(prefixes, sums, free, stream);
    free.parts += round * rounds.mix.round_size;
    sm90::launch_mix_both(a, free, back_mix, rounds.mix.splits, p_.Hm, stream);
    query_gradient(a, g, heads, stream);
    key_value_gradient(a, g, heads, stream);
  }

  // S by the kernel of the forward pass where it takes them, else by that of `other`; nothing where it was kept.
  void summaries(const Arguments& a, const Arguments& other, cudaStream_t stream) const {
    if (kept_.given()) return;
    if (by_ring(a)) return sm90::launch_chunk_summaries(a, p_, stream);
    launch_block_summaries(other, stream);
  }
  static bool by_ring(const Arguments& a) { return on_panels(a) && sm90::takes_summary_ring(a.D, a.E); }

  // Whether Hopper's own kernels make dq, dk and dv.
  [[nodiscard]] bool own_kernels(const Arguments& a) const {
    return hopper_ && sm90::gradients_on_panels(a.D, a.E, p_.layout.block_size);
  }

  void query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, cudaStream_t stream) const {
    const auto normalized =
        own_kernels(a) ? sm90::launch_panel_normalized_query_gradient : launch_normalized_query_gradient;
    const auto free = own_kernels(a) ? sm90::launch_panel_free_query_gradient : launch_free_query_gradient;
    const auto launch = p_.normalized() ? normalized : free;
    launch(a, g, heads, tiles_, stream);
  }

  void key_value_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, cudaStream_t stream) const {
    const bool keys = p_.dk.given() || p_.dmix.given(), values = p_.dv.given();
    if (own_kernels(a)) {
      if (keys || values) sm90::launch_panel_key_value_gradient(a, g, heads, tiles_, stream);
      return;
    }
    if (keys) launch_causal_key_gradient(a, g, heads, tiles_, stream);
    if (values) launch_causal_value_gradient(a, g, heads, tiles_, stream);
  }

  void prefix_gradient(const Arguments& own, const Arguments& a, const Gradients& g, cudaStream_t stream) const {
    if (!p_.normalized() && by_ring(own)) return sm90::launch_chunk_prefix_gradients(own, p_, stream);
    if (on_panels(a)) return sm90::launch_panel_prefix_gradient(a, g, stream);
    with_chunk_spec<true>(a, [&](auto spec) {
      using S = decltype(spec);
      const int stages = 2 * (2 * kChunkTileBytes<S> + kPhaseTokens * 8);
      launch_next("prefix_gradient_kernel", prefix_gradient_kernel<S>, a.units * a.M, S::kRows * 32, stages, stream, a,
                  g);
    });
  }

  const Problem& p_;
  bool hopper_ = false;
  SequencePlan plan_;
  std::int64_t parts_ = 1;
  int tiles_ = 1;  // of 64 tokens in a chunk
  uint4* packed_mix_ = nullptr;
  KeptSums kept_;
  Bf16 *summaries_ = nullptr, *mixed_ = nullptr;
  float2* weights_ = nullptr;
  float *mix_parts_ = nullptr, *diagonal_ = nullptr;
  double* whole_ = nullptr;
  TokenRange* ranges_ = nullptr;
};

void run_causal_backward(const Problem& problem, Workspace& workspace, bool hopper) {
  const bool boxes =
      boxes_take(problem.q) && boxes_take(problem.k) && boxes_take(problem.v) && boxes_take(problem.dout);
  run_padded(
      problem, workspace,
      [&](const Problem& padded) {
        CausalBackward pass(padded, workspace, hopper);
        if (!workspace.counting()) pass.run();
      },
      hopper && !boxes);
}

}  // namespace
}  // namespace sm80

void chunkwise_backward_sm80(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_causal_backward(problem, workspace, false);
}
void chunkwise_backward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_causal_backward(problem, workspace, true);
}

}  // namespace mhla
