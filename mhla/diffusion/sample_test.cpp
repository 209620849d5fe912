// The loop: noise by key, guidance, progress, and what goes wrong in it.
#include "mhla/diffusion/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "mhla/core/run_failed.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

// A network whose answer depends on the class; counts the rows that it has seen.
class FakeDenoiser : public Denoiser {
 public:
  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override {
    rows += x.size(0), ++calls;
    if (t[0].item<double>() <= broken_from && condition.labels[0].item<std::int64_t>() == 1)
      return torch::full_like(x, std::nan(""));
    std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
    shape[0] = -1;
    return (x * 0.3).sin() + 0.1 * condition.labels.to(x.scalar_type()).view(shape) + 1e-4 * t.view(shape);
  }
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override {
    return condition.each([](const torch::Tensor& labels) { return torch::full_like(labels, 10); });
  }
  std::int64_t rows = 0, calls = 0;
  double broken_from = -1;
};

GaussianOptions fixed_noise() {
  GaussianOptions o;
  o.variance = "fixed_large";
  return o;
}

SampleRequest request_for(const std::vector<std::int64_t>& numbers) {
  SampleRequest r;
  r.shape = {3, 4, 6}, r.numbers = numbers, r.seed = 17;
  r.condition.labels = torch::tensor(numbers, torch::kLong) % 7;
  return r;
}

std::unique_ptr<Sampler> sampler_called(const char* name, std::int64_t steps = 6) {
  SamplerOptions o;
  o.sampler = name, o.steps = steps, o.clip = true;
  return make_sampler(fixed_noise(), o);
}

TEST(KeyedNoise, DependsOnSeedNumberAndStepAlone) {
  const torch::Tensor all = keyed_noise(1, {0, 1, 2, 3}, 5, {2, 3, 3}), some = keyed_noise(1, {2, 1}, 5, {2, 3, 3});
  EXPECT_TRUE(torch::equal(some[0], all[2]));
  EXPECT_TRUE(torch::equal(some[1], all[1]));
  EXPECT_FALSE(torch::equal(all[0], all[1]));
  EXPECT_FALSE(torch::equal(keyed_noise(2, {0}, 5, {2, 3, 3})[0], all[0]));
  EXPECT_FALSE(torch::equal(keyed_noise(1, {0}, 6, {2, 3, 3})[0], all[0]));
  const torch::Tensor many = keyed_noise(3, {1000000007}, 999, {4, 64, 64}).to(torch::kDouble);
  EXPECT_NEAR(many.mean().item<double>(), 0.0, 0.03);
  EXPECT_NEAR(many.std().item<double>(), 1.0, 0.03);
  EXPECT_EQ(keyed_noise(1, {}, 0, {2, 2}).sizes(), (std::vector<std::int64_t>{0, 2, 2}));
}

TEST(Sample, GivesTheSameInAnyBatch) {
  for (const char* name : {"ancestral", "ddim", "dpm++"}) {
    FakeDenoiser model;
    const auto run = [&](const std::vector<std::int64_t>& numbers) {
      return sample(model, *sampler_called(name), request_for(numbers));
    };
    const torch::Tensor together = run({0, 1, 2, 3, 4});
    ASSERT_EQ(together.sizes(), (std::vector<std::int64_t>{5, 3, 4, 6}));
    EXPECT_TRUE(torch::equal(torch::cat({run({0, 1}), run({2}), run({3, 4})}), together)) << name;
    EXPECT_LE(together.abs().max().item<double>(), 1.0 + 1e-5) << name;  // clipped
  }
  FakeDenoiser model;
  EXPECT_EQ(sample(model, *sampler_called("ddim"), request_for({})).size(0), 0);
  EXPECT_EQ(model.calls, 0);
  SampleRequest three = request_for({0, 1, 2, 3});
  three.together = 3;
  const torch::Tensor by_three = sample(model, *sampler_called("ddim"), three);
  EXPECT_EQ(model.calls, 6 * 2);
  EXPECT_TRUE(torch::allclose(by_three, sample(model, *sampler_called("ddim"), request_for({0, 1, 2, 3}))));
}

TEST(Sample, TellsItsProgress) {
  FakeDenoiser model;
  std::vector<std::int64_t> steps;
  torch::Tensor last;
  const torch::Tensor x = sample(model, *sampler_called("ddim"), request_for({4}), [&](const SampleProgress& p) {
    EXPECT_EQ(p.steps, 6);
    EXPECT_EQ(p.x_start.sizes(), p.x.sizes());
    steps.push_back(p.step), last = p.x;
  });
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(torch::equal(last, x));
}

TEST(Sample, SaysWhichSampleIsNotFinite) {
  FakeDenoiser model;
  model.broken_from = 500;
  SamplerOptions o;
  o.steps = 6;
  const auto sampler = make_sampler(fixed_noise(), o);
  EXPECT_THROW(sample(model, *sampler, request_for({7, 8})), RunFailed);
  EXPECT_EQ(message_of([&] {
              sample(model, *sampler, request_for({7, 8}));
            }),
            "sample: sample 8 is NaN or infinite after step 3");
  SampleRequest r = request_for({1, 2});
  r.condition.labels = torch::zeros({3}, torch::kLong);
  EXPECT_EQ(message_of([&] { sample(model, *sampler, r); }), "sample: the conditioning has 3 rows, expected 2");
}

TEST(Guidance, MovesAwayFromTheNullClass) {
  torch::manual_seed(1);
  const torch::Tensor c = torch::randn({2, 5, 3, 3}), n = torch::randn({2, 5, 3, 3});
  const torch::Tensor mixed = guided(c, n, 1.5, 3);
  EXPECT_TRUE(torch::allclose(mixed.narrow(1, 0, 3), n.narrow(1, 0, 3) + 1.5 * (c - n).narrow(1, 0, 3)));
  EXPECT_TRUE(torch::equal(mixed.narrow(1, 3, 2), c.narrow(1, 3, 2)));
  EXPECT_TRUE(torch::equal(guided(c, n, 0.0, 5), n));

  FakeDenoiser model;
  const SampleRequest r = request_for({0, 1, 2});
  const torch::Tensor x = torch::randn({3, 3, 4, 6}), t = torch::tensor({100.0f, 500.0f, 900.0f});
  const torch::Tensor conditional = model.denoise(x, t, r.condition);
  const torch::Tensor null = model.denoise(x, t, model.unconditional(r.condition));
  GuidanceOptions o;
  o.scale = 3.0;
  EXPECT_TRUE(torch::allclose(GuidedDenoiser(model, o).denoise(x, t, r.condition), guided(conditional, null, 3.0, 3)));
  o.channels = 2;
  const torch::Tensor two = GuidedDenoiser(model, o).denoise(x, t, r.condition);
  EXPECT_TRUE(torch::allclose(two, guided(conditional, null, 3.0, 2)));
  o.interval = {400, 600};  // the middle sample alone
  const torch::Tensor inside = GuidedDenoiser(model, o).denoise(x, t, r.condition);
  EXPECT_TRUE(torch::allclose(inside[1], two[1]));
  EXPECT_TRUE(torch::allclose(inside[0], conditional[0]));
  EXPECT_TRUE(torch::allclose(inside[2], conditional[2]));
  // Away from another class, by one row for all.
  const Conditioning other{torch::tensor({4}, torch::kLong), {}, {}};
  const torch::Tensor away = model.denoise(x, t, {torch::full({3}, 4, torch::kLong), {}, {}});
  o = {};
  o.scale = 2.0;
  EXPECT_TRUE(
      torch::allclose(GuidedDenoiser(model, o, other).denoise(x, t, r.condition), guided(conditional, away, 2.0, 3)));
}

TEST(Guidance, CostsNothingWhereItDoesNotAct) {
  FakeDenoiser model;
  GuidanceOptions o;
  o.scale = 4.0, o.interval = {0, 500};
  GuidedDenoiser guide(model, o);
  sample(guide, *sampler_called("ddim", 10), request_for({0, 1}));
  EXPECT_EQ(model.calls, 10 * 2);        // on the CPU every sample by itself
  EXPECT_EQ(model.rows, 5 * 2 + 5 * 4);  // times 999, 888, ..., 555 without
  o.scale = 1.0, model.rows = 0;
  GuidedDenoiser none(model, o);
  sample(none, *sampler_called("ddim", 10), request_for({0, 1}));
  EXPECT_EQ(model.rows, 10 * 2);
}

TEST(Guidance, SaysWhatIsWrong) {
  FakeDenoiser model;
  const auto said = [&](const GuidanceOptions& o, const Conditioning& negative = {}) {
    return message_of([&] {
      GuidedDenoiser(model, o, negative)
          .denoise(torch::zeros({2, 3, 2, 2}), torch::ones({2}), request_for({0, 1}).condition);
    });
  };
  GuidanceOptions o;
  o.scale = -1;
  EXPECT_EQ(said(o), "guidance: scale is -1, expected 0 or more");
  o = {}, o.channels = 4, o.scale = 2;
  EXPECT_EQ(said(o), "guidance: channels is 4, expected at most 3, those of a sample");
  o = {}, o.interval = {5, 1};
  EXPECT_EQ(said(o), "guidance: interval is 5 to 1, expected the lower end first");
  o = {}, o.scale = 2;
  EXPECT_EQ(said(o, {torch::zeros({3}, torch::kLong), {}, {}}),
            "guidance: the negative conditioning has 3 rows, expected 1 or 2");
}

// ---- From somewhere on the way

std::unique_ptr<Sampler> flow_sampler(const char* name) {
  SamplerOptions o;
  o.sampler = name, o.steps = 5;
  FlowOptions flow;
  flow.shift = 3.0;
  return make_sampler(flow, o);
}

// Every sampler, left after every step, goes on elsewhere with the same bits.
TEST(Sample, GoesOnWhereItWasLeft) {
  const std::vector<std::function<std::unique_ptr<Sampler>()>> samplers{
      [] { return flow_sampler("unipc"); },     [] { return flow_sampler("dpm++"); },
      [] { return flow_sampler("euler"); },     [] { return sampler_called("dpm++", 5); },
      [] { return sampler_called("ddim", 5); }, [] { return sampler_called("ancestral", 5); }};
  for (const auto& make : samplers) {
    FakeDenoiser model;
    const std::unique_ptr<Sampler> whole = make();
    std::vector<std::pair<torch::Tensor, Sampler::Memory>> left;
    const torch::Tensor expected = sample(model, *whole, request_for({3, 1}), [&](const SampleProgress& p) {
      left.emplace_back(p.x.clone(), whole->memory());
    });
    for (std::int64_t done = 1; done <= 5; ++done) {
      const auto& [x, memory] = left[static_cast<std::size_t>(done - 1)];
      const std::unique_ptr<Sampler> rest = make();
      rest->recall(done, memory);
      SampleRequest r = request_for({3, 1});
      r.start = x, r.first = done;
      EXPECT_TRUE(torch::equal(sample(model, *rest, r), expected)) << done;
    }
  }
  EXPECT_TRUE(has(message_of([] { flow_sampler("unipc")->recall(2, {}); }), "'point' is missing"));
  EXPECT_TRUE(has(message_of([] { flow_sampler("euler")->recall(2, {{"point", torch::zeros({1})}}); }), "'point'"));
}

TEST(Sample, StartsFromNoiseThatIsGiven) {
  FakeDenoiser model;
  SampleRequest r = request_for({0});
  r.start = keyed_noise(17, {0}, 0, r.shape);
  EXPECT_TRUE(
      torch::equal(sample(model, *flow_sampler("unipc"), r), sample(model, *flow_sampler("unipc"), request_for({0}))));
  r.start = torch::zeros({1, 3, 4, 5});
  EXPECT_TRUE(has(message_of([&] { sample(model, *flow_sampler("unipc"), r); }), "expected [1, 3, 4, 6]"));
}

TEST(Guidance, OneAfterTheOtherIsTheSame) {
  FakeDenoiser model;
  GuidanceOptions o;
  o.scale = 3.0;
  const SampleRequest r = request_for({3, 1});
  const torch::Tensor x = keyed_noise(1, {0, 1}, 0, r.shape), t = torch::full({2}, 500.0);
  const torch::Tensor together = GuidedDenoiser(model, o).denoise(x, t, r.condition);
  model.rows = model.calls = 0, o.together = false;
  EXPECT_TRUE(torch::equal(GuidedDenoiser(model, o).denoise(x, t, r.condition), together));
  EXPECT_EQ(model.calls, 2);
  EXPECT_EQ(model.rows, 4);
}

}  // namespace
}  // namespace mhla
