// The streaming form as a language model uses it: a prompt, then token by
// token, a draft taken back, a fork. The outputs are those of one causal pass
// over the whole sequence, bit for bit.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/kernels/streaming/streaming.h"

namespace {

constexpr std::int64_t N = 200, H = 4, Hkv = 2, D = 32, E = 64, C = 64, L = 8;

// Tokens [start, start + count) of x [1, N, heads, size].
mhla::View part(std::vector<float>& x, std::int64_t heads, std::int64_t size, std::int64_t start, std::int64_t count) {
  return {x.data() + start * heads * size, mhla::DType::kF32, {1, count, heads, size}};
}

}  // namespace

int main() try {
  std::vector<float> q(N * H * D), k(N * Hkv * D), v(N * Hkv * E), whole(N * H * E), streamed(N * H * E), mix(L * L);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.11f * static_cast<float>(i));
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = std::cos(0.13f * static_cast<float>(i));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.17f * static_cast<float>(i));
  const mhla::View mix_view(mix.data(), mhla::DType::kF32, {L, L});
  mhla::init_causal_mix(mhla::CausalInit::kLinear, mix_view);

  mhla::ChunkwiseParams params;
  params.q = part(q, H, D, 0, N), params.k = part(k, Hkv, D, 0, N), params.v = part(v, Hkv, E, 0, N);
  params.mix = mix_view;
  params.chunk = C;
  mhla::chunkwise_forward(params, part(whole, H, E, 0, N));

  mhla::StreamingState state({.H = H, .Hkv = Hkv, .D = D, .E = E, .chunk = C}, mix_view);
  const auto append = [&](mhla::StreamingState& to, std::int64_t start, std::int64_t count) {
    mhla::StreamingState* states[] = {&to};
    mhla::StreamingParams step;
    step.states = states;
    step.q = part(q, H, D, start, count), step.k = part(k, Hkv, D, start, count),
    step.v = part(v, Hkv, E, start, count);
    step.out = part(streamed, H, E, start, count);
    mhla::streaming_append(step);
  };

  append(state, 0, 100);                                         // the prompt
  for (std::int64_t t = 100; t < 150; ++t) append(state, t, 1);  // decode
  append(state, 150, 10);                                        // a draft of ten tokens ...
  state.rollback(7);                                             // ... of which three are kept
  mhla::StreamingState fork = state;                             // a second continuation, independent of the first
  append(fork, 153, 5);
  for (std::int64_t t = 153; t < N; ++t) append(state, t, 1);

  if (std::memcmp(streamed.data(), whole.data(), whole.size() * sizeof(float)) != 0) {
    mhla::fail("streaming_decode: the streamed outputs differ from one pass");
  }
  std::printf(
      "%lld tokens streamed, the bits of one pass; the state holds "
      "%lld bytes\n",
      static_cast<long long>(N), static_cast<long long>(state.bytes()));
  return 0;
} catch (const mhla::Error& error) {
  std::fprintf(stderr, "mhla: %s\n", error.what());
  return 1;
}
