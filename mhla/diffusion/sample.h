// The loop from noise to samples. The noise of a sample is keyed by (seed, its number, the step), so that neither the
// batch it comes in nor an interruption nor the device changes it.
#pragma once

#include <functional>

#include "mhla/diffusion/samplers.h"

namespace mhla {

struct SampleRequest {
  std::vector<std::int64_t> shape;    // of one sample: channels, rows, columns
  std::vector<std::int64_t> numbers;  // of the samples, which key their noise: 0, 1, ... over all batches
  Conditioning condition;             // a row per sample, on the device
  std::uint64_t seed = 0;
  torch::Tensor start;     // [numbers, shape...] f32: where it starts instead of noise of the seed; undefined: there
  std::int64_t first = 0;  // steps that are done: `start` is after them, and the sampler has recall()ed them
  // Samples that go through the network together. 0: all, but on the CPU one at a time, since its matrix products round
  // by the number of rows: so a sample has the same bits in every batch.
  std::int64_t together = 0;
  torch::Device device = torch::kCPU;
};

struct SampleProgress {
  std::int64_t step = 0, steps = 0;  // done, of
  torch::Tensor x, x_start;          // after the step; what the network takes for the sample
};

// [numbers, shape...] f32 on the device: N(0, 1). `step` 0 is where sampling starts, i + 1 what step i adds.
torch::Tensor keyed_noise(std::uint64_t seed, const std::vector<std::int64_t>& numbers, std::int64_t step,
                          const std::vector<std::int64_t>& shape, torch::Device device = torch::kCPU);

// [numbers, shape...] f32. Throws RunFailed with the number of the first sample that is NaN or infinite, at the step
// where that happens. `progress` is called after every step; what it throws ends the loop.
torch::Tensor sample(Denoiser& model, Sampler& sampler, const SampleRequest& request,
                     const std::function<void(const SampleProgress&)>& progress = {});

}  // namespace mhla
