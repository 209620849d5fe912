// MHLA a few tokens at a time: states, and the parts of a step.
#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

constexpr const char* kEntry = "MhlaAttention";

}  // namespace

StreamingState MhlaAttentionImpl::streaming_state(std::optional<std::int64_t> rollback) const {
  if (!options_.causal) fail(kEntry, "::streaming_state: the layer is not causal, expected options.causal");
  clamp_mix();
  StreamingConfig config;
  config.H = options_.heads, config.Hkv = options_.kv_heads, config.E = options_.value_dim;
  config.D = feature_size(options_.features, options_.head_dim);
  config.chunk = options_.chunk;
  config.dtype = ops::dtype_of(qkv_->weight, kEntry, "qkv.weight");
  config.feature_map = maps_outside() ? FeatureMap::kIdentity : fused_map(options_.features);
  config.normalizer = normalizer();
  config.eps = options_.eps;
  config.scale = options_.scale;
  config.beyond_mix = options_.beyond_mix;
  config.den_features = options_.rope && normalizer() != Normalizer::kNone;
  config.rollback = rollback;
  config.device = mix.is_cuda() ? mix.get_device() : kCpu;
  const torch::Tensor wide = mix.detach().to(config.dtype == DType::kF64 ? torch::kDouble : torch::kFloat).contiguous();
  return StreamingState(config, ops::view_of(wide, kEntry, "mix"));
}

AttentionState MhlaAttentionImpl::begin(std::int64_t batch) const {
  if (batch < 1) fail(kEntry, "::begin: batch is ", batch, ", expected at least 1");
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
      fail(kEntry, "::stream: sequence ", b, " stands at ", state.positions[b], ", and ", tokens,
           " more tokens pass the ", state.streams[b].capacity(), " that mix has rows for; expected beyond_mix extend");
  }
}

RopeTable MhlaAttentionImpl::stream_table(const torch::Tensor& positions, std::int64_t end) const {
  return options_.rope ? rope_->at(positions, end, qkv_->weight) : RopeTable{};
}

MhlaAttentionImpl::StreamStep MhlaAttentionImpl::open_step(const torch::Tensor& x, const RopeTable& table,
                                                           AttentionState* maybe_state) {
  StreamStep step;
  step.p = project(x, {}, maybe_state);
  prepare(step.p, table, step.inputs);
  for (torch::Tensor* part : {&step.inputs.q, &step.inputs.k, &step.inputs.v, &step.inputs.q_den, &step.inputs.k_den}) {
    if (part->defined()) *part = part->to(qkv_->weight.scalar_type());  // a state's; autocast has another
  }
  step.out = torch::empty({x.size(0), x.size(1), options_.heads, options_.value_dim}, step.inputs.v.options());
  return step;
}

void MhlaAttentionImpl::run_step(const StreamStep& step, AttentionState& state) {
  std::vector<StreamingState*> states;
  for (StreamingState& stream : state.streams) states.push_back(&stream);
  StreamingParams params;
  params.states = states;
  params.q = ops::view_of(step.inputs.q, kEntry, "q"), params.k = ops::view_of(step.inputs.k, kEntry, "k");
  params.v = ops::view_of(step.inputs.v, kEntry, "v");
  params.maybe_q_den = ops::view_of(step.inputs.q_den, kEntry, "q_den");
  params.maybe_k_den = ops::view_of(step.inputs.k_den, kEntry, "k_den");
  params.out = ops::output_view(step.out, kEntry, "out");
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
