// MHLA a few tokens at a time: states, and the parts of a step.
#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/ops/rows_step.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kMhlaAttentionStreamEntry = "MhlaAttention";

// Up to this many sequences the linear layers are ops::linear_rows: one kernel family, so that a sequence has the same
// bits in all of these batches.
constexpr std::int64_t kFewRows = kMostRows;

// The output projection with the norm of heads before it. Where it takes gates, they are silu(gate) already.
ops::RowsInputs with_head_norm(ops::RowsInputs in, const RmsNorm& norm, std::int64_t head, const torch::Tensor& gate) {
  in.before = RowsBefore::kHeadNorm, in.head = head;
  in.scale = norm->weight, in.gate = gate, in.eps = norm->eps_for(in.x);
  return in;
}

}  // namespace

StreamingState MhlaAttentionImpl::streaming_state(std::optional<std::int64_t> rollback) const {
  if (!options_.causal)
    fail(kMhlaAttentionStreamEntry, "::streaming_state: the layer is not causal, expected options.causal");
  clamp_mix();
  StreamingConfig config;
  config.H = options_.heads, config.Hkv = options_.kv_heads, config.E = options_.value_dim;
  config.D = feature_size(options_.features, options_.head_dim);
  config.chunk = options_.chunk;
  config.dtype = ops::dtype_of(qkv_->weight, kMhlaAttentionStreamEntry, "qkv.weight");
  config.feature_map = maps_outside() ? FeatureMap::kIdentity : fused_map(options_.features);
  config.normalizer = normalizer();
  config.eps = options_.eps;
  config.scale = options_.scale;
  config.beyond_mix = options_.beyond_mix;
  config.den_features = options_.rope && normalizer() != Normalizer::kNone;
  config.rollback = rollback;
  config.device = mix.is_cuda() ? mix.get_device() : kCpu;
  const torch::Tensor wide = mix.detach().to(config.dtype == DType::kF64 ? torch::kDouble : torch::kFloat).contiguous();
  return StreamingState(config, ops::view_of(wide, kMhlaAttentionStreamEntry, "mix"));
}

AttentionState MhlaAttentionImpl::begin(std::int64_t batch) const {
  if (batch < 1) fail(kMhlaAttentionStreamEntry, "::begin: batch is ", batch, ", expected at least 1");
  AttentionState state;
  state.positions.assign(static_cast<std::size_t>(batch), 0);
  state.streams.push_back(streaming_state());
  for (std::int64_t b = 1; b < batch; ++b) state.streams.push_back(state.streams.front());
  if (options_.short_conv != 0) {
    state.tensors["q_tail"] = q_conv_->empty_tail(batch), state.tensors["k_tail"] = k_conv_->empty_tail(batch);
    state.tensors["v_tail"] = v_conv_->empty_tail(batch);
  }
  return state;
}

void MhlaAttentionImpl::expect_room(const AttentionState& state, std::int64_t tokens) const {
  for (std::size_t b = 0; b < state.streams.size(); ++b) {
    if (state.streams[b].capacity() - state.positions[b] < tokens)
      fail(kMhlaAttentionStreamEntry, "::stream: sequence ", b, " stands at ", state.positions[b], ", and ", tokens,
           " more tokens pass the ", state.streams[b].capacity(), " that mix has rows for; expected beyond_mix extend");
  }
}

RopeTable MhlaAttentionImpl::stream_table(const torch::Tensor& positions, std::int64_t end) const {
  return options_.rope ? rope_->at(positions, end, qkv_->weight) : RopeTable{};
}

MhlaAttentionImpl::StreamStep MhlaAttentionImpl::step_of(const Projected& p, const RopeTable& table) {
  StreamStep step;
  step.p = p;
  prepare(step.p, table, step.inputs);
  for (torch::Tensor* part : {&step.inputs.q, &step.inputs.k, &step.inputs.v, &step.inputs.q_den, &step.inputs.k_den}) {
    if (part->defined()) *part = part->to(qkv_->weight.scalar_type());  // a state's; autocast has another
  }
  step.out = torch::empty({p.v.size(0), p.v.size(1), options_.heads, options_.value_dim}, step.inputs.v.options());
  return step;
}

MhlaAttentionImpl::StreamStep MhlaAttentionImpl::open_step(const torch::Tensor& x, const RopeTable& table,
                                                           AttentionState* maybe_state) {
  return step_of(project(x, {}, maybe_state), table);
}

ops::RowsInputs MhlaAttentionImpl::few_rows_in(const torch::Tensor& x, const RmsNorm& norm) const {
  ops::RowsInputs in;
  in.before = RowsBefore::kNorm, in.after = RowsAfter::kStore;
  in.x = x, in.scale = norm->weight, in.eps = norm->eps_for(x);
  in.weight = qkv_->weight, in.second = gate_->weight;
  return in;
}

ops::RowsInputs MhlaAttentionImpl::few_rows_out(const torch::Tensor& x, const torch::Tensor& attended) const {
  ops::RowsInputs in;
  in.after = RowsAfter::kAdd, in.x = attended.flatten(-2), in.add = x, in.weight = out_->weight;
  return in;
}

bool MhlaAttentionImpl::takes_few_rows(const torch::Tensor& x, const RmsNorm& norm) const {
  const MhlaAttentionOptions& o = options_;
  if (!x.is_cuda() || x.dim() != 3 || x.size(1) != 1 || x.size(0) > kFewRows || torch::GradMode::is_enabled() ||
      ops::autocast_on(at::kCUDA))
    return false;
  if (!o.causal || o.inner_norm || o.short_conv != 0 || o.qk_norm || o.qkv_bias || o.gate_bias || o.out_bias ||
      !o.head_norm || o.gate != Gate::kSilu || o.lepe != 0 || plain_ || (is_training() && o.dropout > 0.0))
    return false;
  const torch::Tensor attended =
      torch::empty({x.size(0), 1, o.heads, o.value_dim}, x.options().dtype(qkv_->weight.scalar_type()));
  return ops::rows_fit(few_rows_in(x, norm)) && ops::rows_fit(few_rows_out(x, attended));
}

MhlaAttentionImpl::StreamStep MhlaAttentionImpl::open_few_rows(const torch::Tensor& x, const RmsNorm& norm,
                                                               const RopeTable& table) {
  const MhlaAttentionOptions& o = options_;
  const ops::RowsInputs in = few_rows_in(x, norm);
  const torch::Tensor out =
      torch::empty({x.size(0), 1, o.heads, o.value_dim}, x.options().dtype(qkv_->weight.scalar_type()));
  const bool silu = ops::rows_fit(with_head_norm(few_rows_out(x, out), head_norm_, o.value_dim, out.flatten(-2)));
  if (o.rope && normalizer() == Normalizer::kNone && is_fused(o.features)) {  // q and k are turned on the way
    const std::vector<std::int64_t> width = widths();
    const ops::RowsStepInputs how{
        {table, width[0] + width[1], o.head_dim, fused_map(o.features)}, out_->weight, /*silu_second=*/silu};
    if (ops::rows_step_fit(in, how)) {
      const ops::RowsOutputs both = ops::linear_rows_step(in, how);
      StreamStep step;
      step.p = heads_of(both.out);
      step.inputs.q = step.p.q, step.inputs.k = step.p.k, step.inputs.v = step.p.v, step.gate = both.second;
      step.out = out;
      return step;
    }
  }
  const ops::RowsOutputs both = ops::linear_rows_step(in, {.turn = {}, .next = {}, .silu_second = silu});
  StreamStep step = step_of(heads_of(both.out), table);
  step.gate = both.second;
  return step;
}

torch::Tensor MhlaAttentionImpl::close_few_rows(const torch::Tensor& x, const StreamStep& step) {
  const ops::RowsInputs in = with_head_norm(few_rows_out(x, step.out), head_norm_, options_.value_dim, step.gate);
  if (ops::rows_fit(in)) return ops::linear_rows_step(in, {.turn = {}, .next = {}, .silu_done = true}).out;
  return ops::linear_rows(few_rows_out(x, head_norm_(step.out, step.gate.view_as(step.out)))).out;
}

StreamingParams MhlaAttentionImpl::step_params(const StreamStep& step, std::span<StreamingState* const> states) {
  StreamingParams params;
  params.states = states;
  params.q = ops::view_of(step.inputs.q, kMhlaAttentionStreamEntry, "q"),
  params.k = ops::view_of(step.inputs.k, kMhlaAttentionStreamEntry, "k");
  params.v = ops::view_of(step.inputs.v, kMhlaAttentionStreamEntry, "v");
  params.maybe_q_den = ops::view_of(step.inputs.q_den, kMhlaAttentionStreamEntry, "q_den");
  params.maybe_k_den = ops::view_of(step.inputs.k_den, kMhlaAttentionStreamEntry, "k_den");
  params.out = ops::output_view(step.out, kMhlaAttentionStreamEntry, "out");
  return params;
}

void MhlaAttentionImpl::run_step(const StreamStep& step, AttentionState& state) {
  RECORD_USER_SCOPE("mhla::streaming");
  const std::vector<StreamingState*> states = state.stream_pointers();
  const StreamingParams params = step_params(step, states);
  RunOptions run;
  torch::Tensor memory;
  if (step.out.is_cuda()) run.stream = ops::current_stream(step.out);
  if (step.out.is_cuda() && step.out.size(1) > 1) {  // scratch memory from PyTorch's allocator; one token needs none
    memory = torch::empty({streaming_append_workspace(params, run)}, step.out.options().dtype(torch::kByte));
    run.workspace = {static_cast<std::byte*>(memory.data_ptr()), static_cast<std::size_t>(memory.numel())};
  }
  streaming_append(params, run);
  for (std::int64_t& position : state.positions) position += step.out.size(1);
}

torch::Tensor MhlaAttentionImpl::stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) {
  const torch::NoGradGuard no_gradient;
  expect_room(state, x.size(1));  // before a convolution moves on
  const std::int64_t furthest = *std::max_element(state.positions.begin(), state.positions.end());
  const StreamStep step = open_step(x, stream_table(positions, furthest + x.size(1)), &state);
  run_step(step, state);
  return close_step(step);
}

}  // namespace mhla
