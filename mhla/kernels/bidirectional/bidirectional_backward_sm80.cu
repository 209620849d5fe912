// Backward of the bidirectional form in bf16: candidates `sm80` and `sm90`. Short sequences go over all pairs of tokens
// (bidirectional_backward_pairs_sm80.cu), with 8 bytes of workspace per padded token and query head unless a warpgroup
// takes them, dmix in parts. Hopper has one kernel for heads whose summaries fit shared memory
// (bidirectional_backward_sm90_fused.cuh). Others pass summaries through memory (common/cuda/sm80_backward.cuh): 4 M
// (D E + D) bytes per kv head, in rounds of heads (kRoundBytes), half of that where forward kept them (KeptSums).
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80_cuts.h"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"
#include "mhla/kernels/common/cuda/sm80_padding.h"

namespace mhla {
namespace sm80 {

class Backward {
 public:
  Backward(const Problem& p, Workspace& ws, bool hopper) : p_(p), hopper_(hopper), units_(p.B * p.Hkv) {
    const Tiles t = tiles_of(p.D, p.E);
    pairs_ = over_pairs(p.M, p.C, t, most_shared_bytes(p.q.device)) && !p.has_den();
    if (pairs_) {
      const std::int64_t tiles = p.M * pair_tiles_per_block(p.C), rows = p.B * p.H;
      const bool kept = hopper && on_warpgroups(p.M, p.C, t);  // in shared memory
      if (!kept) weights_ = ws.take<float2>(rows * tiles * 16, "weights of tokens");
      parts_ = ws.take<float>(rows * tiles * tiles, "parts of dmix");
      return;
    }
    if (hopper && !p.has_den()) boxes_ = boxes_plan(t);
    if (boxes_.fits) {
      if (!p.dmix.given()) return;
      Arguments a = arguments_of(p, hopper);
      a.units = static_cast<int>(units_);
      summaries_ = ws.take<Bf16>(sm90::box_gradient_blocks(a, boxes_) * p.M * (boxes_.block_bytes / 2), "summaries");
      mix_.rounds = 1, mix_.splits = p.Hm > 1 ? p.B : units_, mix_.round_size = units_ * 256;
      parts_ = ws.take<float>(mix_.floats(), "parts of dmix");
      return;
    }
    const std::int64_t block = p.D * p.E + p.D;
    packed_mix_ =
        ws.take<uint4>(2 * p.Hm * packed_mix_units(mix_rows_of(p, hopper), p.M), "packed mix and its transpose");
    at_once_ = units_at_once(units_, 4 * p.M * block);
    if (!p.has_den()) kept_ = KeptSums(p, units_ * p.M, block);
    if (!kept_.given()) summaries_ = ws.take<Bf16>(at_once_ * p.M * block, "summaries");
    mixed_ = ws.take<Bf16>(at_once_ * p.M * block, "mixed summaries");
    if (p.has_den()) {
      den_ = ws.take<float>(p.B * p.H * p.N, "denominators");
      dden_ = ws.take<float>(p.B * p.H * p.N, "gradients of denominators");
      mixed_z_ = ws.take<Bf16>(at_once_ * p.M * p.D, "mixed sums of k_den");
    }
    rounds_ = rounds_of(units_, at_once_);
    if (hopper && !p.has_den()) counters_ = ItemCounters(ws, 2 * rounds_);
    mix_ = MixGradient(p.M, p.Hm, units_, block, rounds_, hopper, false);
    if (p.dmix.given()) parts_ = ws.take<float>(mix_.floats(), "parts of dmix");
  }

  void run() {
    Arguments a = arguments_of(p_, hopper_);
    a.units = static_cast<int>(units_);
    Gradients g = gradients_of(p_);
    g.weights = weights_, g.parts = parts_, g.maybe_dden = dden_;
    if (p_.has_den()) a.maybe_den = den_, a.normalized = false;
    const cudaStream_t stream = stream_of(p_.stream);
    if (pairs_) return launch_pair_gradients(p_, a, g, stream);
    boxes_.fits ? fused(a, g, stream) : phases(a, g, stream);
  }

 private:
  // The fused kernel of Hopper, where it takes the problem.
  [[nodiscard]] sm90::BoxPlan boxes_plan(Tiles t) const {
    for (const ConstView& x : {p_.q, p_.k, p_.v, p_.dout, ConstView(p_.dq), ConstView(p_.dk), ConstView(p_.dv)}) {
      if (!x.given() || !boxes_take(x)) return {};
    }
    return sm90::box_gradient_plan(p_.M, p_.N, p_.C, p_.D, t, sm90::block_boxes(p_.layout, p_.N),
                                   most_shared_bytes(p_.q.device));
  }

  void fused(Arguments a, const Gradients& g, cudaStream_t stream) const {
    a.summaries = summaries_;
    sm90::launch_box_gradients(p_, a, parts_, boxes_, stream);
    if (g.dmix != nullptr) mix_.launch_sum(a, g, units_, p_.Hm, stream);
  }

  [[nodiscard]] bool wants_keys() const { return p_.dk.given() || p_.dv.given() || p_.maybe_dk_den.given(); }

  // dq, dS~ and what the denominators of q_den and k_den add: dq_den, dz~ beside dS~.
  void den_queries(const Arguments& a, const Gradients& g, cudaStream_t stream) const {
    const auto q_den = strided<const Bf16>(p_.maybe_q_den);
    launch_denominators(a, q_den, mixed_z_, stream);
    launch_den_query_gradient(a, g, stream);
    if (p_.maybe_dq_den.given()) {
      launch_q_den_gradient(a, q_den, g.maybe_dden, mixed_z_, strided<Bf16>(p_.maybe_dq_den), stream);
    }
    launch_den_sums(a, q_den, g.maybe_dden, a.mixed, stream);
  }

  void phases(Arguments a, const Gradients& g, cudaStream_t stream) const {
    const int mixes = static_cast<int>(p_.Hm);
    Arguments back = a;
    a.packed_mix = packed_mix_, back.packed_mix = packed_mix_ + mixes * packed_mix_units(a.mix_rows, a.M);
    ItemCounters counters = counters_;
    launch_pack_mix(counters.cleared(a), mixes, false, stream);
    launch_pack_mix(back, mixes, true, stream);
    for (std::int64_t round = 0; round < rounds_; ++round) {
      a.first_unit = static_cast<int>(round * at_once_);
      a.units = static_cast<int>(std::min(at_once_, units_ - round * at_once_));
      a.summaries = summaries_, a.mixed = mixed_, a.query_sums = mixed_;
      const std::int64_t first_block = a.first_unit * p_.M;
      if (kept_.given()) a.summaries = kept_.summaries(first_block), a.query_sums = kept_.mixed(first_block);
      if (p_.has_den()) {
        launch_den_summaries(a, strided<const Bf16>(p_.maybe_k_den), stream);
        den_queries(a, g, stream);
      } else {
        if (!kept_.given()) launch_summaries(a, stream);
        query_gradient(counters.next(a), g, stream);
      }
      const bool mixed_back = g.dmix != nullptr && wants_keys() && mix_.takes_back(a);
      const uint4* const maybe_back_mix = mixed_back ? back.packed_mix : nullptr;
      if (g.dmix != nullptr) mix_.launch_products(a, g, round, p_.Hm, stream, maybe_back_mix);
      if (!wants_keys()) continue;
      Arguments unmix = a;
      unmix.packed_mix = back.packed_mix;
      if (!mixed_back) launch_mix(unmix, true, stream);
      key_gradient(counters.next(a), g, stream);
      if (p_.maybe_dk_den.given()) {
        launch_k_den_gradient(a, strided<const Bf16>(p_.maybe_k_den), strided<Bf16>(p_.maybe_dk_den), stream);
      }
    }
    if (g.dmix != nullptr) mix_.launch_sum(a, g, units_, p_.Hm, stream);
  }

  static void query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
    if (on_panels(a)) return sm90::launch_panel_query_gradient(a, g, stream);
    with_spec<false>(a, [&](auto spec) { launch_query_gradient<decltype(spec)>(a, g, stream); });
  }

  static void key_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
    if (on_panels(a)) return sm90::launch_panel_key_gradient(a, g, stream);
    with_spec<false>(a, [&](auto spec) {
      using S = decltype(spec);
      launch_persistent(key_gradient_kernel<S>, 128, 2 * summary_bytes(a.D, S::kTiles), a, stream,
                        "key_gradient_kernel", g);
    });
  }

  const Problem& p_;
  bool hopper_ = false;
  std::int64_t units_ = 0, at_once_ = 0, rounds_ = 0;
  bool pairs_ = false;
  sm90::BoxPlan boxes_;
  MixGradient mix_;
  ItemCounters counters_;
  uint4* packed_mix_ = nullptr;
  KeptSums kept_;
  Bf16 *summaries_ = nullptr, *mixed_ = nullptr;
  float *den_ = nullptr, *dden_ = nullptr;  // with q_den and k_den
  Bf16* mixed_z_ = nullptr;
  float2* weights_ = nullptr;
  float* parts_ = nullptr;
};

void run_backward(const Problem& problem, Workspace& workspace, bool hopper) {
  run_padded(problem, workspace, [&](const Problem& padded) {
    run_cut(padded, workspace, [&](const Problem& cut) {
      Backward pass(cut, workspace, hopper);
      if (!workspace.counting()) pass.run();
    });
  });
}

}  // namespace sm80

void bidirectional_backward_sm80(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_backward(problem, workspace, false);
}
void bidirectional_backward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_backward(problem, workspace, true);
}

}  // namespace mhla
