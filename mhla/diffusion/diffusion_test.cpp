// Diffusion and flow matching against recorded numbers of the published code, and against what must hold.
#include <gtest/gtest.h>

#include <cmath>

#include "mhla/diffusion/diffusion_recorded.h"
#include "mhla/diffusion/samplers.h"
#include "mhla/diffusion/video_recorded.h"
#include "mhla/models/recorded_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(Diffusion, ReproducesTheRecordedNumbers) {
  for (const char* file : {"diffusion", "flow"}) {
    const std::vector<std::string> names = recorded_names(golden_file(file));
    EXPECT_GE(names.size(), 7u);
    for (const std::string& name : names) expect_recorded_case(file, name, diffusion_recorded(), 2e-5);
  }
}

TEST(Diffusion, ReproducesTheRecordedSamplersOfVideo) {
  expect_recorded_cases("video/flow_sampler", 14, diffusion_recorded(), 2e-5);
  expect_recorded_cases("video/flow_target", 2, diffusion_recorded(), 2e-5);
  expect_recorded_cases("video/wan_pipeline", 1, video_recorded());
}

TEST(Samplers, EveryGridDescendsFromNoiseToZero) {
  FlowOptions process;
  process.shift = 5.0;
  for (const std::string& name : flow_grid_names()) {
    for (const std::int64_t steps : {1, 2, 50}) {
      SCOPED_TRACE(name + " " + std::to_string(steps));
      const FlowGrid grid = flow_grid(process, steps, name);
      ASSERT_EQ(grid.times.size(), static_cast<std::size_t>(steps));
      ASSERT_EQ(grid.sigmas.size(), static_cast<std::size_t>(steps) + 1);
      EXPECT_GT(grid.sigmas[0], 0.999);
      EXPECT_EQ(grid.sigmas.back(), 0.0);
      for (std::size_t i = 0; i + 1 < grid.sigmas.size(); ++i) EXPECT_GT(grid.sigmas[i], grid.sigmas[i + 1]);
    }
  }
  const FlowGrid wan = flow_grid(process, 50, "wan-unipc"), euler = flow_grid(process, 50, "diffusers-euler");
  EXPECT_NEAR(wan.sigmas[0], 0.999800, 1e-6);
  EXPECT_NEAR(wan.sigmas[49], 0.092507, 1e-6);
  EXPECT_NEAR(euler.sigmas[1], 0.995872, 1e-6);
  EXPECT_NEAR(euler.sigmas[49], 0.024414, 1e-6);
}

// On a straight flow, whose velocity is the same everywhere, every sampler lands on the sample, from s = 1 on, too.
TEST(Samplers, AStraightFlowIsExact) {
  const torch::Tensor noise = torch::randn({2, 3, 4}, torch::kDouble), start = torch::randn_like(noise);
  for (const char* name : {"dpm++", "unipc", "euler"}) {
    for (const std::string& grid : flow_grid_names()) {
      for (const std::int64_t steps : {1, 2, 3, 9}) {
        SamplerOptions o;
        o.sampler = name, o.time_grid = grid, o.steps = steps;
        const std::unique_ptr<Sampler> sampler = make_sampler(FlowOptions{}, o);
        const double first = flow_grid(FlowOptions{}, steps, grid).sigmas[0];
        torch::Tensor x = (1 - first) * start + first * noise;
        for (std::int64_t i = 0; i < steps; ++i) x = sampler->step(i, x, noise - start, {}).x;
        EXPECT_LT((x - start).abs().max().item<double>(), 1e-6) << name << " " << grid << " " << steps;
      }
    }
  }
}

TEST(Diffusion, SaysWhatARecordedCaseMayNotBe) {
  RecordedCase c;
  c.config = parse_json(R"({"family": "dpm_vp", "schedule": "linear", "steps": 1000, "solver_order": 3})", "case");
  EXPECT_EQ(message_of([&] { recompute(diffusion_recorded(), "dpm_vp", c); }),
            "metadata 'solver_order' is 3, expected 2");
  c.config = parse_json(R"({"schedule": "linear", "steps": 10, "speed": 2})", "case");
  EXPECT_EQ(message_of([&] { recompute(diffusion_recorded(), "diffusion_tables", c); }),
            "metadata 'speed' is no option of this family");
  EXPECT_EQ(message_of([&] { recompute(diffusion_recorded(), "wavelets", c); }), "family 'wavelets' is unknown here");
}

TEST(Respacing, KeepsWhatIsPublished) {
  EXPECT_EQ(respaced_steps(10, ""), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(respaced_steps(10, "1"), std::vector<std::int64_t>{0});
  EXPECT_EQ(respaced_steps(10, "ddim5"), (std::vector<std::int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(respaced_steps(7, "2,2"), (std::vector<std::int64_t>{0, 3, 4, 6}));  // the first part is one longer
  EXPECT_EQ(respaced_steps(1, "ddim1"), std::vector<std::int64_t>{0});
  // Strides that are added up differ from linspace in some step (250 agrees, 21 does not).
  const auto even = [](std::int64_t count) {
    std::vector<std::int64_t> steps;
    for (const double at : linspace(0, 999, count)) steps.push_back(static_cast<std::int64_t>(std::nearbyint(at)));
    return steps;
  };
  EXPECT_EQ(respaced_steps(1000, "250"), even(250));
  EXPECT_NE(respaced_steps(1000, "21"), even(21));
}

TEST(Respacing, RefusesWhatHasNoMeaning) {
  EXPECT_TRUE(
      has(message_of([] { respaced_steps(1000, "ddim37"); }), "no whole stride takes exactly 37 of 1000 steps"));
  EXPECT_TRUE(has(message_of([] { respaced_steps(10, "11"); }), "11 of 10 steps, expected fewer"));
  for (const char* sections : {"x", "1,", ",1", "ddim", "-3", "0", "5 "})
    EXPECT_TRUE(has(message_of([&] { respaced_steps(10, sections); }), "expected a number of steps")) << sections;
  EXPECT_TRUE(has(message_of([] { schedule_betas("cosine", 10); }), "schedule is 'cosine', expected linear"));
  EXPECT_TRUE(has(message_of([] { schedule_betas("linear", 0); }), "steps is 0, expected 1 to"));
}

// A network that knows the sample: samplers must end at it, whatever the schedule, the number of steps or the order.
TEST(Samplers, ArriveAtWhatTheNetworkKnows) {
  torch::manual_seed(2);
  const torch::Tensor target = torch::rand({2, 3, 4, 5}, torch::kDouble) * 2 - 1, start = torch::randn_like(target);
  for (const char* schedule : {"linear", "squaredcos_cap_v2"}) {
    GaussianOptions process;
    process.schedule = schedule, process.variance = "fixed_small";
    const DiffusionTables tables(schedule_betas(schedule, process.steps));
    for (const char* name : {"ddim", "dpm++", "ancestral"}) {
      for (const std::int64_t steps : {1, 2, 7, 30}) {
        SamplerOptions o;
        o.sampler = name, o.steps = steps;
        const auto sampler = make_sampler(process, o);
        ASSERT_EQ(sampler->steps(), steps);
        torch::Tensor x = start;
        for (std::int64_t i = 0; i < steps; ++i) {
          const double acp =
              tables.alphas_cumprod[static_cast<std::size_t>(sampler->times()[static_cast<std::size_t>(i)])];
          const torch::Tensor noise = (x - std::sqrt(acp) * target) / std::sqrt(1 - acp);
          const auto next =
              sampler->step(i, x, noise, sampler->takes_noise(i) ? torch::randn_like(x) : torch::Tensor());
          x = next.x;
        }
        EXPECT_LE((x - target).abs().max().item<double>(), 1e-6) << schedule << " " << name << " " << steps;
      }
    }
  }
  for (const char* name : {"dpm++", "euler"}) {
    for (const double shift : {1.0, 3.0}) {
      FlowOptions process;
      process.shift = shift;
      SamplerOptions o;
      o.sampler = name, o.steps = 9;
      const auto sampler = make_sampler(process, o);
      torch::Tensor x = start;
      for (std::int64_t i = 0; i < o.steps; ++i) {
        // The time is fed as T s, rounded down for dpm++: s itself is on the path.
        const auto* multistep = dynamic_cast<MultistepSampler*>(sampler.get());
        const double s = multistep != nullptr ? multistep->path().sigmas[static_cast<std::size_t>(i)]
                                              : sampler->times()[static_cast<std::size_t>(i)] / 1000;
        x = sampler->step(i, x, (x - target) / s, {}).x;
      }
      EXPECT_LE((x - target).abs().max().item<double>(), 1e-6) << name << " " << shift;
    }
  }
}

// DDIM there and back: noise that was made from a sample leads to it again.
TEST(Samplers, GoBackWhereReverseDdimCameFrom) {
  torch::manual_seed(3);
  GaussianOptions options;
  options.variance = "fixed_large";
  const GaussianDiffusion process(options);
  const torch::Tensor x_start = torch::randn({2, 3, 4, 4}, torch::kDouble);
  const auto network = [](const torch::Tensor& x, std::int64_t step) {  // smooth in x and in time
    return (x * (0.4 + 0.001 * static_cast<double>(step))).tanh() * 0.8;
  };
  const auto index_of = [](std::int64_t i) { return torch::full({2}, i, torch::kLong); };
  torch::Tensor x = x_start;
  for (std::int64_t i = 0; i + 1 < process.steps(); ++i)
    x = process.ddim_reverse_step(x, process.predict(network(x, i), x, index_of(i)).x_start, index_of(i));
  for (std::int64_t i = process.steps() - 1; i > 0; --i)
    x = process.ddim_step(x, process.predict(network(x, i), x, index_of(i)).x_start, index_of(i), 0.0, {});
  EXPECT_LE((x - x_start).abs().max().item<double>(), 0.05);
}

TEST(Samplers, SayWhatIsWrong) {
  const auto said = [](const auto& process, auto&& change) {
    SamplerOptions o;
    change(o);
    return message_of([&] { make_sampler(process, o); });
  };
  const GaussianOptions noise;
  const FlowOptions flow;
  EXPECT_EQ(said(noise, [](auto& o) { o.sampler = "euler"; }),
            "sampler: sampler is 'euler', expected ancestral, ddim or dpm++ for a model that predicts noise");
  EXPECT_EQ(said(flow, [](auto& o) { o.sampler = "ddim"; }),
            "sampler: sampler is 'ddim', expected dpm++, unipc or euler for a model that predicts velocities");
  EXPECT_EQ(
      said(flow, [](auto& o) { o.sampler = "unipc", o.time_grid = "wan"; }),
      "sampler: time_grid is 'wan', expected one of wan-unipc, wan-dpm, diffusers-unipc, mhla-dpm, diffusers-euler, "
      "linear");
  EXPECT_EQ(said(noise, [](auto& o) { o.time_grid = "linear"; }),
            "sampler: time_grid is 'linear', expected none for a model that predicts noise");
  EXPECT_EQ(said(noise, [](auto& o) { o.steps = 1001; }),
            "sampler: steps is 1001, expected 1 to 1000, those of the process");
  EXPECT_EQ(said(noise, [](auto& o) { o.sampler = "dpm++", o.steps = 0; }),
            "sampler: steps is 0, expected 1 to 1000, those of the process");
  EXPECT_TRUE(has(said(noise, [](auto& o) { o.sampler = "dpm++", o.steps = 1000; }), "takes a time of 1000 twice"));
  EXPECT_EQ(said(noise, [](auto& o) { o.eta = 2; }), "sampler: eta is 2, expected 0 to 1");
  EXPECT_TRUE(has(said(noise, [](auto& o) { o.sampler = "dpm++", o.spacing = "odd"; }), "spacing is 'odd'"));
  EXPECT_TRUE(
      has(said(noise, [](auto& o) { o.sampler = "dpm++", o.sections = "ddim25"; }), "expected ancestral or ddim"));
  SamplerOptions euler;
  euler.sampler = "euler";
  FlowOptions wrong;
  wrong.shift = 0;
  EXPECT_EQ(message_of([&] { make_sampler(wrong, euler); }), "flow: shift is 0, expected a positive number");
  GaussianOptions variance;
  variance.variance = "learned";
  EXPECT_EQ(message_of([&] { GaussianDiffusion{variance}; }),
            "diffusion: variance is 'learned', expected learned_range, fixed_large or fixed_small");
  const GaussianDiffusion process{GaussianOptions{}};
  EXPECT_EQ(
      message_of([&] {
        (void)process.predict(torch::zeros({1, 3, 2, 2}), torch::zeros({1, 3, 2, 2}), torch::zeros({1}, torch::kLong));
      }),
      "diffusion: the model gave shape [1, 3, 2, 2] for samples of [1, 3, 2, 2], expected 6 channels for variance "
      "learned_range");
}

TEST(Losses, AreOneForANetworkThatSaysNothing) {
  torch::manual_seed(4);
  GaussianOptions options;
  options.rescaled = true, options.steps = 500;
  const GaussianDiffusion process(options);
  const torch::Tensor x = torch::randn({64, 2, 8, 8}), noise = torch::randn_like(x);
  const torch::Tensor index = torch::randint(1, 500, {64}, torch::kLong), x_t = process.add_noise(x, noise, index);
  const torch::Tensor out = torch::zeros({64, 4, 8, 8});
  const GaussianDiffusion::Loss loss = process.loss(out, x, x_t, noise, index);
  EXPECT_NEAR(loss.mse.mean().item<double>(), 1.0, 0.05);
  options.rescaled = false;
  const GaussianDiffusion::Loss plain = GaussianDiffusion(options).loss(out, x, x_t, noise, index);
  EXPECT_LE((loss.vb - 0.5 * plain.vb).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(torch::equal(loss.total, loss.mse + loss.vb));
}

TEST(Flow, DrawsIndicesWithinTheTimes) {
  FlowOptions options;
  const FlowMatching flow(options);
  const torch::Tensor index = flow.index_of(torch::tensor({-1e9, -20.0, 0.0, 20.0, 1e9}));
  EXPECT_TRUE(torch::equal(index, torch::tensor({0, 0, 500, 999, 999}, torch::kLong)));
  // Whole parts of T (1 - linspace): one less than the index where that rounds down.
  EXPECT_LE((flow.model_t(torch::arange(1000)) - torch::arange(1000)).abs().max().item<std::int64_t>(), 1);
}

}  // namespace
}  // namespace mhla
