// The bidirectional form on an image: 24 x 32 tokens in 3 x 4 blocks, 4 heads. q, k and v are slices of one fused
// projection [B, N, 3, H, D], read in place through strides; the output is what an output projection would take.
#include <cmath>
#include <cstdio>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/mixing/mixing.h"

namespace {

constexpr std::int64_t B = 2, kRows = 24, kColumns = 32, N = kRows * kColumns, H = 4, D = 32;
constexpr std::int64_t kBlockRows = 3, kBlockColumns = 4, M = kBlockRows * kBlockColumns;

// Slice 0, 1 or 2 of the fused projection: shape [B, N, H, D], a token every 3 * H * D elements.
mhla::ConstView slice(const std::vector<float>& qkv, std::int64_t which) {
  mhla::ConstView view(qkv.data() + which * H * D, mhla::DType::kF32, {B, N, H, D});
  view.stride = {N * 3 * H * D, 3 * H * D, D, 1};
  return view;
}

}  // namespace

int main() try {
  std::vector<float> qkv(B * N * 3 * H * D), mix(M * M), out(B * N * H * D);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(0.37f * static_cast<float>(i));

  // A fresh mixing matrix: near blocks weigh more, every row sums to one. A trained one has the same shape.
  const mhla::View mix_view(mix.data(), mhla::DType::kF32, {M, M});
  mhla::init_mix({}, mhla::BlockGrid::grid2d(kBlockRows, kBlockColumns), mix_view);

  mhla::BidirectionalParams params;
  params.q = slice(qkv, 0);
  params.k = slice(qkv, 1);
  params.v = slice(qkv, 2);
  params.mix = mix_view;
  params.layout = mhla::Layout::grid2d(kRows, kColumns, kBlockRows, kBlockColumns);
  mhla::bidirectional_forward(params, mhla::View(out.data(), mhla::DType::kF32, {B, N, H, D}));

  // An output is a weighted mean of values, so it cannot leave their range.
  float largest = 0;
  for (const float value : out) {
    if (!(std::abs(value) <= 1.001f)) mhla::fail("grid_attention: ", value, " is outside [-1, 1], the range of v");
    largest = std::max(largest, std::abs(value));
  }
  std::printf("attended over %lld tokens in %lld blocks, largest output %.4f\n", static_cast<long long>(N),
              static_cast<long long>(M), static_cast<double>(largest));
  return 0;
} catch (const mhla::Error& error) {
  std::fprintf(stderr, "mhla: %s\n", error.what());
  return 1;
}
