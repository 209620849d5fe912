#include "mhla/diffusion/diffusion_recorded.h"

#include "mhla/core/error.h"
#include "mhla/diffusion/samplers.h"

namespace mhla {
namespace {

torch::Tensor table(const std::vector<double>& values) { return torch::tensor(values, torch::kDouble); }

GaussianOptions gaussian_of(const RecordedCase& c, const std::string& variance) {
  GaussianOptions o;
  o.schedule = c.text("schedule"), o.steps = c.integer("steps"), o.variance = variance;
  o.rescaled = c.flag("rescaled", false);
  return o;
}

Weights tables_of(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps"});
  const DiffusionTables t(schedule_betas(c.text("schedule"), c.integer("steps")));
  return {{"out.betas", table(t.betas)},
          {"out.alphas_cumprod", table(t.alphas_cumprod)},
          {"out.alphas_cumprod_prev", table(t.alphas_cumprod_prev)},
          {"out.posterior_variance", table(t.posterior_variance)},
          {"out.posterior_log_variance_clipped", table(t.posterior_log_variance_clipped)},
          {"out.posterior_mean_coef1", table(t.posterior_mean_coef1)},
          {"out.posterior_mean_coef2", table(t.posterior_mean_coef2)},
          {"out.sqrt_recip_alphas_cumprod", table(t.sqrt_recip_alphas_cumprod)},
          {"out.sqrt_recipm1_alphas_cumprod", table(t.sqrt_recipm1_alphas_cumprod)}};
}

Weights respacing_of(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps", "sections"});
  const GaussianDiffusion process(gaussian_of(c, "fixed_large"), c.text("sections"));
  return {{"out.timesteps", torch::tensor(process.kept(), torch::kLong)},
          {"out.betas", table(process.tables().betas)},
          {"out.alphas_cumprod", table(process.tables().alphas_cumprod)}};
}

Weights step_of(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps", "sections", "variance", "clip_denoised", "eta"});
  const GaussianDiffusion process(gaussian_of(c, c.text("variance")), c.text("sections"));
  const torch::Tensor &x = c.tensor("in.x"), &noise = c.tensor("in.noise"), index = c.index("in.index");
  const auto p = process.predict(c.tensor("in.model_out"), x, index, c.flag("clip_denoised", false));
  return {{"out.model_t", process.model_t(index)},
          {"out.pred_xstart", p.x_start},
          {"out.mean", p.mean},
          {"out.log_variance", p.log_variance},
          {"out.sample", process.ancestral_step(p, index, noise)},
          {"out.ddim", process.ddim_step(x, p.x_start, index, 0.0, noise)},
          {"out.ddim_eta", process.ddim_step(x, p.x_start, index, c.number("eta", 0.0), noise)},
          {"out.ddim_reverse", process.ddim_reverse_step(x, p.x_start, index)}};
}

// The x after every step of a sampler whose answers were fixed beforehand.
torch::Tensor chain(const RecordedCase& c, Sampler& sampler) {
  const torch::Tensor& outs = c.tensor("in.model_out");
  if (outs.size(0) != sampler.steps()) fail("in.model_out has ", outs.size(0), " steps, expected ", sampler.steps());
  torch::Tensor x = c.tensor("in.x");
  std::vector<torch::Tensor> after;
  for (std::int64_t i = 0; i < sampler.steps(); ++i) {
    const torch::Tensor noise = sampler.takes_noise(i) ? c.tensor("in.noise")[i] : torch::Tensor();
    x = sampler.step(i, x, outs[i], noise).x;
    after.push_back(x);
  }
  return torch::stack(after);
}

Weights ddim_chain(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps", "sections", "eta"});
  const bool learned = c.tensor("in.model_out").size(2) == 2 * c.tensor("in.x").size(1);
  GaussianSampler sampler(gaussian_of(c, learned ? "learned_range" : "fixed_large"), c.text("sections"),
                          GaussianSampler::Rule::kDdim, c.number("eta", 0.0), /*clip=*/false);
  return {{"out.timesteps", table(sampler.times()).to(torch::kLong)}, {"out.x", chain(c, sampler)}};
}

void expect_second_order(const RecordedCase& c) {
  if (c.integer("solver_order") != 2) fail("metadata 'solver_order' is ", c.integer("solver_order"), ", expected 2");
  c.expect_text("algorithm", "dpmsolver++");
  c.expect_text("solver_type", "midpoint");
  c.expect_text("final_sigmas_type", "zero");
  if (!c.flag("lower_order_final", true)) fail("metadata 'lower_order_final' is false, expected true");
}

Weights dpm_vp(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps", "num_inference_steps", "timestep_spacing", "solver_order", "algorithm",
                 "solver_type", "final_sigmas_type", "lower_order_final"});
  expect_second_order(c);
  MultistepSampler sampler(
      vp_path(gaussian_of(c, "fixed_large"), c.integer("num_inference_steps"), c.text("timestep_spacing")));
  const torch::Tensor sigmas = table(sampler.path().sigmas) / table(sampler.path().alphas);
  return {
      {"out.timesteps", table(sampler.times()).to(torch::kLong)}, {"out.sigmas", sigmas}, {"out.x", chain(c, sampler)}};
}

FlowOptions flow_of(const RecordedCase& c) {
  FlowOptions o;
  o.steps = c.integer("train_steps"), o.shift = c.number("shift", 1.0);
  return o;
}

Weights flow_dpm(const RecordedCase& c) {
  c.expect_keys({"num_inference_steps", "shift", "train_steps", "solver_order", "algorithm", "solver_type",
                 "final_sigmas_type", "lower_order_final"});
  expect_second_order(c);
  MultistepSampler sampler(flow_path(flow_grid(flow_of(c), c.integer("num_inference_steps"), "wan-unipc")));
  return {{"out.timesteps", table(sampler.times()).to(torch::kLong)},
          {"out.sigmas", table(sampler.path().sigmas)},
          {"out.x", chain(c, sampler)}};
}

Weights flow_euler(const RecordedCase& c) {
  c.expect_keys({"num_inference_steps", "shift", "train_steps"});
  EulerSampler sampler(flow_grid(flow_of(c), c.integer("num_inference_steps"), "diffusers-euler"), /*clip=*/false);
  return {
      {"out.timesteps", table(sampler.times())}, {"out.sigmas", table(sampler.sigmas())}, {"out.x", chain(c, sampler)}};
}

Weights loss_of(const RecordedCase& c) {
  c.expect_keys({"schedule", "steps", "learn_sigma", "rescaled"});
  const GaussianDiffusion process(gaussian_of(c, c.flag("learn_sigma", true) ? "learned_range" : "fixed_large"));
  const torch::Tensor &x_start = c.tensor("in.x_start"), &noise = c.tensor("in.noise"), t = c.index("in.t");
  const torch::Tensor out = c.leaf("in.model_out"), x_t = process.add_noise(x_start, noise, t);
  const GaussianDiffusion::Loss loss = process.loss(out, x_start, x_t, noise, t);
  loss.total.mean().backward();
  Weights results{{"out.x_t", x_t},
                  {"out.mse", loss.mse},
                  {"out.loss", loss.total},
                  {"out.prior_bpd", process.prior_bits(x_start)},
                  {"grad.in.model_out", out.grad()}};
  if (loss.vb.defined()) results["out.vb"] = loss.vb;
  return results;
}

Weights flow_loss(const RecordedCase& c) {
  c.expect_keys({"train_steps", "shift", "weighting"});
  c.expect_text("weighting", "logit_normal");
  const FlowMatching flow(flow_of(c));
  const torch::Tensor &x_start = c.tensor("in.x_start"), &noise = c.tensor("in.noise"), index = c.index("in.index");
  const torch::Tensor out = c.leaf("in.model_out"), loss = FlowMatching::loss(out, x_start, noise);
  loss.mean().backward();
  return {{"out.sigmas", flow.sigma(index)},
          {"out.model_t", flow.model_t(index)},
          {"out.x_t", flow.add_noise(x_start, noise, index)},
          {"out.target", FlowMatching::target(x_start, noise)},
          {"out.loss", loss},
          {"out.index_of_z", flow.index_of(c.tensor("in.z"))},
          {"grad.in.model_out", out.grad()}};
}

// The velocity of the recordings: a x + b tanh(x) + c t / 1000 + d cond.
struct RecordedFlow {
  double a, b, c, d;
  explicit RecordedFlow(const RecordedCase& recorded) {
    if (!recorded.config.contains("model")) fail("metadata 'model' is missing");
    const JsonValue& model = recorded.config.at("model");
    const auto number = [&](const char* key) {
      if (!model.contains(key)) fail("metadata 'model' has no '", key, "'");
      return model.at(key).as_double();
    };
    a = number("a"), b = number("b"), c = number("c"), d = number("d");
  }
  [[nodiscard]] torch::Tensor operator()(const torch::Tensor& x, const torch::Tensor& t,
                                         const torch::Tensor& cond) const {
    return a * x + b * x.tanh() + c * t / 1000.0 + d * cond;
  }
};

// Which sampler and grid a recorded scheduler is.
SamplerOptions scheduler_of(const RecordedCase& c) {
  struct Known {
    const char *scheduler, *source, *sampler, *grid;
  };
  constexpr Known kKnown[] = {
      {"FlowUniPCMultistepScheduler", "Wan", "unipc", "wan-unipc"},
      {"FlowDPMSolverMultistepScheduler", "Wan", "dpm++", "wan-dpm"},
      {"DPMSolverMultistepScheduler", "diffusers", "dpm++", "wan-unipc"},
      {"DPM_Solver", "DAGroup", "dpm++", "mhla-dpm"},
      {"UniPCMultistepScheduler", "diffusers", "unipc", "diffusers-unipc"},
      {"FlowMatchEulerDiscreteScheduler", "diffusers", "euler", "diffusers-euler"},
  };
  const std::string scheduler = c.text("scheduler"), source = c.text("source");
  SamplerOptions o;
  o.steps = c.integer("steps");
  for (const Known& k : kKnown) {
    if (scheduler != k.scheduler || source.rfind(k.source, 0) != 0) continue;
    o.sampler = k.sampler, o.time_grid = k.grid;
    if (source.find("sigmas given") != std::string::npos) o.time_grid = "linear";
    return o;
  }
  fail("metadata 'scheduler' is ", scheduler, " of ", source, ", which is not known here");
}

Weights flow_sampler(const RecordedCase& c) {
  c.expect_keys({"scheduler", "source", "steps", "shift", "guidance", "model", "solver_order", "solver_type"});
  const SamplerOptions o = scheduler_of(c);
  FlowOptions process;
  process.shift = c.number("shift", 1.0);
  const std::unique_ptr<Sampler> sampler = make_sampler(process, o);
  const RecordedFlow flow(c);
  const double weight = c.number("guidance", 1.0);
  torch::Tensor x = c.tensor("in.x");
  std::vector<torch::Tensor> after, velocities;
  for (std::int64_t i = 0; i < sampler->steps(); ++i) {
    const torch::Tensor t = torch::tensor(sampler->times()[static_cast<std::size_t>(i)], torch::kDouble);
    const torch::Tensor with = flow(x, t, c.tensor("in.cond")), without = flow(x, t, c.tensor("in.uncond"));
    const torch::Tensor v = without + weight * (with - without);
    x = sampler->step(i, x, v, {}).x;
    after.push_back(x), velocities.push_back(v);
  }
  return {{"out.timesteps", table(sampler->times())},
          {"out.sigmas", table(flow_grid(process, o.steps, o.time_grid).sigmas)},
          {"out.v", torch::stack(velocities)},
          {"out.x", torch::stack(after)}};
}

Weights flow_target(const RecordedCase& c) {
  c.expect_keys({"shift", "num_train_timesteps", "weighting", "logit_mean", "logit_std", "model", "source"});
  c.expect_text("weighting", "logit_normal");
  FlowOptions o;
  o.steps = c.integer("num_train_timesteps"), o.shift = c.number("shift", 1.0);
  o.logit_mean = c.number("logit_mean", 0.0), o.logit_std = c.number("logit_std", 1.0);
  const FlowMatching flow(o);
  const torch::Tensor &x0 = c.tensor("in.x0"), &noise = c.tensor("in.noise");
  const torch::Tensor index = flow.index_of(c.tensor("in.normal")), x_t = flow.add_noise(x0, noise, index);
  const torch::Tensor time = flow.model_t(index);
  const torch::Tensor prediction =
      RecordedFlow(c)(x_t, time.to(x_t.scalar_type()).view({-1, 1, 1, 1, 1}), c.tensor("in.cond"));
  return {{"out.index", index},
          {"out.sigma", flow.sigma(index)},
          {"out.time", time},
          {"out.sigmas", table(flow.sigmas())},
          {"out.times", flow.model_t(torch::arange(o.steps))},
          {"out.x_t", x_t},
          {"out.target", FlowMatching::target(x0, noise)},
          {"out.prediction", prediction},
          {"out.loss", FlowMatching::loss(prediction, x0, noise)}};
}

}  // namespace

RecordedFamilies diffusion_recorded() {
  return {
      {"diffusion_tables", tables_of}, {"respacing", respacing_of},  {"diffusion_step", step_of},
      {"ddim_chain", ddim_chain},      {"dpm_vp", dpm_vp},           {"diffusion_loss", loss_of},
      {"flow_loss", flow_loss},        {"flow_dpm", flow_dpm},       {"flow_euler", flow_euler},
      {"flow_sampler", flow_sampler},  {"flow_target", flow_target},
  };
}

}  // namespace mhla
