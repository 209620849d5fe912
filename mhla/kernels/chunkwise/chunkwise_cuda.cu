// The causal form in plain CUDA, forward (README.md, eq. 1 to 4), wave by wave: summaries of all chunks, prefixes as
// one triangular product, then each chunk by itself. Tiles are aligned to the start of a chunk, and a sum never looks
// at a later token, so the bits of a token do not depend on how long its sequence is.
// Workspace per chunk and kv head of a wave, in floats: (1 + g) (D E + D) for S and P with g query heads per kv head,
// and g C for denominators. A wave takes at most kWaveBytes, or one head of one sequence.
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_cuda.h"

namespace mhla {

namespace cuda {

void chunk_prefixes(const Problem& p, const Call& call, const Wave& wave, float* S, float* prefixes) {
  SummaryJob summaries{.wave = wave, .a = features(p.k), .b = plain(p.v), .out = S};  // eq. 1
  if (p.normalized()) summaries.maybe_x = tensor_of(p.has_den() ? p.maybe_k_den : p.k);
  block_summaries(p.dtype(), summaries, p.stream);

  MixJob mixing{.wave = wave, .mix = call.mix(), .terms = MixTerms::kBefore, .in = S, .out = prefixes};  // eq. 2
  mixing.in_stride = mixing.out_stride = call.summary_stride();
  mixing.columns = p.normalized() ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);
  mixing.seeded = p.extend && p.M > p.L;
  if (mixing.seeded) seed_prefixes({wave, mixing.mix, S, prefixes, mixing.columns}, p.stream);
  mix_blocks(p.dtype(), mixing, p.stream);
}

}  // namespace cuda

void chunkwise_forward_cuda(const Problem& p, Workspace& workspace, Executor& /*executor*/) {
  using namespace cuda;
  Call call(p, workspace);
  const std::int64_t stride = call.summary_stride();
  call.plan(4 * (stride + p.group() * (stride + (p.normalized() ? p.C : 0))));
  float* const S = call.take(workspace, stride, false, "summaries");
  float* const prefixes = call.take(workspace, stride, true, "prefixes");
  float* const maybe_den = p.normalized() ? call.take(workspace, p.C, true, "denominators") : nullptr;
  if (workspace.counting()) return;

  call.make_tables();
  for (const WaveRange& range : call.waves()) {
    const Wave wave = call.wave(range);
    chunk_prefixes(p, call, wave, S, prefixes);
    if (p.normalized()) {  // eq. 4
      CausalDenominatorJob job{.wave = wave, .mix = call.mix()};
      job.q = tensor_of(p.has_den() ? p.maybe_q_den : p.q), job.k = tensor_of(p.has_den() ? p.maybe_k_den : p.k);
      job.z = prefixes + call.z_offset(), job.eps = static_cast<float>(p.eps), job.den = maybe_den;
      causal_denominators(p.dtype(), job, p.stream);
    }
    ReadOutJob out{.wave = wave, .a = features(p.q), .summaries = prefixes, .y = features(p.k), .w = plain(p.v)};
    out.mix = call.mix(), out.maybe_den = maybe_den, out.scale = static_cast<float>(p.scale);  // eq. 3
    out.out = tensor_of(p.out);
    read_out(p.dtype(), out, p.stream);
  }
}

}  // namespace mhla
