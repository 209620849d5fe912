#include "mhla/ops/context_parallel.h"

#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

// Lives as long as the graph; the group is the caller's.
struct SharedCall : torch::CustomClassHolder {
  SharedCall(const PhaseOptions& given, std::vector<std::int64_t> rows, ContextGroup& with)
      : options(given), counts(std::move(rows)), group(with) {}
  PhaseOptions options;
  std::vector<std::int64_t> counts;  // blocks of every process
  ContextGroup& group;
};

struct SharedAttention : torch::autograd::Function<SharedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& mix, const Optional<at::Tensor>& q_den,
                            const Optional<at::Tensor>& k_den, const c10::intrusive_ptr<SharedCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const AttentionInputs in{q, k, v, mix, value_or_undefined(q_den), value_or_undefined(k_den), {}};
    const at::Tensor summaries = call->group.gather(phase_summaries(in, call->options), call->counts);
    context->save_for_backward({in.q, in.k, in.v, in.mix, in.q_den, in.k_den, summaries});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return phase_output(summaries, in, call->options);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dout) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const AttentionInputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], {}};
    const auto call = c10::static_intrusive_pointer_cast<SharedCall>(context->saved_data["call"].toCapsule());
    Wanted wanted{};
    std::size_t edge = 0;  // inputs that are not given have none
    const auto inputs = differentiable(in);
    for (std::size_t i = 0; i < kGradients; ++i) {
      if (inputs[i]->defined()) wanted[i] = context->needs_input_grad(edge++);
    }
    const PhaseQueryGrads queries =
        phase_queries(dout[0], saved[6], in, call->options, {wanted[0], wanted[3], wanted[4]});
    PhaseKeyGrads keys;
    if (wanted[1] || wanted[2] || wanted[5]) {
      const at::Tensor dP = call->group.gather(queries.dP, call->counts);
      keys = phase_keys(dout[0], dP, queries.terms, in, call->options, {wanted[1], wanted[2], wanted[5]});
    }
    return {queries.dq, keys.dk, keys.dv, queries.dmix, queries.dq_den, keys.dk_den, {}};
  }
};

struct GroupCall : torch::CustomClassHolder {
  explicit GroupCall(ContextGroup& with) : group(with) {}
  ContextGroup& group;
};

// What process r has under `own` goes to process r + `step`; zeros where there is none.
at::Tensor shifted(const at::Tensor& own, ContextGroup& group, std::int64_t step) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 1);
  const at::Tensor all = group.gather(own.contiguous().unsqueeze(0), counts);
  const std::int64_t from = group.rank() - step;
  return from >= 0 && from < group.size() ? all[from].clone() : at::zeros_like(own);
}

struct RowsBefore : torch::autograd::Function<RowsBefore> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t count,
                            const c10::intrusive_ptr<GroupCall>& call) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["tokens"] = x.size(1);
    return shifted(x.narrow(1, x.size(1) - count, count), call->group, 1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const auto call = c10::static_intrusive_pointer_cast<GroupCall>(context->saved_data["call"].toCapsule());
    const at::Tensor tail = shifted(dy[0], call->group, -1);
    const std::int64_t before = context->saved_data["tokens"].toInt() - tail.size(1);
    return {at::constant_pad_nd(tail, {0, 0, before, 0}), {}, {}};
  }
};

}  // namespace

TokenRange tokens_of_rank(std::int64_t chunk, std::int64_t tokens, std::int64_t size, std::int64_t rank) {
  const BlockRange range = blocks_of_rank(Layout::line(chunk), tokens, size, rank);
  const std::int64_t first = range.first * chunk;
  return {first, std::min((range.first + range.blocks) * chunk, tokens) - first};
}

at::Tensor shared_attention(const AttentionInputs& in, PhaseOptions options, ContextGroup& group) {
  constexpr const char* kEntry = "shared_attention";
  if (in.cu_seqlens.defined()) fail(kEntry, ": cu_seqlens is given: packed sequences cannot be cut between processes");
  std::vector<std::int64_t> counts;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    const BlockRange range = blocks_of_rank(options.layout, options.tokens, group.size(), rank);
    if (rank == group.rank()) options.first_block = range.first, options.local_blocks = range.blocks;
    counts.push_back(range.blocks);
  }
  return SharedAttention::apply(in.q, in.k, in.v, wide_mix(in.mix), maybe(in.q_den), maybe(in.k_den),
                                c10::make_intrusive<SharedCall>(options, counts, group));
}

at::Tensor rows_before(const at::Tensor& x, std::int64_t count, ContextGroup& group) {
  if (x.dim() != 3 || x.size(1) < count)
    fail("rows_before: x has shape ", c10::str(x.sizes()), ", expected [B, n, C] with n of at least ", count);
  return RowsBefore::apply(x, count, c10::make_intrusive<GroupCall>(group));
}

}  // namespace mhla::ops
