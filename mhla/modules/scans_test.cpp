// The chunked scans against their recurrences, token by token, in f64: outputs and gradients, around chunk boundaries,
// with weak and strong decays.
#include "mhla/modules/scans.h"

#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

constexpr std::int64_t kB = 2, kH = 3, kD = 4, kE = 5;
const std::int64_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 130};

torch::Tensor normal(std::vector<std::int64_t> shape) { return torch::randn(shape, torch::kDouble); }
// Logarithms of decays from nearly 0 down to about -strength.
torch::Tensor decays(std::vector<std::int64_t> shape, double strength) {
  return -strength * torch::rand(shape, torch::kDouble).square();
}
torch::Tensor outer_product(const torch::Tensor& a, const torch::Tensor& b) {
  return a.unsqueeze(-1) * b.unsqueeze(-2);
}
torch::Tensor read(const torch::Tensor& q, const torch::Tensor& S) { return (q.unsqueeze(-1) * S).sum(-2); }

using Step = std::function<torch::Tensor(torch::Tensor& S, std::int64_t t)>;
torch::Tensor token_by_token(std::int64_t N, const Step& step) {
  torch::Tensor S = torch::zeros({kB, kH, kD, kE}, torch::kDouble);
  std::vector<torch::Tensor> out;
  for (std::int64_t t = 0; t < N; ++t) out.push_back(step(S, t));
  return torch::stack(out, 1);
}

// Outputs and the gradients of every leaf agree.
void expect_same(std::vector<torch::Tensor> leaves, const std::function<torch::Tensor()>& chunked,
                 const std::function<torch::Tensor()>& plain, const std::string& what) {
  for (torch::Tensor& leaf : leaves) leaf.requires_grad_();
  const torch::Tensor got = chunked(), want = plain();
  EXPECT_LE(distance(got, want), 1e-11) << what;
  const torch::Tensor dout = torch::randn_like(want);
  const auto got_gradients = torch::autograd::grad({got}, leaves, {dout});
  const auto want_gradients = torch::autograd::grad({want}, leaves, {dout});
  for (std::size_t i = 0; i < leaves.size(); ++i)
    EXPECT_LE(distance(got_gradients[i], want_gradients[i]), 1e-9) << what << ", gradient " << i;
}

TEST(Scans, Gated) {
  torch::manual_seed(1);
  for (const std::int64_t N : kLengths) {
    for (const double strength : {0.1, 8.0, 3000.0}) {
      const torch::Tensor q = normal({kB, N, kH, kD}), k = normal({kB, N, kH, kD}), v = normal({kB, N, kH, kE});
      const torch::Tensor g = decays({kB, N, kH, kD}, strength);
      expect_same(
          {q, k, v, g}, [&] { return gated_scan(q, k, v, g, 0.5); },
          [&] {
            return token_by_token(N, [&](torch::Tensor& S, std::int64_t t) {
              S = g.select(1, t).exp().unsqueeze(-1) * S + outer_product(k.select(1, t), v.select(1, t));
              return 0.5 * read(q.select(1, t), S);
            });
          },
          "N = " + std::to_string(N) + ", strength " + std::to_string(strength));
    }
  }
}

TEST(Scans, Decayed) {
  torch::manual_seed(2);
  for (const std::int64_t N : kLengths) {
    for (const double strength : {0.1, 50.0, 3000.0}) {
      const torch::Tensor q = normal({kB, N, kH, kD}), k = normal({kB, N, kH, kD}), v = normal({kB, N, kH, kE});
      const torch::Tensor g = decays({kB, N, kH}, strength);
      expect_same(
          {q, k, v, g}, [&] { return decayed_scan(q, k, v, g, 1.0); },
          [&] {
            return token_by_token(N, [&](torch::Tensor& S, std::int64_t t) {
              S = g.select(1, t).exp().unsqueeze(-1).unsqueeze(-1) * S + outer_product(k.select(1, t), v.select(1, t));
              return read(q.select(1, t), S);
            });
          },
          "N = " + std::to_string(N) + ", strength " + std::to_string(strength));
    }
  }
}

TEST(Scans, Delta) {
  torch::manual_seed(3);
  for (const std::int64_t N : kLengths) {
    for (const double strength : {0.1, 20.0, 3000.0}) {
      const auto unit = [&] {
        const torch::Tensor x = normal({kB, N, kH, kD});
        return (x / x.norm(2, -1, true)).detach();
      };
      const torch::Tensor q = unit(), k = unit(), v = normal({kB, N, kH, kE});
      const torch::Tensor g = decays({kB, N, kH}, strength), beta = torch::rand({kB, N, kH}, torch::kDouble);
      expect_same(
          {q, k, v, g, beta}, [&] { return delta_scan(q, k, v, beta, g, 0.7); },
          [&] {
            return token_by_token(N, [&](torch::Tensor& S, std::int64_t t) {
              const torch::Tensor kt = k.select(1, t);
              S = g.select(1, t).exp().unsqueeze(-1).unsqueeze(-1) * S;
              S = S + outer_product(kt, beta.select(1, t).unsqueeze(-1) * (v.select(1, t) - read(kt, S)));
              return 0.7 * read(q.select(1, t), S);
            });
          },
          "N = " + std::to_string(N) + ", strength " + std::to_string(strength));
    }
  }
}

TEST(Scans, Selective) {
  torch::manual_seed(4);
  const std::int64_t channels = 6, states = 3;
  for (const std::int64_t N : kLengths) {
    for (const double strength : {0.1, 40.0}) {
      const torch::Tensor x = normal({kB, N, channels}), dt = torch::rand({kB, N, channels}, torch::kDouble);
      const torch::Tensor A = decays({channels, states}, strength), B = normal({kB, N, states}),
                          C = normal({kB, N, states});
      expect_same(
          {x, dt, A, B, C}, [&] { return selective_scan(x, dt, A, B, C); },
          [&] {
            torch::Tensor h = torch::zeros({kB, channels, states}, torch::kDouble);
            std::vector<torch::Tensor> out;
            for (std::int64_t t = 0; t < N; ++t) {
              const torch::Tensor step = dt.select(1, t).unsqueeze(-1);
              h = (step * A).exp() * h + step * outer_product(x.select(1, t), B.select(1, t));
              out.push_back((h * C.select(1, t).unsqueeze(1)).sum(-1));
            }
            return torch::stack(out, 1);
          },
          "N = " + std::to_string(N) + ", strength " + std::to_string(strength));
    }
  }
}

// In f32, where one step forgets nearly everything and its neighbours nearly nothing: a chunk of sums in the tens of
// thousands would leave no digits for the small ones.
TEST(Scans, KeepTheirDigitsBesideStrongDecays) {
  torch::manual_seed(6);
  const std::int64_t N = 150;
  const torch::Tensor q = normal({kB, N, kH, kD}), k = normal({kB, N, kH, kD}), v = normal({kB, N, kH, kE});
  const torch::Tensor beta = torch::rand({kB, N, kH}, torch::kDouble);
  torch::Tensor wide = decays({kB, N, kH, kD}, 0.01), g = decays({kB, N, kH}, 0.01);
  for (const std::int64_t t : {3, 20, 70, 100}) wide.select(1, t).fill_(-2e4), g.select(1, t).fill_(-2e4);
  const auto f = [](const torch::Tensor& x) { return x.to(torch::kFloat); };
  const auto expect = [&](const torch::Tensor& got, const torch::Tensor& want, const char* what) {
    EXPECT_LE(distance(got.to(torch::kDouble), want), 3e-6) << what;
  };
  expect(gated_scan(f(q), f(k), f(v), f(wide), 1.0), gated_scan(q, k, v, wide, 1.0), "gated");
  expect(decayed_scan(f(q), f(k), f(v), f(g), 1.0), decayed_scan(q, k, v, g, 1.0), "decayed");
  const auto unit = [](const torch::Tensor& x) { return x / x.norm(2, -1, true); };
  expect(delta_scan(f(unit(q)), f(unit(k)), f(v), f(beta), f(g), 1.0), delta_scan(unit(q), unit(k), v, beta, g, 1.0),
         "delta");
}

// Packed sequences are what each is alone: outputs and gradients.
TEST(Scans, StartAnewWhereASequenceDoes) {
  torch::manual_seed(7);
  const std::int64_t starts[] = {0, 1, 17, 80, 144, 150}, N = 150;
  torch::Tensor first = torch::zeros({N}, torch::kBool);
  for (std::size_t i = 0; i + 1 < std::size(starts); ++i) first[starts[i]].fill_(true);
  const torch::Tensor q = normal({1, N, kH, kD}), k = normal({1, N, kH, kD}), v = normal({1, N, kH, kE});
  const torch::Tensor beta = torch::rand({1, N, kH}, torch::kDouble), unit = k / k.norm(2, -1, true);
  const torch::Tensor wide = decays({1, N, kH, kD}, 0.3), g = decays({1, N, kH}, 0.3);
  const torch::Tensor x = normal({1, N, kD}), dt = torch::rand({1, N, kD}, torch::kDouble), A = decays({kD, kE}, 0.5),
                      B = normal({1, N, kE}), C = normal({1, N, kE});
  using Scan = std::function<torch::Tensor(const std::function<torch::Tensor(const torch::Tensor&)>& part,
                                           const torch::Tensor& first)>;
  const auto check = [&](const std::vector<torch::Tensor>& leaves, const Scan& scan, const char* what) {
    expect_same(
        leaves, [&] { return scan([](const torch::Tensor& y) { return y; }, first); },
        [&] {
          std::vector<torch::Tensor> alone;
          for (std::size_t i = 0; i + 1 < std::size(starts); ++i) {
            alone.push_back(
                scan([&](const torch::Tensor& y) { return y.narrow(1, starts[i], starts[i + 1] - starts[i]); }, {}));
          }
          return torch::cat(alone, 1);
        },
        what);
  };
  check(
      {q, k, v, wide},
      [&](const auto& part, const torch::Tensor& f) { return gated_scan(part(q), part(k), part(v), part(wide), 1, f); },
      "gated");
  check(
      {q, k, v, g},
      [&](const auto& part, const torch::Tensor& f) { return decayed_scan(part(q), part(k), part(v), part(g), 1, f); },
      "decayed");
  check(
      {q, v, beta, g},
      [&](const auto& part, const torch::Tensor& f) {
        return delta_scan(part(q), part(unit.detach()), part(v), part(beta), part(g), 1, f);
      },
      "delta");
  check(
      {x, dt, B, C},
      [&](const auto& part, const torch::Tensor& f) {
        return selective_scan(part(x), part(dt), A, part(B), part(C), f);
      },
      "selective");
}

TEST(Scans, OfNothingAreNothing) {
  const torch::Tensor q = normal({kB, 0, kH, kD}), v = normal({kB, 0, kH, kE}), g = normal({kB, 0, kH});
  EXPECT_EQ(gated_scan(q, q, v, q, 1.0).sizes(), v.sizes());
  EXPECT_EQ(decayed_scan(q, q, v, g, 1.0).sizes(), v.sizes());
  EXPECT_EQ(delta_scan(q, q, v, g, g, 1.0).sizes(), v.sizes());
}

TEST(Scans, KeepTheirPrecisionInSixteenBits) {
  torch::manual_seed(5);
  const torch::Tensor q = normal({kB, 100, kH, kD}), v = normal({kB, 100, kH, kE}), g = decays({kB, 100, kH, kD}, 0.2);
  const torch::Tensor want =
      gated_scan(q.to(torch::kBFloat16).to(torch::kDouble), q.to(torch::kBFloat16).to(torch::kDouble),
                 v.to(torch::kBFloat16).to(torch::kDouble), g.to(torch::kBFloat16).to(torch::kDouble), 1.0);
  const torch::Tensor got =
      gated_scan(q.to(torch::kBFloat16), q.to(torch::kBFloat16), v.to(torch::kBFloat16), g.to(torch::kBFloat16), 1.0);
  EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
  EXPECT_LE(distance(got.to(torch::kDouble), want), 0x1p-8);  // one rounding
}

}  // namespace
}  // namespace mhla
