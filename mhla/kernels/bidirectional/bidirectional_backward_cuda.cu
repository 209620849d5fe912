// The bidirectional form in plain CUDA, backward (README.md, eq. 6 to 12). Nothing is kept from forward. dS takes the
// place of S~ once dq is done. Workspace per block and kv head of a wave, in floats: (1 + 2 g) (D E + D) for S, S~ and
// dS~ with g query heads per kv head, g C for each of den and dden (and r and dr of `official`), and for dmix g M for
// every 4096 values of a summary.
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/common/cuda/plan.h"

namespace mhla {
namespace {

using namespace cuda;

struct Buffers {
  float *S, *mixed, *d_mixed;                                        // summaries of kv, query and query heads
  float *maybe_den, *maybe_dden, *maybe_r, *maybe_dr, *maybe_parts;  // of query heads
};

// Forward again (eq. 1 to 5), and the gradient of the denominators.
void recompute(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  const DType dtype = p.dtype();
  const bool paper = p.normalizer == Normalizer::kPaper, official = p.normalizer == Normalizer::kOfficial;
  const std::int64_t stride = call.summary_stride();

  SummaryJob summaries{.wave = wave, .a = features(p.k), .b = plain(p.v), .out = at.S};
  if (p.normalized()) summaries.maybe_x = tensor_of(p.has_den() ? p.maybe_k_den : p.k);
  block_summaries(dtype, summaries, p.stream);

  MixJob mixing{
      .wave = wave, .mix = call.mix(), .in = at.S, .out = at.mixed, .in_stride = stride, .out_stride = stride};
  mixing.columns = paper ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  mix_blocks(dtype, mixing, p.stream);
  if (!p.normalized()) return;

  DenominatorJob denominator{.wave = wave, .q = tensor_of(p.has_den() ? p.maybe_q_den : p.q)};
  MixJob mix_values{.wave = wave, .mix = call.mix(), .in_of_queries = true};
  mix_values.in_stride = mix_values.out_stride = p.C, mix_values.columns = wave.C;
  if (paper) {
    denominator.z = at.mixed + call.z_offset(), denominator.add = static_cast<float>(p.eps);
    denominator.out = at.maybe_den;
    denominators(dtype, denominator, p.stream);
  } else {
    denominator.z = at.S + call.z_offset(), denominator.z_of_queries = false, denominator.out = at.maybe_r;
    denominators(dtype, denominator, p.stream);
    mix_values.in = at.maybe_r, mix_values.out = at.maybe_den, mix_values.add = static_cast<float>(p.eps);
    mix_blocks(DType::kF32, mix_values, p.stream);
  }

  RowDotJob dots{.wave = wave, .q = features(p.q), .dout = plain(p.dout), .summaries = at.mixed};
  dots.maybe_before = at.maybe_dden;  // turned into dden in place, eq. 6
  row_dots(dtype, dots, p.stream);
  DotGradientJob gradient{.wave = wave, .maybe_before = at.maybe_dden, .maybe_den = at.maybe_den};
  gradient.scale = static_cast<float>(p.scale), gradient.maybe_dden = at.maybe_dden;
  dot_gradients(gradient, p.stream);
  if (official) {  // eq. 11
    mix_values.back = true, mix_values.in = at.maybe_dden, mix_values.out = at.maybe_dr, mix_values.add = 0;
    mix_blocks(DType::kF32, mix_values, p.stream);
  }
}

// dq and dq_den: S~ dnum, and what the denominator adds (eq. 7, 9, 11).
void query_gradients(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  const bool official = p.normalizer == Normalizer::kOfficial;
  const float* const z = p.normalized() ? (official ? at.S : at.mixed) + call.z_offset() : nullptr;
  const float* const factor = official ? at.maybe_dr : at.maybe_dden;
  if (p.dq.given()) {
    ReadOutJob dq{.wave = wave, .a = gradient_of_output(p, at.maybe_den), .summaries = at.mixed, .transposed = true};
    if (!p.has_den()) dq.maybe_z = z, dq.z_of_keys = official, dq.maybe_factor = factor;
    dq.maybe_slope_of = tensor_of(p.q), dq.out = tensor_of(p.dq);
    read_out(p.dtype(), dq, p.stream);
  }
  if (p.maybe_dq_den.given()) {
    VectorGradientJob dq_den{.wave = wave, .z = z, .z_of_keys = official, .maybe_factor = factor};
    dq_den.x = tensor_of(p.maybe_q_den), dq_den.out = tensor_of(p.maybe_dq_den);
    vector_gradients(p.dtype(), dq_den, p.stream);
  }
}

// dk, dv and dk_den from dS and dz (eq. 8, 10, 12).
void key_gradients(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  const bool paper = p.normalizer == Normalizer::kPaper;
  const std::int64_t stride = call.summary_stride();
  float* const dS = at.mixed;
  MixJob unmixing{.wave = wave, .mix = call.mix(), .back = true, .over_group = true, .in = at.d_mixed, .out = dS};
  unmixing.in_stride = unmixing.out_stride = stride;
  unmixing.columns = paper ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  mix_blocks(p.dtype(), unmixing, p.stream);
  const float* const dz = p.normalized() ? dS + call.z_offset() : nullptr;
  if (p.normalizer == Normalizer::kOfficial)
    sum_heads({wave, at.d_mixed + call.z_offset(), dS + call.z_offset()}, p.stream);

  if (p.dk.given()) {
    ReadOutJob dk{.wave = wave, .of_queries = false, .a = plain(p.v), .summaries = dS, .transposed = true};
    if (!p.has_den()) dk.maybe_z = dz;
    dk.maybe_slope_of = tensor_of(p.k), dk.out = tensor_of(p.dk);
    read_out(p.dtype(), dk, p.stream);
  }
  if (p.dv.given()) {
    ReadOutJob dv{.wave = wave, .of_queries = false, .a = features(p.k), .summaries = dS, .out = tensor_of(p.dv)};
    read_out(p.dtype(), dv, p.stream);
  }
  if (p.maybe_dk_den.given()) {
    VectorGradientJob dk_den{.wave = wave, .of_queries = false, .z = dz};
    dk_den.x = tensor_of(p.maybe_k_den), dk_den.out = tensor_of(p.maybe_dk_den);
    vector_gradients(p.dtype(), dk_den, p.stream);
  }
}

}  // namespace

void bidirectional_backward_cuda(const Problem& p, Workspace& workspace, Executor& /*executor*/) {
  const bool paper = p.normalizer == Normalizer::kPaper, official = p.normalizer == Normalizer::kOfficial;
  const bool queries = p.dq.given() || p.maybe_dq_den.given();
  const bool keys = p.dk.given() || p.dv.given() || p.maybe_dk_den.given();
  Call call(p, workspace);
  const std::int64_t stride = call.summary_stride();
  const std::int32_t columns = paper ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  const std::int64_t slices = slices_of(columns), r_slices = official ? slices_of(p.C) : 0;
  const std::int64_t parts = p.dmix.given() ? (slices + r_slices) * p.M : 0;
  const std::int64_t token_values = (official ? 4 : p.normalized() ? 2 : 0) * p.C;
  call.plan(4 * (stride + p.group() * (2 * stride + token_values + parts)));

  Buffers at{};
  at.S = call.take(workspace, stride, false, "summaries");
  at.mixed = call.take(workspace, stride, true, "mixed summaries");
  at.d_mixed = call.take(workspace, stride, true, "gradients of mixed summaries");
  if (p.normalized()) at.maybe_den = call.take(workspace, p.C, true, "denominators");
  if (p.normalized()) at.maybe_dden = call.take(workspace, p.C, true, "gradients of denominators");
  if (official) at.maybe_r = call.take(workspace, p.C, true, "q . z");
  if (official) at.maybe_dr = call.take(workspace, p.C, true, "gradients of q . z");
  if (p.dmix.given()) at.maybe_parts = call.take(workspace, parts, true, "parts of dmix");
  if (workspace.counting()) return;

  call.make_tables();
  MixReduceJob reduce = call.mix_gradient();
  if (p.dmix.given()) clear_mix_gradient(reduce, p.Hm, p.stream);
  for (const WaveRange& range : call.waves()) {
    const Wave wave = call.wave(range);
    recompute(p, call, wave, at);
    if (queries) query_gradients(p, call, wave, at);
    if (!keys && !p.dmix.given()) continue;

    SummaryJob d_mixed{.wave = wave, .a = features(p.q), .b = gradient_of_output(p, at.maybe_den)};  // eq. 7, 9, 12
    if (p.normalized()) d_mixed.maybe_x = tensor_of(p.has_den() ? p.maybe_q_den : p.q);
    d_mixed.maybe_factor = official ? at.maybe_dr : at.maybe_dden;
    d_mixed.of_queries = true, d_mixed.out = at.d_mixed;
    block_summaries(p.dtype(), d_mixed, p.stream);
    if (keys) key_gradients(p, call, wave, at);
    if (!p.dmix.given()) continue;

    MixProductJob product{.wave = wave, .a = at.d_mixed, .b = at.S, .a_stride = stride, .b_stride = stride};
    product.columns = columns, product.parts = at.maybe_parts;  // eq. 8, 10
    mix_products(p.dtype(), product, p.stream);
    if (official) {  // eq. 12
      product.a = at.maybe_dden, product.b = at.maybe_r, product.b_of_queries = true;
      product.a_stride = product.b_stride = p.C, product.columns = wave.C, product.of_tokens = true;
      product.parts += slices * range.kv_heads * p.group() * range.blocks * p.M;
      mix_products(DType::kF32, product, p.stream);
    }
    reduce.wave = wave, reduce.parts = at.maybe_parts, reduce.slices = static_cast<std::int32_t>(slices + r_slices);
    reduce_mix_gradient(reduce, p.stream);
  }
}

}  // namespace mhla
