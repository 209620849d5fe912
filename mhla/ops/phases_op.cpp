// torch.ops.mhla.phase_summaries, phase_output, phase_queries and phase_keys, and blocks_of_rank. They have no
// gradient: Python's mhla.distributed puts one around the exchanges between them.
#include "mhla/kernels/phases/phases.h"
#include "mhla/ops/attention_op.h"
#include "mhla/ops/phases.h"

namespace mhla::ops {
namespace {

PhaseParams phase_params(const AttentionInputs& in, const PhaseOptions& o, const char* entry) {
  PhaseParams p;
  p.q = view_of(in.q, entry, "q"), p.k = view_of(in.k, entry, "k"), p.v = view_of(in.v, entry, "v");
  p.mix = view_of(in.mix, entry, "mix");
  p.maybe_q_den = view_of(in.q_den, entry, "q_den"), p.maybe_k_den = view_of(in.k_den, entry, "k_den");
  if (in.cu_seqlens.defined()) fail(entry, ": cu_seqlens is given: packed sequences cannot be cut between processes");
  p.causal = o.causal;
  p.layout = o.layout, p.tokens = o.tokens, p.first_block = o.first_block, p.local_blocks = o.local_blocks;
  p.feature_map = o.feature_map, p.normalizer = o.normalizer, p.eps = o.eps, p.scale = o.scale;
  return p;
}

// Rows of `blocks` blocks; sizes that the shapes do not tell are left to the kernel's checks.
at::Tensor new_rows(const AttentionInputs& in, std::int64_t blocks, std::int64_t heads, std::int64_t X) {
  const std::int64_t B = in.q.dim() == 4 ? in.q.size(0) : 0;
  return at::empty({std::max<std::int64_t>(blocks, 0), B, heads, X}, in.mix.options());
}

at::Tensor like_if(bool wanted, const at::Tensor& x) {
  return wanted && x.defined() ? at::empty(x.sizes(), x.options()) : at::Tensor();
}

View output_if(const at::Tensor& x, const char* entry, const char* name) {
  return x.defined() ? output_view(x, entry, name) : View();
}

RunOptions on_stream(const AttentionInputs& in) {
  RunOptions run;
  if (in.q.is_cuda()) run.stream = current_stream(in.q);
  return run;
}

}  // namespace

at::Tensor phase_summaries(const AttentionInputs& in, const PhaseOptions& options) {
  constexpr const char* kEntry = "phase_summaries";
  const PhaseParams p = phase_params(in, options, kEntry);
  const at::Tensor rows = new_rows(in, options.local_blocks, in.k.dim() == 4 ? in.k.size(2) : 0, phase_summary_size(p));
  mhla::phase_summaries(p, output_view(rows, kEntry, "summaries"), on_stream(in));
  return rows;
}

at::Tensor phase_output(const at::Tensor& summaries, const AttentionInputs& in, const PhaseOptions& options) {
  constexpr const char* kEntry = "phase_output";
  const PhaseParams p = phase_params(in, options, kEntry);
  const bool shaped = in.q.dim() == 4 && in.v.dim() == 4;
  const at::Tensor out = shaped ? at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options())
                                : at::empty({0}, in.q.options());
  mhla::phase_output(p, view_of(summaries, kEntry, "summaries"), output_view(out, kEntry, "out"), on_stream(in));
  return out;
}

PhaseQueryGrads phase_queries(const at::Tensor& dout, const at::Tensor& summaries, const AttentionInputs& in,
                              const PhaseOptions& options, std::array<bool, 3> wanted) {
  constexpr const char* kEntry = "phase_queries";
  const PhaseParams p = phase_params(in, options, kEntry);
  const at::Tensor dense = with_dense_rows(dout);
  PhaseQueryGrads result;
  result.dP = new_rows(in, options.local_blocks, phase_gradient_heads(p), phase_summary_size(p));
  const bool terms = options.causal && options.normalizer != Normalizer::kNone && in.q.dim() == 4;
  result.terms = terms ? at::empty({in.q.size(0), in.q.size(1), in.q.size(2), 2}, in.mix.options())
                       : at::empty({0}, in.mix.options());
  result.dq = like_if(wanted[0], in.q), result.dmix = like_if(wanted[1], in.mix);
  result.dq_den = like_if(wanted[2], in.q_den);
  PhaseGrads grads;
  grads.dout = view_of(dense, kEntry, "dout");
  grads.dq = output_if(result.dq, kEntry, "dq"), grads.dmix = output_if(result.dmix, kEntry, "dmix");
  grads.maybe_dq_den = output_if(result.dq_den, kEntry, "dq_den");
  mhla::phase_queries(p, view_of(summaries, kEntry, "summaries"), grads, output_view(result.dP, kEntry, "dP"),
                      terms ? output_view(result.terms, kEntry, "terms") : View(), on_stream(in));
  return result;
}

PhaseKeyGrads phase_keys(const at::Tensor& dout, const at::Tensor& dP, const at::Tensor& terms,
                         const AttentionInputs& in, const PhaseOptions& options, std::array<bool, 3> wanted) {
  constexpr const char* kEntry = "phase_keys";
  const PhaseParams p = phase_params(in, options, kEntry);
  const at::Tensor dense = with_dense_rows(dout);
  PhaseKeyGrads result;
  result.dk = like_if(wanted[0], in.k), result.dv = like_if(wanted[1], in.v);
  result.dk_den = like_if(wanted[2], in.k_den);
  PhaseGrads grads;
  grads.dout = view_of(dense, kEntry, "dout");
  grads.dk = output_if(result.dk, kEntry, "dk"), grads.dv = output_if(result.dv, kEntry, "dv");
  grads.maybe_dk_den = output_if(result.dk_den, kEntry, "dk_den");
  const bool has_terms = terms.defined() && terms.numel() > 0;
  mhla::phase_keys(p, view_of(dP, kEntry, "dP"), has_terms ? view_of(terms, kEntry, "terms") : ConstView(), grads,
                   on_stream(in));
  return result;
}

namespace {

// The arguments that all four schemas end with.
constexpr const char* kPhaseArguments =
    "Tensor q, Tensor k, Tensor v, Tensor mix, Tensor? q_den, Tensor? k_den, int tokens, int first_block, "
    "int local_blocks, bool causal, int block_size, int[] grid, int[] blocks, str feature_map, str normalizer, "
    "float eps, float? scale";
#define MHLA_PHASE_PARAMETERS                                                                               \
  const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &mix,                     \
      const Optional<at::Tensor>&q_den, const Optional<at::Tensor>&k_den, std::int64_t tokens,              \
      std::int64_t first_block, std::int64_t local_blocks, bool causal, std::int64_t block_size, Ints grid, \
      Ints blocks, Text feature_map, Text normalizer, double eps, Optional<double> scale

struct PhaseCall {
  AttentionInputs in;
  PhaseOptions options;

  PhaseCall(const char* entry, MHLA_PHASE_PARAMETERS)
      : in{q, k, v, wide_mix(mix), value_or_undefined(q_den), value_or_undefined(k_den), {}} {
    options.causal = causal;
    options.layout = layout_of(block_size, grid, blocks, entry);
    options.tokens = tokens, options.first_block = first_block, options.local_blocks = local_blocks;
    options.feature_map = parse_feature_map(view_of(feature_map));
    options.normalizer = parse_normalizer(view_of(normalizer));
    options.eps = eps;
    if (scale.has_value()) options.scale = *scale;
  }
};
#define MHLA_PHASE_CALL(entry)                                                                                         \
  const PhaseCall call(entry, q, k, v, mix, q_den, k_den, tokens, first_block, local_blocks, causal, block_size, grid, \
                       blocks, feature_map, normalizer, eps, scale)

at::Tensor summaries_entry(MHLA_PHASE_PARAMETERS) {
  MHLA_PHASE_CALL("phase_summaries");
  return phase_summaries(call.in, call.options);
}

at::Tensor output_entry(const at::Tensor& summaries, MHLA_PHASE_PARAMETERS) {
  MHLA_PHASE_CALL("phase_output");
  return phase_output(summaries, call.in, call.options);
}

void append_given(std::vector<at::Tensor>& list, std::initializer_list<at::Tensor> more) {
  for (const at::Tensor& x : more)
    if (x.defined()) list.push_back(x);
}

std::vector<at::Tensor> queries_entry(const at::Tensor& dout, const at::Tensor& summaries, MHLA_PHASE_PARAMETERS,
                                      std::array<bool, 3> wanted) {
  MHLA_PHASE_CALL("phase_queries");
  const PhaseQueryGrads grads = phase_queries(dout, summaries, call.in, call.options, wanted);
  std::vector<at::Tensor> list{grads.dP, grads.terms};
  append_given(list, {grads.dq, grads.dmix, grads.dq_den});
  return list;
}

std::vector<at::Tensor> keys_entry(const at::Tensor& dout, const at::Tensor& dP, const at::Tensor& terms,
                                   MHLA_PHASE_PARAMETERS, std::array<bool, 3> wanted) {
  MHLA_PHASE_CALL("phase_keys");
  const PhaseKeyGrads grads = phase_keys(dout, dP, terms, call.in, call.options, wanted);
  std::vector<at::Tensor> list;
  append_given(list, {grads.dk, grads.dv, grads.dk_den});
  return list;
}

std::vector<std::int64_t> blocks_entry(std::int64_t tokens, std::int64_t block_size, Ints grid, Ints blocks,
                                       std::int64_t world, std::int64_t rank) {
  const BlockRange range = blocks_of_rank(layout_of(block_size, grid, blocks, "blocks_of_rank"), tokens, world, rank);
  return {range.first, range.blocks};
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  const std::string all = kPhaseArguments;
  m.def(("phase_summaries(" + all + ") -> Tensor").c_str());
  m.def(("phase_output(Tensor summaries, " + all + ") -> Tensor").c_str());
  m.def(("phase_queries(Tensor dout, Tensor summaries, " + all + ", bool[3] wanted) -> Tensor[]").c_str());
  m.def(("phase_keys(Tensor dout, Tensor dP, Tensor terms, " + all + ", bool[3] wanted) -> Tensor[]").c_str());
  m.def("blocks_of_rank(int tokens, int block_size, int[] grid, int[] blocks, int world, int rank) -> int[]",
        blocks_entry);
}

template <class Library>
void implement_phases(Library& m) {
  m.impl("phase_summaries", summaries_entry);
  m.impl("phase_output", output_entry);
  m.impl("phase_queries", queries_entry);
  m.impl("phase_keys", keys_entry);
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) { implement_phases(m); }
TORCH_LIBRARY_IMPL(mhla, CUDA, m) { implement_phases(m); }

}  // namespace
}  // namespace mhla::ops
