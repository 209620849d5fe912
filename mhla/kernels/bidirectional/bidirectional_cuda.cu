// The bidirectional form in plain CUDA, forward (README.md, eq. 1 to 5), wave by wave: summaries, mixing, read-out.
// Workspace per block and kv head of a wave, in floats: (1 + g) (D E + D) for S and S~ with g query heads per kv head,
// g C for denominators, and as much again for r of the `official` ones. A wave takes at most kWaveBytes, or one head.
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/common/cuda/plan.h"

namespace mhla {

void bidirectional_forward_cuda(const Problem& p, Workspace& workspace, Executor& /*executor*/) {
  using namespace cuda;
  const DType dtype = p.dtype();
  const bool paper = p.normalizer == Normalizer::kPaper, official = p.normalizer == Normalizer::kOfficial;
  const std::int64_t token_values = official ? 2 * p.C : p.normalized() ? p.C : 0;
  Call call(p, workspace);
  const std::int64_t stride = call.summary_stride();
  call.plan(4 * (stride + p.group() * (stride + token_values)));
  float* const S = call.take(workspace, stride, false, "summaries");
  float* const mixed = call.take(workspace, stride, true, "mixed summaries");
  float* const maybe_den = p.normalized() ? call.take(workspace, p.C, true, "denominators") : nullptr;
  float* const maybe_r = official ? call.take(workspace, p.C, true, "q . z") : nullptr;
  if (workspace.counting()) return;

  const DeviceTensor q_den = tensor_of(p.has_den() ? p.maybe_q_den : p.q);
  const DeviceTensor k_den = tensor_of(p.has_den() ? p.maybe_k_den : p.k);
  call.make_tables();
  for (const WaveRange& range : call.waves()) {
    const Wave wave = call.wave(range);

    SummaryJob summaries{.wave = wave, .a = features(p.k), .b = plain(p.v), .out = S};  // eq. 1
    if (p.normalized()) summaries.maybe_x = k_den;
    block_summaries(dtype, summaries, p.stream);

    MixJob mixing{.wave = wave, .mix = call.mix(), .in = S, .out = mixed, .in_stride = stride, .out_stride = stride};
    mixing.columns = paper ? call.summary_columns() : static_cast<std::int32_t>(p.D * p.E);  // eq. 2
    mix_blocks(dtype, mixing, p.stream);

    DenominatorJob denominator{.wave = wave, .q = q_den};
    if (paper) {  // eq. 4
      denominator.z = mixed + call.z_offset(), denominator.add = static_cast<float>(p.eps), denominator.out = maybe_den;
      denominators(dtype, denominator, p.stream);
    }
    if (official) {  // eq. 5
      denominator.z = S + call.z_offset(), denominator.z_of_queries = false, denominator.out = maybe_r;
      denominators(dtype, denominator, p.stream);
      MixJob mix_r{.wave = wave, .mix = call.mix(), .in = maybe_r, .in_of_queries = true, .out = maybe_den};
      mix_r.in_stride = mix_r.out_stride = p.C, mix_r.columns = wave.C, mix_r.add = static_cast<float>(p.eps);
      mix_blocks(DType::kF32, mix_r, p.stream);
    }

    ReadOutJob out{.wave = wave, .a = features(p.q), .summaries = mixed};  // eq. 3
    out.maybe_den = maybe_den, out.scale = static_cast<float>(p.scale), out.out = tensor_of(p.out);
    read_out(dtype, out, p.stream);
  }
}

}  // namespace mhla
