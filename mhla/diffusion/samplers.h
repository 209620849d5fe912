// From noise to samples, step by step. A sampler knows at which time the network is asked at every step, and what to do
// with its answer; the loop is sample.h.
#pragma once

#include <map>
#include <memory>

#include "mhla/diffusion/flow_grid.h"
#include "mhla/diffusion/gaussian.h"

namespace mhla {

struct SamplerOptions {
  std::string sampler = "ddim";
  std::int64_t steps = 50;
  std::string sections;
  std::string spacing = "linspace";
  std::string time_grid;
  double eta = 0.0;
  bool clip = false;

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("sampler", o.sampler,
          "ancestral, ddim or dpm++ for noise prediction; dpm++, unipc or euler for flow matching");
    visit("steps", o.steps, "calls of the network");
    visit("sections", o.sections,
          "ancestral, ddim: which steps are kept, such as ddim50 or 10,15,20, instead of steps");
    visit("spacing", o.spacing, "dpm++ for noise prediction: times by linspace, leading or trailing");
    visit("time_grid", o.time_grid,
          "flow matching: wan-unipc, wan-dpm, mhla-dpm, diffusers-unipc, diffusers-euler or linear (default: "
          "diffusers-euler for euler, wan-unipc for the others)");
    visit("eta", o.eta, "ddim: 0 adds no noise, 1 as much as ancestral sampling");
    visit("clip", o.clip, "clip the predicted sample to [-1, 1] at every step, for models of pixels");
  }
  bool operator==(const SamplerOptions&) const = default;
};
std::vector<std::string> sampler_names();

class Sampler {
 public:
  virtual ~Sampler() = default;
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(times_.size()); }
  [[nodiscard]] const std::vector<double>& times() const { return times_; }  // what the network is fed at every step
  [[nodiscard]] virtual bool takes_noise(std::int64_t step) const {
    (void)step;
    return false;
  }
  struct Step {
    torch::Tensor x, x_start;  // the next x; what the network takes for the sample behind the noise
  };
  // What it remembers of the steps before the next one, by name: to go on elsewhere, bit for bit. Of most nothing.
  using Memory = std::map<std::string, torch::Tensor>;
  [[nodiscard]] virtual Memory memory() const { return {}; }
  // Goes on before step `step` with what memory() gave there. An Error names what is missing or left over.
  virtual void recall(std::int64_t step, const Memory& memory);
  // Steps 0, 1, ... in order, those of one batch after the other. `noise` is undefined where takes_noise() is false.
  virtual Step step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
                    const torch::Tensor& noise) = 0;

 protected:
  // One of the tensors of a memory, which has no others than `names`.
  static torch::Tensor recalled(const Memory& memory, const char* name, std::initializer_list<const char*> names);
  std::vector<double> times_;
};

// Errors name the option, its value and what was expected.
std::unique_ptr<Sampler> make_sampler(const GaussianOptions& process, const SamplerOptions& options);
std::unique_ptr<Sampler> make_sampler(const FlowOptions& process, const SamplerOptions& options);

// ---- DPM-Solver++ 2M (midpoint), for both kinds of process. With x_t = alpha x_0 + sigma noise, lambda = ln(alpha /
// sigma) and h = lambda' - lambda:
//   x' = sigma' / sigma x - alpha' expm1(-h) (x0 + (x0 - x0_previous) h / (2 h_previous))
// The first and the last step, whose sigma' is 0, leave the second term out.
class MultistepSampler : public Sampler {
 public:
  enum class Predicts { kNoise, kVelocity };
  struct Path {
    std::vector<double> times;           // n
    std::vector<double> alphas, sigmas;  // n + 1, the last 1 and 0
    Predicts predicts = Predicts::kNoise;
    bool clip = false;
  };
  explicit MultistepSampler(Path path);
  Step step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
            const torch::Tensor& noise) override;
  [[nodiscard]] Memory memory() const override { return {{"previous", previous_}}; }
  void recall(std::int64_t step, const Memory& memory) override;
  [[nodiscard]] const Path& path() const { return path_; }

 private:
  Path path_;
  torch::Tensor previous_;  // x0 of the step before
};
// `spacing`: linspace, leading or trailing. Models that have learned a variance are taken at their noise.
MultistepSampler::Path vp_path(const GaussianOptions& process, std::int64_t steps, const std::string& spacing);
MultistepSampler::Path flow_path(const FlowGrid& grid);

// ---- Euler for flow matching: x' = x + (s' - s) v.
class EulerSampler : public Sampler {
 public:
  EulerSampler(const FlowGrid& grid, bool clip);
  Step step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
            const torch::Tensor& noise) override;
  [[nodiscard]] const std::vector<double>& sigmas() const { return sigmas_; }  // n + 1, the last 0

 private:
  std::vector<double> sigmas_;
  bool clip_;
};

// ---- Ancestral and DDIM, over a respaced process.
class GaussianSampler : public Sampler {
 public:
  enum class Rule { kAncestral, kDdim };
  GaussianSampler(const GaussianOptions& process, std::string_view sections, Rule rule, double eta, bool clip);
  [[nodiscard]] bool takes_noise(std::int64_t step) const override;
  Step step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
            const torch::Tensor& noise) override;
  [[nodiscard]] const GaussianDiffusion& process() const { return process_; }

 private:
  GaussianDiffusion process_;
  Rule rule_;
  double eta_;
  bool clip_;
};

}  // namespace mhla
