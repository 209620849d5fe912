// A case computed by P processes, one after the other in this one: each gets the tokens of its blocks, and what they
// would send is copied.
#pragma once

#include <algorithm>
#include <vector>

#include "mhla/kernels/phases/phases.h"
#include "mhla/testing/run_case.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {

// Rows `tokens` of x [B, N, heads, size].
inline Tensor take_tokens(const ConstView& x, const std::vector<std::int64_t>& tokens) {
  if (!x.given()) return {};
  const auto n = static_cast<std::int64_t>(tokens.size());
  Tensor part(x.dtype, {x.shape[0], n, x.shape[2], x.shape[3]});
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    for (const std::int64_t t : tokens) {
      for (std::int64_t h = 0; h < x.shape[2]; ++h) {
        const std::int64_t at = b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
        for (std::int64_t j = 0; j < x.shape[3]; ++j) part.set(next++, load_f64(x.data, x.dtype, at + j));
      }
    }
  }
  return part;
}

inline void put_tokens(const Tensor& part, const std::vector<std::int64_t>& tokens, Tensor& whole) {
  if (!part.given()) return;
  const std::int64_t B = whole.shape()[0], N = whole.shape()[1], row = whole.shape()[2] * whole.shape()[3];
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    for (const std::int64_t t : tokens) {
      for (std::int64_t j = 0; j < row; ++j) whole.set((b * N + t) * row + j, part.at(next++));
    }
  }
}

struct PhaseRank {
  std::vector<std::int64_t> tokens;
  Tensor q, k, v, q_den, k_den, dout, terms;
  PhaseParams params;
};

inline PhaseRank phase_rank(const Case& c, const CaseInputs& in, const BlockRange& range) {
  PhaseRank r;
  r.tokens = tokens_of_blocks(BlockMap(c.layout, c.N), range.first, range.blocks);
  r.q = take_tokens(in.q, r.tokens), r.k = take_tokens(in.k, r.tokens), r.v = take_tokens(in.v, r.tokens);
  r.q_den = take_tokens(in.maybe_q_den, r.tokens), r.k_den = take_tokens(in.maybe_k_den, r.tokens);
  r.dout = take_tokens(in.dout, r.tokens);
  PhaseParams& p = r.params;
  const auto view = [](const Tensor& x) { return x.given() ? x.view() : ConstView(); };
  p.q = view(r.q), p.k = view(r.k), p.v = view(r.v), p.maybe_q_den = view(r.q_den), p.maybe_k_den = view(r.k_den);
  p.mix = in.mix;
  p.causal = c.form == Form::kCausal;
  p.layout = c.layout, p.tokens = c.N, p.first_block = range.first, p.local_blocks = range.blocks;
  p.feature_map = c.feature_map, p.normalizer = c.normalizer, p.eps = c.eps, p.scale = c.scale;
  return r;
}

// One call of a phase, on the device of its candidate: views are moved there before it, and results come back.
class PhaseCall {
 public:
  PhaseCall(const PhaseRank& r, const RunOptions& run) : params(r.params), place_(0, run.stream) {
    device_ = on_device(run.candidate);
    for (ConstView* view : {&params.q, &params.k, &params.v, &params.maybe_q_den, &params.maybe_k_den, &params.mix})
      *view = in(*view);
  }
  ConstView in(ConstView view) {
    if (device_) place_.move_input(view, "an input");
    return view;
  }
  View out(View view, const Tensor& memory) {  // which `view` looks into
    if (device_) place_.move_output(view, memory.guarded_bytes(), "a result");
    return view;
  }
  View out(Tensor& whole) { return whole.given() ? out(whole.view(), whole) : View(); }
  void finish(const Case& c) {
    if (device_) place_.finish(c.name());
  }

  PhaseParams params;

 private:
  bool device_ = false;
  DevicePlace place_;
};

// Values that a process sends in one exchange, and those that it receives.
struct PhaseTraffic {
  std::int64_t rows = 0, gradients = 0;  // of all processes together, in values
};

inline CaseResult run_in_parts(const Case& c, const CaseInputs& in, std::int64_t P, const RunOptions& run = {},
                               PhaseTraffic* traffic = nullptr) {
  const std::int64_t M = BlockMap(c.layout, c.N).blocks();
  std::vector<PhaseRank> ranks;
  for (std::int64_t r = 0; r < P; ++r) ranks.push_back(phase_rank(c, in, blocks_of_rank(c.layout, c.N, P, r)));
  const DType wide = c.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const std::int64_t X = phase_summary_size(ranks[0].params), Hp = phase_gradient_heads(ranks[0].params);
  // Blocks first: what a process sends is one piece of what all have then.
  Tensor summaries(wide, {M, c.B, c.Hkv, X}), dP(wide, {M, c.B, Hp, X});
  const auto piece = [&](Tensor& all, const PhaseRank& r) {
    View view = all.view();
    view.data = static_cast<std::byte*>(view.data) + r.params.first_block * view.stride[0] * size_of(wide);
    view.shape[0] = r.params.local_blocks;
    return view;
  };
  for (PhaseRank& r : ranks) {
    PhaseCall call(r, run);
    phase_summaries(call.params, call.out(piece(summaries, r), summaries), run);
    call.finish(c);
  }
  CaseResult result;
  const auto like = [&](const ConstView& x) {
    std::vector<std::int64_t> shape(x.shape.begin(), x.shape.begin() + x.rank);
    return Tensor(x.dtype, shape);
  };
  result.out = Tensor(c.dtype, {c.B, c.N, c.H, c.E});
  result.dq = like(in.q), result.dk = like(in.k), result.dv = like(in.v), result.dmix = like(in.mix);
  result.dmix.fill(0.0);
  if (c.den) result.maybe_dq_den = like(in.q), result.maybe_dk_den = like(in.k);
  const Tensor& given = summaries;
  for (PhaseRank& r : ranks) {
    Tensor out(c.dtype, {c.B, r.params.q.shape[1], c.H, c.E});
    {
      PhaseCall call(r, run);
      phase_output(call.params, call.in(given.view()), call.out(out), run);
      call.finish(c);
    }
    put_tokens(out, r.tokens, result.out);
    Tensor dq = like(r.params.q), dmix = like(in.mix), dq_den = c.den ? like(r.params.q) : Tensor();
    const bool terms = r.params.causal && c.normalizer != Normalizer::kNone;
    if (terms) r.terms = Tensor(wide, {c.B, r.params.q.shape[1], c.H, 2});
    PhaseCall call(r, run);
    PhaseGrads grads;
    grads.dout = call.in(static_cast<const Tensor&>(r.dout).view());
    grads.dq = call.out(dq), grads.dmix = call.out(dmix), grads.maybe_dq_den = call.out(dq_den);
    phase_queries(call.params, call.in(given.view()), grads, call.out(piece(dP, r), dP), call.out(r.terms), run);
    call.finish(c);
    put_tokens(dq, r.tokens, result.dq);
    put_tokens(dq_den, r.tokens, result.maybe_dq_den);
    for (std::int64_t i = 0; i < dmix.numel(); ++i) result.dmix.set(i, result.dmix.at(i) + dmix.at(i));
  }
  for (PhaseRank& r : ranks) {
    Tensor dk = like(r.params.k), dv = like(r.params.v), dk_den = c.den ? like(r.params.k) : Tensor();
    const Tensor &all = dP, &terms = r.terms;
    PhaseCall call(r, run);
    PhaseGrads grads;
    grads.dout = call.in(static_cast<const Tensor&>(r.dout).view());
    grads.dk = call.out(dk), grads.dv = call.out(dv), grads.maybe_dk_den = call.out(dk_den);
    phase_keys(call.params, call.in(all.view()), terms.given() ? call.in(terms.view()) : ConstView(), grads, run);
    call.finish(c);
    put_tokens(dk, r.tokens, result.dk), put_tokens(dv, r.tokens, result.dv);
    put_tokens(dk_den, r.tokens, result.maybe_dk_den);
  }
  if (traffic) *traffic = {summaries.numel(), dP.numel()};
  return result;
}

}  // namespace mhla
