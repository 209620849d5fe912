// Against the definition, and the promise: a row's bits depend on that row alone.
#include "mhla/kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

std::vector<float> numbers(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(2.0 * random.uniform() - 1.0);
  return values;
}

ConstView rows(const std::vector<float>& values, std::int64_t N, std::int64_t K) {
  return {values.data(), DType::kF32, {N, K}};
}

std::vector<float> run(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
                       std::int64_t N, std::int64_t K, std::int64_t O, const RunOptions& options = {}) {
  constexpr std::size_t kGuard = 64;
  std::vector<float> out(static_cast<std::size_t>(N * O) + 2 * kGuard, std::nanf(""));
  LinearParams params{rows(x, N, K), rows(w, O, K), {}};
  if (!bias.empty()) params.maybe_bias = ConstView(bias.data(), DType::kF32, {O});
  linear_forward(params, View(out.data() + kGuard, DType::kF32, {N, O}), options);
  for (std::size_t i = 0; i < kGuard; ++i)
    EXPECT_TRUE(std::isnan(out[i]) && std::isnan(out[out.size() - 1 - i])) << "wrote outside";
  return {out.begin() + kGuard, out.end() - kGuard};
}

class EachTarget {
 public:
  ~EachTarget() { use_simd_target(""); }
  static std::vector<std::string> names() { return simd_targets(); }
};

TEST(Linear, EqualsTheDefinition) {
  const EachTarget back;
  for (const std::string& target : EachTarget::names()) {
    use_simd_target(target);
    for (const auto& [N, K, O] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {1, 64, 7}, {5, 33, 9}, {13, 100, 70}, {6, 16, 4}, {7, 0, 3}}) {
      const std::vector<float> x = numbers(N * K, 1), w = numbers(O * K, 2), bias = numbers(O, 3);
      for (const bool with_bias : {false, true}) {
        const std::vector<float> b = with_bias ? bias : std::vector<float>();
        RunOptions ref;
        ref.candidate = "ref";
        const std::vector<float> got = run(x, w, b, N, K, O), want = run(x, w, b, N, K, O, ref);
        for (std::size_t i = 0; i < got.size(); ++i)  // K sums of products below 1
          ASSERT_LE(std::abs(got[i] - want[i]), 0x1p-22 * (static_cast<double>(K) + 1)) << target << " " << i;
      }
    }
  }
}

TEST(Linear, ARowHasItsBitsInAnyCompany) {
  const EachTarget back;
  const std::int64_t N = 29, K = 77, O = 71;
  const std::vector<float> x = numbers(N * K, 4), w = numbers(O * K, 5), bias = numbers(O, 6);
  for (const std::string& target : EachTarget::names()) {
    use_simd_target(target);
    const std::vector<float> all = run(x, w, bias, N, K, O);
    for (const std::int64_t count : {1, 2, 3, 4, 5, 6, 7, 12})
      for (std::int64_t first = 0; first + count <= N; first += count) {
        const std::vector<float> part(x.begin() + first * K, x.begin() + (first + count) * K);
        const std::vector<float> some = run(part, w, bias, count, K, O);
        ASSERT_EQ(std::memcmp(some.data(), all.data() + first * O, some.size() * sizeof(float)), 0)
            << target << ": " << count << " rows from " << first << " on";
      }
    for (const std::int64_t outs : {1, 3, 33, 64}) {  // fewer outputs
      const std::vector<float> some = run(x, w, bias, N, K, outs);
      for (std::int64_t n = 0; n < N; ++n)
        ASSERT_EQ(std::memcmp(some.data() + n * outs, all.data() + n * O, static_cast<std::size_t>(outs) * 4), 0);
    }
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      RunOptions options;
      options.maybe_executor = &pool;
      ASSERT_EQ(run(x, w, bias, N, K, O, options), all) << threads << " threads";
    }
  }
}

// bf16 is f32 with its inputs and its output rounded: the same sums in the same order.
TEST(Linear, Bf16HasTheSumsOfF32) {
  const EachTarget back;
  const auto narrow = [](const std::vector<float>& from) {
    std::vector<bf16> to;
    for (const float value : from) to.push_back(to_bf16(value));
    return to;
  };
  const auto widen = [](const std::vector<bf16>& from) {
    std::vector<float> to;
    for (const bf16 value : from) to.push_back(to_f32(value));
    return to;
  };
  for (const std::string& target : EachTarget::names()) {
    use_simd_target(target);
    for (const auto& [N, K, O] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {1, 64, 7}, {5, 33, 9}, {13, 100, 70}, {2, 1030, 40}, {7, 0, 3}}) {
      const std::vector<bf16> x = narrow(numbers(N * K, 1)), w = narrow(numbers(O * K, 2)),
                              bias = narrow(numbers(O, 3));
      for (const bool with_bias : {false, true}) {
        const std::vector<float> sums =
            run(widen(x), widen(w), with_bias ? widen(bias) : std::vector<float>(), N, K, O);
        for (const char* candidate : {"", "ref"}) {
          std::vector<bf16> out(static_cast<std::size_t>(N * O) + 1, bf16{0x7fc1});
          LinearParams params{{x.data(), DType::kBF16, {N, K}}, {w.data(), DType::kBF16, {O, K}}, {}};
          if (with_bias) params.maybe_bias = ConstView(bias.data(), DType::kBF16, {O});
          RunOptions options;
          options.candidate = candidate;
          linear_forward(params, View(out.data(), DType::kBF16, {N, O}), options);
          EXPECT_EQ(out.back().bits, 0x7fc1) << "wrote outside";
          for (std::size_t i = 0; i < sums.size(); ++i) {
            if (options.candidate.empty())
              ASSERT_EQ(out[i].bits, to_bf16(sums[i]).bits) << target << " " << i;
            else
              ASSERT_LE(std::abs(to_f32(out[i]) - sums[i]), 0x1p-8 * std::abs(sums[i]) + 0x1p-14) << i;
          }
        }
      }
    }
  }
}

TEST(Linear, StridedRows) {
  const std::int64_t N = 3, K = 20, O = 5;
  const std::vector<float> x = numbers(N * 32, 7), w = numbers(O * K, 8);
  std::vector<float> packed, out(N * 8, -1.0f);
  for (std::int64_t n = 0; n < N; ++n) packed.insert(packed.end(), x.begin() + n * 32, x.begin() + n * 32 + K);
  LinearParams params{rows(x, N, K), rows(w, O, K), {}};
  params.x.stride[0] = 32;
  View view(out.data(), DType::kF32, {N, O});
  view.stride[0] = 8;
  linear_forward(params, view);
  const std::vector<float> want = run(packed, w, {}, N, K, O);
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t o = 0; o < 8; ++o)
      EXPECT_EQ(out[static_cast<std::size_t>(n * 8 + o)], o < O ? want[static_cast<std::size_t>(n * O + o)] : -1.0f);
}

TEST(Linear, NotANumberStaysInItsRow) {
  std::vector<float> x = numbers(8 * 40, 9);
  const std::vector<float> w = numbers(6 * 40, 10);
  const std::vector<float> clean = run(x, w, {}, 8, 40, 6);
  x[3 * 40 + 7] = std::nanf("");
  const std::vector<float> got = run(x, w, {}, 8, 40, 6);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (i / 6 == 3)
      EXPECT_TRUE(std::isnan(got[i]));
    else
      EXPECT_EQ(got[i], clean[i]);
  }
}

TEST(Linear, MistakesAreNamed) {
  std::vector<float> data(64);
  const auto said = [&](const LinearParams& params, const View& out) {
    return message_of([&] { linear_forward(params, out); });
  };
  const LinearParams good{rows(data, 2, 4), rows(data, 3, 4), {}};
  const View out(data.data(), DType::kF32, {2, 3});
  EXPECT_EQ(said({rows(data, 2, 4), rows(data, 3, 5), {}}, out),
            "linear_forward: weight has shape [3, 5], expected [O, 4]");
  EXPECT_EQ(said(good, View(data.data(), DType::kF32, {3, 2})),
            "linear_forward: out has shape [3, 2], expected [2, 3]");
  EXPECT_EQ(said({{data.data(), DType::kF16, {2, 4}}, good.weight, {}}, out),
            "linear_forward: x is f16, expected f32 or bf16");
  EXPECT_EQ(said({{data.data(), DType::kBF16, {2, 4}}, good.weight, {}}, out),
            "linear_forward: weight is f32, expected bf16 like x");
  LinearParams strided = good;
  strided.x.stride[1] = 2;
  EXPECT_EQ(said(strided, out), "linear_forward: x has last stride 2, expected 1");
  strided = good;
  strided.maybe_bias = ConstView(data.data(), DType::kF32, {4});
  EXPECT_EQ(said(strided, out), "linear_forward: bias has shape [4], expected [3]");
  RunOptions options;
  options.candidate = "blas";
  EXPECT_EQ(message_of([&] { linear_forward(good, out, options); }),
            "linear_forward: candidate is 'blas', expected simd or ref");
}

}  // namespace
}  // namespace mhla
