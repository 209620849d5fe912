// Helpers of the streaming tests: a case as a stream of tokens, and the one pass it must agree with bit for bit.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/cases.h"
#include "mhla/testing/run_case.h"

namespace mhla {

inline StreamingConfig config_of(const Case& c) {
  StreamingConfig config;
  config.H = c.H, config.Hkv = c.Hkv, config.D = c.D, config.E = c.E;
  config.chunk = c.layout.block_size;
  config.dtype = c.dtype;
  config.feature_map = c.feature_map;
  config.normalizer = c.normalizer;
  config.eps = c.eps, config.scale = c.scale;
  config.beyond_mix = c.extend ? BeyondMix::kExtend : BeyondMix::kError;
  config.den_features = c.den;
  return config;
}

// Tokens [t, t + count) of batch elements [b, b + batch).
template <class V>
V tokens_of(V x, std::int64_t t, std::int64_t count, std::int64_t b, std::int64_t batch) {
  if (!x.given()) return x;
  const std::int64_t offset = (b * x.stride[0] + t * x.stride[1]) * size_of(x.dtype);
  if constexpr (std::is_same_v<V, View>)
    x.data = static_cast<std::byte*>(x.data) + offset;
  else
    x.data = static_cast<const std::byte*>(x.data) + offset;
  x.shape[0] = batch, x.shape[1] = count;
  return x;
}

inline Tensor one_pass(const Case& c, const CaseInputs& inputs, std::string_view candidate) {
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  chunkwise_forward(chunkwise_params(c, inputs), out.view(), {.candidate = candidate});
  return out;
}

// Tokens [t, t + count) of batch elements [b, b + states) of a case, into the same place of `out`.
inline void append(const CaseInputs& inputs, const std::vector<StreamingState*>& states, std::int64_t t,
                   std::int64_t count, std::int64_t b, View out, const RunOptions& run = {}) {
  const auto batch = static_cast<std::int64_t>(states.size());
  StreamingParams params;
  params.states = states;
  params.q = tokens_of(inputs.q, t, count, b, batch);
  params.k = tokens_of(inputs.k, t, count, b, batch);
  params.v = tokens_of(inputs.v, t, count, b, batch);
  params.maybe_q_den = tokens_of(inputs.maybe_q_den, t, count, b, batch);
  params.maybe_k_den = tokens_of(inputs.maybe_k_den, t, count, b, batch);
  params.out = tokens_of(out, t, count, b, batch);
  streaming_append(params, run);
}
inline void append(const Case&, const CaseInputs& inputs, const std::vector<StreamingState*>& states, std::int64_t t,
                   std::int64_t count, std::int64_t b, Tensor& out, const RunOptions& run = {}) {
  append(inputs, states, t, count, b, out.view(), run);
}

inline std::vector<StreamingState> states_of(const Case& c, const CaseInputs& inputs, std::string_view candidate,
                                             std::int64_t count) {
  StreamingConfig config = config_of(c);
  if (on_device(candidate)) config.device = 0;
  std::vector<StreamingState> states;
  for (std::int64_t b = 0; b < count; ++b) states.emplace_back(config, inputs.mix, candidate);
  return states;
}

inline std::vector<StreamingState*> pointers(std::vector<StreamingState>& states) {
  std::vector<StreamingState*> all;
  for (StreamingState& state : states) all.push_back(&state);
  return all;
}

// The whole case in calls of the given lengths, all batch elements together.
inline Tensor streamed(const Case& c, const CaseInputs& inputs, std::string_view candidate,
                       const std::vector<std::int64_t>& lengths, const RunOptions& run = {}) {
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  std::vector<StreamingState> states = states_of(c, inputs, candidate, c.B);
  std::int64_t t = 0;
  for (const std::int64_t length : lengths) {
    append(c, inputs, pointers(states), t, length, 0, out, run);
    t += length;
  }
  return out;
}

// Lengths that add up to N: all at once, token by token, or random up to `most`.
inline std::vector<std::int64_t> random_lengths(std::int64_t N, std::int64_t most, Random& random) {
  std::vector<std::int64_t> lengths;
  while (N > 0) {
    lengths.push_back(std::min(N, 1 + random.below(most)));
    N -= lengths.back();
  }
  return lengths;
}

inline std::string text_of(const std::vector<std::int64_t>& lengths) {
  std::string text;
  for (const std::int64_t length : lengths) text += str(text.empty() ? "" : "+", length);
  return text;
}

}  // namespace mhla
