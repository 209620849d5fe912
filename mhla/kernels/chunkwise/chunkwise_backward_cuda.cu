// The causal form in plain CUDA, backward (README.md, eq. 5 to 11). Nothing is kept from forward. dS takes the place of
// P once dq is done. The gradient of the diagonal of mix comes from the numerators inside the chunks, which are made
// again for dout . out. Workspace per chunk and kv head of a wave, in floats: (1 + 2 g) (D E + D) for S, P and dP with
// g query heads per kv head, up to 4 g C for values per token, and for dmix g M for every 4096 values of a summary.
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_cuda.h"

namespace mhla {
namespace {

using namespace cuda;

struct Buffers {
  float *S, *prefixes, *d_prefixes;  // summaries of kv, query and query heads
  float *maybe_den, *maybe_dden, *maybe_inside, *maybe_open, *maybe_diagonal, *maybe_parts;  // of query heads
};

// Forward again (eq. 1 to 4), the gradient of the denominators and of the diagonal (eq. 5, 10).
void recompute(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  chunk_prefixes(p, call, wave, at.S, at.prefixes);
  if (p.normalized()) {
    CausalDenominatorJob job{.wave = wave, .mix = call.mix()};
    job.q = tensor_of(p.has_den() ? p.maybe_q_den : p.q), job.k = tensor_of(p.has_den() ? p.maybe_k_den : p.k);
    job.z = at.prefixes + call.z_offset(), job.eps = static_cast<float>(p.eps);
    job.den = at.maybe_den, job.maybe_open = at.maybe_open;
    causal_denominators(p.dtype(), job, p.stream);
  }
  if (!p.normalized() && !p.dmix.given()) return;
  RowDotJob dots{.wave = wave, .q = features(p.q), .dout = plain(p.dout), .summaries = at.prefixes};
  dots.k = features(p.k), dots.v = plain(p.v), dots.maybe_before = at.maybe_dden, dots.maybe_inside = at.maybe_inside;
  row_dots(p.dtype(), dots, p.stream);
  DotGradientJob gradient{
      .wave = wave, .mix = call.mix(), .maybe_before = at.maybe_dden, .maybe_inside = at.maybe_inside};
  gradient.maybe_den = at.maybe_den, gradient.maybe_open = at.maybe_open, gradient.scale = static_cast<float>(p.scale);
  gradient.maybe_dden = at.maybe_dden, gradient.maybe_diagonal = at.maybe_diagonal;
  dot_gradients(gradient, p.stream);
}

// dq and dq_den (eq. 6, 8).
void query_gradients(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  const float* const z = p.normalized() ? at.prefixes + call.z_offset() : nullptr;
  if (p.dq.given()) {
    ReadOutJob dq{.wave = wave, .a = gradient_of_output(p, at.maybe_den), .summaries = at.prefixes, .transposed = true};
    dq.y = plain(p.v), dq.w = features(p.k), dq.mix = call.mix();
    if (!p.has_den()) dq.maybe_bias = dq.maybe_factor = at.maybe_dden, dq.maybe_z = z;
    dq.maybe_slope_of = tensor_of(p.q), dq.out = tensor_of(p.dq);
    read_out(p.dtype(), dq, p.stream);
  }
  if (p.maybe_dq_den.given()) {
    VectorGradientJob dq_den{.wave = wave, .z = z, .maybe_factor = at.maybe_dden};
    dq_den.maybe_y = tensor_of(p.maybe_k_den), dq_den.mix = call.mix();
    dq_den.x = tensor_of(p.maybe_q_den), dq_den.out = tensor_of(p.maybe_dq_den);
    vector_gradients(p.dtype(), dq_den, p.stream);
  }
}

// dk, dv and dk_den (eq. 7, 9, 11).
void key_gradients(const Problem& p, const Call& call, const Wave& wave, const Buffers& at) {
  float* const dS = at.prefixes;
  MixJob unmixing{.wave = wave, .mix = call.mix(), .terms = MixTerms::kAfter, .back = true, .over_group = true};
  unmixing.in = at.d_prefixes, unmixing.out = dS;
  unmixing.in_stride = unmixing.out_stride = call.summary_stride();
  unmixing.columns = p.normalized() ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  mix_blocks(p.dtype(), unmixing, p.stream);
  const float* const dz = p.normalized() ? dS + call.z_offset() : nullptr;

  if (p.dk.given()) {
    ReadOutJob dk{.wave = wave, .of_queries = false, .a = plain(p.v), .summaries = dS, .transposed = true};
    dk.y = gradient_of_output(p, at.maybe_den), dk.w = features(p.q), dk.after = true, dk.mix = call.mix();
    if (!p.has_den()) dk.maybe_bias = at.maybe_dden, dk.maybe_z = dz;
    dk.maybe_slope_of = tensor_of(p.k), dk.out = tensor_of(p.dk);
    read_out(p.dtype(), dk, p.stream);
  }
  if (p.dv.given()) {
    ReadOutJob dv{.wave = wave, .of_queries = false, .a = features(p.k), .summaries = dS};
    dv.y = features(p.q), dv.w = gradient_of_output(p, at.maybe_den), dv.after = true, dv.mix = call.mix();
    dv.out = tensor_of(p.dv);
    read_out(p.dtype(), dv, p.stream);
  }
  if (p.maybe_dk_den.given()) {
    VectorGradientJob dk_den{.wave = wave, .of_queries = false, .z = dz, .maybe_factor = at.maybe_dden};
    dk_den.maybe_y = tensor_of(p.maybe_q_den), dk_den.mix = call.mix();
    dk_den.x = tensor_of(p.maybe_k_den), dk_den.out = tensor_of(p.maybe_dk_den);
    vector_gradients(p.dtype(), dk_den, p.stream);
  }
}

}  // namespace

void chunkwise_backward_cuda(const Problem& p, Workspace& workspace, Executor& /*executor*/) {
  const bool queries = p.dq.given() || p.maybe_dq_den.given();
  const bool keys = p.dk.given() || p.dv.given() || p.maybe_dk_den.given(), mix = p.dmix.given();
  Call call(p, workspace);
  const std::int64_t stride = call.summary_stride();
  const std::int32_t columns = p.normalized() ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  const std::int64_t slices = slices_of(columns), parts = mix ? slices * p.M + 1 : 0;
  const std::int64_t token_values = p.normalized() ? 4 : mix ? 1 : 0;
  call.plan(4 * (stride + p.group() * (2 * stride + token_values * p.C + parts)));

  Buffers at{};
  at.S = call.take(workspace, stride, false, "summaries");
  at.prefixes = call.take(workspace, stride, true, "prefixes");
  at.d_prefixes = call.take(workspace, stride, true, "gradients of prefixes");
  if (p.normalized()) at.maybe_den = call.take(workspace, p.C, true, "denominators");
  if (p.normalized()) at.maybe_open = call.take(workspace, p.C, true, "denominators inside chunks");
  if (p.normalized()) at.maybe_dden = call.take(workspace, p.C, true, "gradients of denominators");
  if (p.normalized() || mix) at.maybe_inside = call.take(workspace, p.C, true, "dout . out inside chunks");
  if (mix) at.maybe_diagonal = call.take(workspace, 1, true, "diagonal of dmix");
  if (mix) at.maybe_parts = call.take(workspace, slices * p.M, true, "parts of dmix");
  if (workspace.counting()) return;

  call.make_tables();
  MixReduceJob reduce = call.mix_gradient();
  if (mix) clear_mix_gradient(reduce, p.Hm, p.stream);
  for (const WaveRange& range : call.waves()) {
    const Wave wave = call.wave(range);
    recompute(p, call, wave, at);
    if (queries) query_gradients(p, call, wave, at);
    if (!keys && !mix) continue;

    SummaryJob d_prefixes{.wave = wave, .a = features(p.q), .b = gradient_of_output(p, at.maybe_den)};  // eq. 6
    if (p.normalized()) d_prefixes.maybe_x = tensor_of(p.has_den() ? p.maybe_q_den : p.q);
    d_prefixes.maybe_factor = at.maybe_dden, d_prefixes.of_queries = true, d_prefixes.out = at.d_prefixes;
    block_summaries(p.dtype(), d_prefixes, p.stream);
    if (keys) key_gradients(p, call, wave, at);
    if (!mix) continue;

    MixProductJob product{.wave = wave, .a = at.d_prefixes, .b = at.S, .a_stride = stride, .b_stride = stride};
    product.columns = columns, product.causal = true, product.parts = at.maybe_parts;  // eq. 7
    mix_products(p.dtype(), product, p.stream);
    reduce.wave = wave, reduce.parts = at.maybe_parts, reduce.slices = static_cast<std::int32_t>(slices);
    reduce.maybe_diagonal = at.maybe_diagonal;
    reduce_mix_gradient(reduce, p.stream);
  }
}

}  // namespace mhla
