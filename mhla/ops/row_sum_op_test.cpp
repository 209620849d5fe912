// ops::row_sum against f64, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

void expect_sums(const std::vector<std::int64_t>& shape, c10::Device device, at::ScalarType type, double most) {
  SCOPED_TRACE(str(c10::str(at::IntArrayRef(shape)), " ", c10::str(type)));
  at::manual_seed(4);
  const at::Tensor x = at::randn(shape, at::kDouble).to(type);
  const at::Tensor want = x.to(at::kDouble).reshape({-1, shape.back()}).sum(0), got = row_sum(x.to(device));
  EXPECT_EQ(got.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
  ASSERT_EQ(got.sizes(), want.sizes());
  if (want.numel() == 0) return;
  EXPECT_LE((got.cpu().to(at::kDouble) - want).abs().max().item<double>(),
            most * std::sqrt(x.numel() / shape.back() + 1.0));
  EXPECT_TRUE(at::equal(row_sum(x.to(device)), got));
}

TEST(RowSumOp, IsTheSumOnTheCpu) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{0, 3}, {1, 1}, {7, 5}, {3, 40, 12}, {4097, 24}}) {
    expect_sums(shape, at::kCPU, at::kDouble, 1e-12);
    expect_sums(shape, at::kCPU, at::kFloat, 1e-5);
    expect_sums(shape, at::kCPU, at::kBFloat16, 1e-5);
    expect_sums(shape, at::kCPU, at::kHalf, 1e-5);
  }
  EXPECT_THROW(row_sum(at::zeros({})), Error);
}

#ifdef MHLA_TORCH_CUDA
TEST(RowSumOp, IsTheSumOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const std::int64_t rows : {0, 1, 63, 129, 5000, 70000})
    for (const std::int64_t columns : {1, 3, 8, 192, 384, 1000, 1536, 4104}) {
      expect_sums({rows, columns}, at::kCUDA, at::kFloat, 1e-5);
      expect_sums({rows, columns}, at::kCUDA, at::kBFloat16, 1e-5);
      expect_sums({rows, columns}, at::kCUDA, at::kHalf, 1e-5);
    }
}
#endif

}  // namespace
}  // namespace mhla::ops
