// The phases in plain CUDA, both forms, from the launches of the forms (README.md). Tokens are those of a sequence or
// grid of m blocks of its own; rows of all M blocks are mixed in buffers of their own, and the m local ones are copied
// out. Mixing makes all M rows on every process: 2 M M X operations a head, little beside the tokens.
// Workspace per block of M and kv head of a wave, in floats: up to (2 + 3 g) (D E + D) with g query heads per kv head,
// up to 4 g C for values per token, and for dmix g M for every 4096 values of a summary.
#include <algorithm>

#include "mhla/core/cuda.h"
#include "mhla/kernels/phases/phases_candidates.h"
#include "mhla/kernels/phases/phases_cuda.h"

namespace mhla {
namespace {

using namespace cuda;

// The tokens of this process as a call of their own.
Problem local_problem(const Problem& p) {
  Problem local = p;
  local.part = {}, local.M = p.part.blocks;
  if (p.layout.rank == 1) return local;
  const auto axis = static_cast<std::size_t>(3 - p.layout.rank);
  const std::int64_t slices = p.layout.blocks[axis], slice_tokens = p.part.tokens / p.layout.grid[axis];
  local.layout.blocks[axis] = p.part.blocks / (p.M / slices);
  local.layout.grid[axis] = p.N / slice_tokens;
  return local;
}

// Only blocks of it are looked at, never tokens.
Problem whole_problem(const Problem& p) {
  Problem whole = p;
  whole.part = {}, whole.N = p.part.tokens;
  for (Sequence& sequence : whole.sequences) sequence.length = p.part.tokens;
  return whole;
}

// Extents of blocks as in the whole grid: a part of it may have fewer rows than its blocks would divide evenly.
DeviceLayout local_layout(const Problem& p, const Problem& local) {
  DeviceLayout layout(p.layout, std::max<std::int64_t>(1, p.C));
  if (p.layout.rank == 1) return layout;
  const int axis = 3 - p.layout.rank;
  const auto at = static_cast<std::size_t>(axis);
  layout.grid[axis] = local.layout.grid[at], layout.blocks[axis] = local.layout.blocks[at];
  if (axis != 1) return layout;
  layout.per_frame = FastDivisor(layout.blocks[1]);
  layout.rows[1] = FastDivisor(layout.grid[1] - layout.step[1] * (layout.blocks[1] - 1));
  return layout;
}

struct Buffers {
  float *S, *mixed;        // whole: of kv and query heads
  float *local, *d_local;  // of query heads
  float* maybe_d_whole;    // of query heads: local gradients among zeros, for dmix
  float *maybe_den, *maybe_dden, *maybe_inside, *maybe_open, *maybe_diagonal, *maybe_whole_diagonal, *maybe_parts;
};

class PhaseRun {
 public:
  PhaseRun(const Problem& p, Workspace& workspace)
      : p_(p),
        local_p_(local_problem(p)),
        whole_p_(whole_problem(p)),
        whole_(whole_p_, workspace),
        local_(local_p_, workspace) {
    const bool mix = p.dmix.given(), causal_values = p.causal && (p.normalized() || mix);
    const std::int64_t stride = whole_.summary_stride(), C = p.C;
    slices_ = slices_of(columns());
    const std::int64_t values = p.normalized() ? 2 : 0, inside = causal_values ? 1 : 0,
                       open = p.causal && p.normalized() ? 1 : 0;
    const std::int64_t parts = mix ? slices_ * p.M + 2 : 0;
    whole_.plan(4 * (stride + p.group() * ((mix ? 4 : 3) * stride + (values + inside + open) * C + parts)));
    const auto take = [&](std::int64_t floats, bool of_queries, const char* name) {
      return whole_.take(workspace, floats, of_queries, name);
    };
    at_.S = take(stride, false, "summaries"), at_.mixed = take(stride, true, "mixed summaries");
    at_.local = take(stride, true, "local rows"), at_.d_local = take(stride, true, "gradients of local rows");
    if (mix) at_.maybe_d_whole = take(stride, true, "gradients among zeros");
    if (values > 0) at_.maybe_den = take(C, true, "denominators");
    if (values > 0) at_.maybe_dden = take(C, true, "gradients of denominators");
    if (inside > 0) at_.maybe_inside = take(C, true, "dout . out inside chunks");
    if (open > 0) at_.maybe_open = take(C, true, "denominators inside chunks");
    if (mix) at_.maybe_diagonal = take(1, true, "diagonal of dmix");
    if (mix) at_.maybe_whole_diagonal = take(1, true, "diagonal of dmix among zeros");
    if (mix) at_.maybe_parts = take(slices_ * p.M, true, "parts of dmix");
  }

  void operator()() {
    MixReduceJob reduce = whole_.mix_gradient();
    if (p_.dmix.given()) clear_mix_gradient(reduce, p_.Hm, p_.stream);
    for (const WaveRange& range : whole_.waves()) {
      range_ = range;
      whole_wave_ = whole_.wave(range);
      WaveRange own = range;
      own.first_block = range.first_sequence * m(), own.blocks = range.sequences * m();
      wave_ = local_.wave(own);
      wave_.layout = local_layout(p_, local_p_);
      switch (p_.part.phase) {
        case Phase::kSummaries: summaries(); break;
        case Phase::kOutput: output(); break;
        case Phase::kQueries: queries(reduce); break;
        case Phase::kKeys: keys(); break;
        case Phase::kWhole: break;
      }
    }
  }

 private:
  [[nodiscard]] std::int64_t m() const { return p_.part.blocks; }
  [[nodiscard]] std::int32_t columns() const { return static_cast<std::int32_t>(p_.summary_size()); }
  [[nodiscard]] DeviceMix local_mix() const {  // entry (i, i) is that of local block i
    DeviceMix mix = whole_.mix();
    mix.data += p_.part.first * (mix.row_stride + mix.column_stride);
    return mix;
  }
  [[nodiscard]] const float* z_of(const float* rows) const {
    return p_.normalized() ? rows + whole_.z_offset() : nullptr;
  }

  // ---- Rows between the exchanged tensors [blocks, B, heads, X] and the buffers of a wave

  [[nodiscard]] RowCopyJob copy(const float* from, float* to, bool of_queries, std::int64_t blocks) const {
    RowCopyJob job;
    job.from = from, job.to = to;
    job.heads = static_cast<std::int32_t>(range_.kv_heads * (of_queries ? p_.group() : 1));
    job.sequences = static_cast<std::int32_t>(range_.sequences), job.blocks = static_cast<std::int32_t>(blocks);
    job.columns = columns();
    return job;
  }
  void set_from(RowCopyJob& job, std::int64_t blocks_per_sequence, std::int64_t stride) const {
    job.from_block = stride, job.from_sequence = blocks_per_sequence * stride;
    job.from_head = range_.sequences * job.from_sequence;
  }
  void set_to(RowCopyJob& job, std::int64_t blocks_per_sequence, std::int64_t stride) const {
    job.to_block = stride, job.to_sequence = blocks_per_sequence * stride;
    job.to_head = range_.sequences * job.to_sequence;
  }
  [[nodiscard]] std::int64_t exchanged_offset(std::int64_t heads, bool of_queries) const {
    const std::int64_t head = range_.first_kv_head * (of_queries ? p_.group() : 1);
    return (range_.first_sequence * heads + head) * columns();
  }
  void take_in(const ConstView& gathered, bool of_queries, float* to) const {  // all M rows
    const std::int64_t heads = of_queries ? p_.H : p_.Hkv;
    RowCopyJob job = copy(data_as<float>(gathered) + exchanged_offset(heads, of_queries), to, of_queries, p_.M);
    job.from_head = columns(), job.from_sequence = heads * columns(), job.from_block = p_.B * heads * columns();
    set_to(job, p_.M, whole_.summary_stride());
    copy_rows(job, p_.stream);
  }
  // Local rows; those of query heads are summed where kv heads are sent.
  void hand_out(const float* rows, bool rows_of_queries, bool sends_queries, const View& own) const {
    const std::int64_t heads = sends_queries ? p_.H : p_.Hkv, stride = whole_.summary_stride();
    RowCopyJob job = copy(rows, data_as<float>(own) + exchanged_offset(heads, sends_queries), sends_queries, m());
    set_from(job, m(), stride);
    if (rows_of_queries && !sends_queries) {
      job.members = static_cast<std::int32_t>(p_.group()), job.from_member = job.from_head;
      job.from_head *= p_.group();
    }
    job.to_head = columns(), job.to_sequence = heads * columns(), job.to_block = p_.B * heads * columns();
    copy_rows(job, p_.stream);
  }
  // The local ones of all rows.
  void pick(const float* whole, bool of_queries, float* local) const {
    const std::int64_t stride = whole_.summary_stride();
    RowCopyJob job = copy(whole + p_.part.first * stride, local, of_queries, m());
    set_from(job, p_.M, stride), set_to(job, m(), stride);
    copy_rows(job, p_.stream);
  }
  // And back, of `floats` each, among zeros.
  void spread(const float* local, float* whole, std::int64_t stride, std::int32_t floats) const {
    const std::int64_t rows = range_.kv_heads * p_.group() * range_.sequences * p_.M;
    device_fill(whole, 0, rows * stride * static_cast<std::int64_t>(sizeof(float)), p_.device(), p_.stream);
    RowCopyJob job = copy(local, whole + p_.part.first * stride, /*of_queries=*/true, m());
    set_from(job, m(), stride), set_to(job, p_.M, stride);
    job.columns = floats;
    copy_rows(job, p_.stream);
  }

  // ---- The phases

  void summaries() {
    SummaryJob job{.wave = wave_, .a = features(p_.k), .b = plain(p_.v), .out = at_.local};
    if (p_.normalized()) job.maybe_x = tensor_of(p_.has_den() ? p_.maybe_k_den : p_.k);
    block_summaries(p_.dtype(), job, p_.stream);
    hand_out(at_.local, /*rows_of_queries=*/false, /*sends_queries=*/false, p_.part.own);
  }

  // Mixed rows of the local blocks, and the denominators of their tokens.
  void mix_in() {
    take_in(p_.part.gathered, /*of_queries=*/false, at_.S);
    MixJob mixing{.wave = whole_wave_, .mix = whole_.mix(), .in = at_.S, .out = at_.mixed};
    mixing.terms = p_.causal ? MixTerms::kBefore : MixTerms::kAll;
    mixing.in_stride = mixing.out_stride = whole_.summary_stride(), mixing.columns = columns();
    mix_blocks(p_.dtype(), mixing, p_.stream);
    pick(at_.mixed, /*of_queries=*/true, at_.local);
    if (!p_.normalized()) return;
    const DeviceTensor q = tensor_of(p_.has_den() ? p_.maybe_q_den : p_.q);
    if (p_.causal) {
      CausalDenominatorJob job{.wave = wave_, .mix = local_mix()};
      job.q = q, job.k = tensor_of(p_.has_den() ? p_.maybe_k_den : p_.k);
      job.z = z_of(at_.local), job.eps = static_cast<float>(p_.eps), job.den = at_.maybe_den;
      job.maybe_open = at_.maybe_open;
      causal_denominators(p_.dtype(), job, p_.stream);
    } else {
      DenominatorJob job{.wave = wave_, .q = q, .z = z_of(at_.local), .add = static_cast<float>(p_.eps)};
      job.out = at_.maybe_den;
      denominators(p_.dtype(), job, p_.stream);
    }
  }

  void output() {
    mix_in();
    ReadOutJob out{.wave = wave_, .a = features(p_.q), .summaries = at_.local};
    if (p_.causal) out.y = features(p_.k), out.w = plain(p_.v);
    out.mix = local_mix(), out.maybe_den = at_.maybe_den, out.scale = static_cast<float>(p_.scale);
    out.out = tensor_of(p_.out);
    read_out(p_.dtype(), out, p_.stream);
  }

  void queries(MixReduceJob& reduce) {
    mix_in();
    if (p_.normalized() || (p_.causal && p_.dmix.given())) {
      RowDotJob dots{.wave = wave_, .q = features(p_.q), .dout = plain(p_.dout), .summaries = at_.local};
      if (p_.causal) dots.k = features(p_.k), dots.v = plain(p_.v), dots.maybe_inside = at_.maybe_inside;
      dots.maybe_before = at_.maybe_dden;
      row_dots(p_.dtype(), dots, p_.stream);
      DotGradientJob gradient{.wave = wave_, .mix = local_mix(), .maybe_before = at_.maybe_dden};
      gradient.maybe_inside = at_.maybe_inside, gradient.maybe_den = at_.maybe_den;
      gradient.maybe_open = at_.maybe_open, gradient.scale = static_cast<float>(p_.scale);
      gradient.maybe_dden = at_.maybe_dden;
      if (p_.causal) gradient.maybe_diagonal = at_.maybe_diagonal;
      dot_gradients(gradient, p_.stream);
    }
    query_gradients();
    SummaryJob job{.wave = wave_, .a = features(p_.q), .b = gradient_of_output(p_, at_.maybe_den)};
    if (p_.normalized()) job.maybe_x = tensor_of(p_.has_den() ? p_.maybe_q_den : p_.q);
    job.maybe_factor = at_.maybe_dden, job.of_queries = true, job.out = at_.d_local;
    block_summaries(p_.dtype(), job, p_.stream);
    hand_out(at_.d_local, /*rows_of_queries=*/true, p_.gradient_heads() == p_.H, p_.part.own);
    if (p_.part.own_terms.given()) terms(data_as<float>(p_.part.own_terms), /*back=*/false);
    if (p_.dmix.given()) mix_gradient(reduce);
  }

  void query_gradients() {
    if (p_.dq.given()) {
      ReadOutJob dq{.wave = wave_, .a = gradient_of_output(p_, at_.maybe_den), .summaries = at_.local};
      dq.transposed = true;
      if (p_.causal) dq.y = plain(p_.v), dq.w = features(p_.k), dq.mix = local_mix();
      if (!p_.has_den()) dq.maybe_z = z_of(at_.local), dq.maybe_factor = at_.maybe_dden;
      if (!p_.has_den() && p_.causal) dq.maybe_bias = at_.maybe_dden;
      dq.maybe_slope_of = tensor_of(p_.q), dq.out = tensor_of(p_.dq);
      read_out(p_.dtype(), dq, p_.stream);
    }
    if (p_.maybe_dq_den.given()) {
      VectorGradientJob dq_den{.wave = wave_, .z = z_of(at_.local), .maybe_factor = at_.maybe_dden};
      if (p_.causal) dq_den.maybe_y = tensor_of(p_.maybe_k_den), dq_den.mix = local_mix();
      dq_den.x = tensor_of(p_.maybe_q_den), dq_den.out = tensor_of(p_.maybe_dq_den);
      vector_gradients(p_.dtype(), dq_den, p_.stream);
    }
  }

  void mix_gradient(MixReduceJob& reduce) {
    const std::int64_t stride = whole_.summary_stride();
    spread(at_.d_local, at_.maybe_d_whole, stride, columns());
    if (p_.causal) spread(at_.maybe_diagonal, at_.maybe_whole_diagonal, 1, 1);
    MixProductJob product{
        .wave = whole_wave_, .a = at_.maybe_d_whole, .b = at_.S, .a_stride = stride, .b_stride = stride};
    product.columns = columns(), product.causal = p_.causal, product.parts = at_.maybe_parts;
    mix_products(p_.dtype(), product, p_.stream);
    reduce.wave = whole_wave_, reduce.parts = at_.maybe_parts, reduce.slices = static_cast<std::int32_t>(slices_);
    if (p_.causal) reduce.maybe_diagonal = at_.maybe_whole_diagonal;
    reduce_mix_gradient(reduce, p_.stream);
  }

  void keys() {
    const bool per_query = p_.gradient_heads() == p_.H;  // else summed over the heads that share a kv head
    take_in(p_.part.gathered, per_query, at_.mixed);
    MixJob unmixing{.wave = whole_wave_, .mix = whole_.mix(), .back = true, .over_group = true};
    if (!per_query) unmixing.wave.group = 1;
    unmixing.terms = p_.causal ? MixTerms::kAfter : MixTerms::kAll;
    unmixing.in = at_.mixed, unmixing.out = at_.S;
    unmixing.in_stride = unmixing.out_stride = whole_.summary_stride(), unmixing.columns = columns();
    mix_blocks(p_.dtype(), unmixing, p_.stream);
    float* const dS = at_.local;
    pick(at_.S, /*of_queries=*/false, dS);
    if (p_.part.terms.given()) terms(const_cast<float*>(data_as<float>(p_.part.terms)), /*back=*/true);
    const bool inside_den = p_.causal && p_.normalized();
    const float* const maybe_den = inside_den ? at_.maybe_den : nullptr;
    const float* const maybe_dden = inside_den ? at_.maybe_dden : nullptr;
    if (p_.dk.given()) {
      ReadOutJob dk{.wave = wave_, .of_queries = false, .a = plain(p_.v), .summaries = dS, .transposed = true};
      if (p_.causal) {
        dk.y = gradient_of_output(p_, maybe_den), dk.w = features(p_.q), dk.after = true, dk.mix = local_mix();
        if (!p_.has_den()) dk.maybe_bias = maybe_dden;
      }
      if (!p_.has_den()) dk.maybe_z = z_of(dS);
      dk.maybe_slope_of = tensor_of(p_.k), dk.out = tensor_of(p_.dk);
      read_out(p_.dtype(), dk, p_.stream);
    }
    if (p_.dv.given()) {
      ReadOutJob dv{.wave = wave_, .of_queries = false, .a = features(p_.k), .summaries = dS};
      if (p_.causal)
        dv.y = features(p_.q), dv.w = gradient_of_output(p_, maybe_den), dv.after = true, dv.mix = local_mix();
      dv.out = tensor_of(p_.dv);
      read_out(p_.dtype(), dv, p_.stream);
    }
    if (p_.maybe_dk_den.given()) {
      VectorGradientJob dk_den{.wave = wave_, .of_queries = false, .z = z_of(dS)};
      if (p_.causal)
        dk_den.maybe_factor = maybe_dden, dk_den.maybe_y = tensor_of(p_.maybe_q_den), dk_den.mix = local_mix();
      dk_den.x = tensor_of(p_.maybe_k_den), dk_den.out = tensor_of(p_.maybe_dk_den);
      vector_gradients(p_.dtype(), dk_den, p_.stream);
    }
  }

  void terms(float* given, bool back) const {
    TermsJob job;
    job.den = at_.maybe_den, job.dden = at_.maybe_dden;
    job.terms = given + (range_.first_sequence * p_.N * p_.H + range_.first_kv_head * p_.group()) * 2;
    job.sequence_stride = m() * p_.C, job.head_stride = range_.sequences * job.sequence_stride;
    job.heads = static_cast<std::int32_t>(range_.kv_heads * p_.group()),
    job.all_heads = static_cast<std::int32_t>(p_.H);
    job.sequences = static_cast<std::int32_t>(range_.sequences), job.tokens = static_cast<std::int32_t>(p_.N);
    job.scale = static_cast<float>(p_.scale), job.back = back;
    copy_terms(job, p_.stream);
  }

  const Problem& p_;
  const Problem local_p_, whole_p_;
  Call whole_, local_;
  Buffers at_{};
  std::int64_t slices_ = 0;
  WaveRange range_{};
  Wave whole_wave_, wave_;
};

}  // namespace

void phases_cuda(const Problem& p, Workspace& workspace, Executor& /*executor*/) {
  PhaseRun run(p, workspace);
  if (!workspace.counting()) run();
}

}  // namespace mhla
