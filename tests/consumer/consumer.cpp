// MHLA with a mix of ones is global linear attention. With q = k = 1 everywhere its output is the mean of v: an
// answer that is known without computing it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"

int main() try {
  const std::int64_t N = 12, D = 4;
  std::vector<double> q(N * D, 1.0), v(N * D), mix(4, 1.0), out(N * D);
  for (std::int64_t t = 0; t < N; ++t) {
    for (std::int64_t d = 0; d < D; ++d) v[t * D + d] = static_cast<double>(t);
  }
  mhla::BidirectionalParams params;
  params.q = params.k = mhla::ConstView(q.data(), mhla::DType::kF64, {1, N, 1, D});
  params.v = mhla::ConstView(v.data(), mhla::DType::kF64, {1, N, 1, D});
  params.mix = mhla::ConstView(mix.data(), mhla::DType::kF64, {2, 2});
  params.layout = mhla::Layout::line(6);
  mhla::bidirectional_forward(params, mhla::View(out.data(), mhla::DType::kF64, {1, N, 1, D}));
  for (const double value : out) {
    if (!(std::abs(value - 5.5) <= 1e-6)) mhla::fail("consumer: got ", value, ", want 5.5");
  }
  std::puts("consumer: 5.5 everywhere");
  return 0;
} catch (const mhla::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
