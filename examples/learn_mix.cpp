// Backward, and threads of the caller's choice: gradient descent on the mixing matrix alone. The target comes from a
// hidden matrix that looks at the next block only; starting from a uniform one, the loss falls.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/bidirectional/bidirectional.h"

namespace {

constexpr std::int64_t B = 1, N = 128, H = 2, D = 16, C = 32, M = N / C;

mhla::View tokens(std::vector<float>& x) { return {x.data(), mhla::DType::kF32, {B, N, H, D}}; }
mhla::View matrix(std::vector<float>& x) { return {x.data(), mhla::DType::kF32, {M, M}}; }

}  // namespace

int main() try {
  std::vector<float> q(B * N * H * D), k(q), v(q), target(q), out(q), dout(q);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const auto x = static_cast<float>(i);
    q[i] = std::sin(1.7f * x), k[i] = std::cos(2.3f * x), v[i] = std::sin(0.9f * x) + std::cos(0.01f * x);
  }
  std::vector<float> hidden(M * M, 0.05f), mix(M * M, 1.0f / M), dmix(M * M);
  for (std::int64_t i = 0; i < M; ++i) hidden[i * M + (i + 1) % M] = 1;

  mhla::ThreadPool pool(2);  // results do not depend on the number of threads
  const mhla::RunOptions run{.maybe_executor = &pool};
  mhla::BidirectionalParams params;
  params.q = tokens(q), params.k = tokens(k), params.v = tokens(v);
  params.layout = mhla::Layout::line(C);
  params.mix = matrix(hidden);
  mhla::bidirectional_forward(params, tokens(target), run);

  params.mix = matrix(mix);
  mhla::BidirectionalGrads grads;
  grads.dout = tokens(dout);
  grads.dmix = matrix(dmix);  // q, k and v stay as they are: a gradient that is not given is not computed
  double first = 0, loss = 0;
  for (int step = 0; step <= 300; ++step) {
    mhla::bidirectional_forward(params, tokens(out), run);
    loss = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      dout[i] = out[i] - target[i];
      loss += 0.5 * dout[i] * dout[i];
    }
    if (step == 0) first = loss;
    if (step % 100 == 0) std::printf("step %3d  loss %.6f\n", step, loss);
    mhla::bidirectional_backward(params, grads, run);
    for (std::size_t i = 0; i < mix.size(); ++i) mix[i] = std::max(0.0f, mix[i] - 0.01f * dmix[i]);
  }
  if (!(loss < 0.1 * first)) mhla::fail("learn_mix: the loss went from ", first, " to ", loss, " only");
  return 0;
} catch (const mhla::Error& error) {
  std::fprintf(stderr, "mhla: %s\n", error.what());
  return 1;
}
