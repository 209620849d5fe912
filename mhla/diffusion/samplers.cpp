#include "mhla/diffusion/samplers.h"

#include <algorithm>
#include <cmath>

#include "mhla/diffusion/unipc.h"

namespace mhla {
namespace {

void expect_count(std::int64_t count, std::int64_t most) {
  if (count < 1 || count > most) fail("sampler: steps is ", count, ", expected 1 to ", most, ", those of the process");
}

// Times of noise prediction, descending, as diffusers spaces them.
std::vector<double> vp_times(std::int64_t train, std::int64_t count, const std::string& spacing) {
  std::vector<double> times;
  if (spacing == "linspace") {
    times = linspace(0.0, static_cast<double>(train - 1), count + 1);
    for (double& time : times) time = std::nearbyint(time);
    std::reverse(times.begin(), times.end());
    times.pop_back();
  } else if (spacing == "leading") {
    const std::int64_t stride = train / (count + 1);
    for (std::int64_t i = count; i > 0; --i) times.push_back(static_cast<double>(i * stride));
  } else if (spacing == "trailing") {
    const double stride = static_cast<double>(train) / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i)
      times.push_back(std::nearbyint(static_cast<double>(train) - static_cast<double>(i) * stride) - 1);
  } else {
    fail("sampler: spacing is '", spacing, "', expected linspace, leading or trailing");
  }
  for (std::size_t i = 0; i + 1 < times.size(); ++i) {
    if (!(times[i] > times[i + 1]))
      fail("sampler: steps is ", count, ": ", spacing, " takes a time of ", train, " twice, expected fewer steps");
  }
  return times;
}

double log_ratio(double alpha, double sigma) { return std::log(alpha) - std::log(sigma); }

torch::Tensor clipped(const torch::Tensor& x, bool clip) { return clip ? x.clamp(-1, 1) : x; }

void refuse_sections(const SamplerOptions& o) {
  if (!o.sections.empty())
    fail("sampler: sections is '", o.sections, "' for ", o.sampler, ", expected ancestral or ddim");
}

}  // namespace

std::vector<std::string> sampler_names() { return {"ancestral", "ddim", "dpm++", "euler", "unipc"}; }

torch::Tensor Sampler::recalled(const Memory& memory, const char* name, std::initializer_list<const char*> names) {
  for (const auto& [known, tensor] : memory)
    if (std::find(names.begin(), names.end(), known) == names.end())
      fail("sampler: '", known, "' is nothing that this sampler remembers");
  const auto found = memory.find(name);
  if (found == memory.end()) fail("sampler: '", name, "' is missing in what it remembers");
  return found->second;
}

void Sampler::recall(std::int64_t /*step*/, const Memory& memory) {
  if (!memory.empty()) fail("sampler: '", memory.begin()->first, "' is nothing that this sampler remembers");
}

void MultistepSampler::recall(std::int64_t /*step*/, const Memory& memory) {
  previous_ = recalled(memory, "previous", {"previous"});
}

MultistepSampler::Path vp_path(const GaussianOptions& process, std::int64_t steps, const std::string& spacing) {
  expect_count(steps, process.steps);
  const DiffusionTables tables(schedule_betas(process.schedule, process.steps));
  MultistepSampler::Path path;
  path.times = vp_times(process.steps, steps, spacing);
  for (const double time : path.times) {
    const double acp = tables.alphas_cumprod[static_cast<std::size_t>(time)];
    path.alphas.push_back(std::sqrt(acp)), path.sigmas.push_back(std::sqrt(1.0 - acp));
  }
  path.alphas.push_back(1.0), path.sigmas.push_back(0.0);
  return path;
}

MultistepSampler::Path flow_path(const FlowGrid& grid) {
  MultistepSampler::Path path;
  path.predicts = MultistepSampler::Predicts::kVelocity;
  path.times = grid.times, path.sigmas = grid.sigmas;
  for (const double s : grid.sigmas) path.alphas.push_back(1.0 - s);
  return path;
}

MultistepSampler::MultistepSampler(Path path) : path_(std::move(path)) { times_ = path_.times; }

Sampler::Step MultistepSampler::step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
                                     const torch::Tensor& /*noise*/) {
  const auto i = static_cast<std::size_t>(step);
  const double alpha = path_.alphas.at(i), sigma = path_.sigmas.at(i);
  const double next_alpha = path_.alphas.at(i + 1), next_sigma = path_.sigmas.at(i + 1);
  const torch::Tensor out = model_out.narrow(1, 0, x.size(1));
  const torch::Tensor x_start =
      clipped(path_.predicts == Predicts::kNoise ? (x - sigma * out) / alpha : x - sigma * out, path_.clip);
  Step result{{}, x_start};
  const double h = log_ratio(next_alpha, next_sigma) - log_ratio(alpha, sigma);  // infinite at the last step
  const double factor = next_alpha * std::expm1(-h);
  result.x = (next_sigma / sigma) * x - factor * x_start;
  if (step > 0 && next_sigma > 0.0) {
    const double before = log_ratio(alpha, sigma) - log_ratio(path_.alphas[i - 1], path_.sigmas[i - 1]);
    result.x = result.x - (0.5 * factor * h / before) * (x_start - previous_);
  }
  previous_ = x_start;
  return result;
}

EulerSampler::EulerSampler(const FlowGrid& grid, bool clip) : sigmas_(grid.sigmas), clip_(clip) { times_ = grid.times; }

Sampler::Step EulerSampler::step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
                                 const torch::Tensor& /*noise*/) {
  const auto i = static_cast<std::size_t>(step);
  const double from = sigmas_.at(i), to = sigmas_.at(i + 1);
  if (!clip_) return {x + (to - from) * model_out, x - from * model_out};
  const torch::Tensor x_start = (x - from * model_out).clamp(-1, 1);
  return {x_start + (to / from) * (x - x_start), x_start};
}

GaussianSampler::GaussianSampler(const GaussianOptions& process, std::string_view sections, Rule rule, double eta,
                                 bool clip)
    : process_(process, sections), rule_(rule), eta_(eta), clip_(clip) {
  const std::vector<std::int64_t>& kept = process_.kept();
  for (auto step = kept.rbegin(); step != kept.rend(); ++step) times_.push_back(static_cast<double>(*step));
}

bool GaussianSampler::takes_noise(std::int64_t step) const {
  return step + 1 < steps() && (rule_ == Rule::kAncestral || eta_ != 0.0);
}

Sampler::Step GaussianSampler::step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
                                    const torch::Tensor& given) {
  const torch::Tensor index =
      torch::full({x.size(0)}, steps() - 1 - step, torch::TensorOptions(torch::kLong).device(x.device()));
  const GaussianDiffusion::Prediction p = process_.predict(model_out, x, index, clip_);
  const torch::Tensor noise = given.defined() ? given : torch::zeros_like(x);
  if (rule_ == Rule::kAncestral) return {process_.ancestral_step(p, index, noise), p.x_start};
  return {process_.ddim_step(x, p.x_start, index, eta_, noise), p.x_start};
}

std::unique_ptr<Sampler> make_sampler(const GaussianOptions& process, const SamplerOptions& o) {
  check(process);
  if (!o.time_grid.empty())
    fail("sampler: time_grid is '", o.time_grid, "', expected none for a model that predicts noise");
  if (o.sampler == "dpm++") {
    refuse_sections(o);
    MultistepSampler::Path path = vp_path(process, o.steps, o.spacing);
    path.clip = o.clip;
    return std::make_unique<MultistepSampler>(std::move(path));
  }
  if (o.sampler != "ancestral" && o.sampler != "ddim")
    fail("sampler: sampler is '", o.sampler, "', expected ancestral, ddim or dpm++ for a model that predicts noise");
  if (!(o.eta >= 0.0 && o.eta <= 1.0)) fail("sampler: eta is ", o.eta, ", expected 0 to 1");
  if (o.sections.empty()) expect_count(o.steps, process.steps);
  const std::string sections = o.sections.empty() ? std::to_string(o.steps) : o.sections;
  const auto rule = o.sampler == "ddim" ? GaussianSampler::Rule::kDdim : GaussianSampler::Rule::kAncestral;
  return std::make_unique<GaussianSampler>(process, sections, rule, o.eta, o.clip);
}

std::unique_ptr<Sampler> make_sampler(const FlowOptions& process, const SamplerOptions& o) {
  refuse_sections(o);
  if (o.sampler != "dpm++" && o.sampler != "unipc" && o.sampler != "euler")
    fail("sampler: sampler is '", o.sampler, "', expected dpm++, unipc or euler for a model that predicts velocities");
  const std::string usual = o.sampler == "euler" ? "diffusers-euler" : "wan-unipc";
  const FlowGrid grid = flow_grid(process, o.steps, o.time_grid.empty() ? usual : o.time_grid);
  if (o.sampler == "euler") return std::make_unique<EulerSampler>(grid, o.clip);
  if (o.sampler == "unipc") return std::make_unique<UnipcSampler>(grid, o.clip);
  MultistepSampler::Path path = flow_path(grid);
  path.clip = o.clip;
  return std::make_unique<MultistepSampler>(std::move(path));
}

}  // namespace mhla
