#include "mhla/diffusion/sample.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "mhla/core/run_failed.h"
#include "mhla/data/philox.h"

namespace mhla {
namespace {

void expect_finite(const torch::Tensor& x, const std::vector<std::int64_t>& numbers, std::int64_t step) {
  const torch::Tensor finite = torch::isfinite(x).flatten(1).all(1).cpu();
  if (finite.all().item<bool>()) return;
  const std::int64_t row = finite.logical_not().nonzero()[0].item<std::int64_t>();
  throw RunFailed(
      str("sample: sample ", numbers[static_cast<std::size_t>(row)], " is NaN or infinite after step ", step));
}

torch::Tensor given_start(const SampleRequest& r) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(r.numbers.size())};
  shape.insert(shape.end(), r.shape.begin(), r.shape.end());
  if (r.start.sizes() != torch::IntArrayRef(shape))
    fail("sample: the start has shape ", c10::str(r.start.sizes()), ", expected ", c10::str(torch::IntArrayRef(shape)));
  return r.start.to(r.device, torch::kFloat);
}

// The network on some samples at a time.
torch::Tensor denoised(Denoiser& model, const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition,
                       std::int64_t together) {
  std::vector<torch::Tensor> parts;
  for (std::int64_t first = 0; first < x.size(0); first += together) {
    const std::int64_t count = std::min(together, x.size(0) - first);
    const auto rows = [&](const torch::Tensor& all) { return all.narrow(0, first, count); };
    parts.push_back(model.denoise(rows(x), rows(t), condition.each(rows)).to(torch::kFloat));
  }
  return parts.size() == 1 ? parts[0] : torch::cat(parts);
}

}  // namespace

torch::Tensor keyed_noise(std::uint64_t seed, const std::vector<std::int64_t>& numbers, std::int64_t step,
                          const std::vector<std::int64_t>& shape, torch::Device device) {
  std::vector<std::int64_t> all{static_cast<std::int64_t>(numbers.size())};
  all.insert(all.end(), shape.begin(), shape.end());
  const torch::Tensor noise = torch::empty(all, torch::kFloat);
  const std::int64_t count = numbers.empty() ? 0 : noise.numel() / all[0];
  auto* data = noise.data_ptr<float>();
  at::parallel_for(0, all[0], 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      Philox(seed, Philox::kNoise, step, numbers[static_cast<std::size_t>(i)]).normals(data + i * count, count);
  });
  return noise.to(device);
}

torch::Tensor sample(Denoiser& model, Sampler& sampler, const SampleRequest& r,
                     const std::function<void(const SampleProgress&)>& progress) {
  const torch::NoGradGuard no_gradient;
  const auto B = static_cast<std::int64_t>(r.numbers.size());
  if (r.shape.empty()) fail("sample: the shape is empty, expected channels and sizes");
  (void)r.condition.each([&](const torch::Tensor& rows) {
    if (rows.size(0) != B) fail("sample: the conditioning has ", rows.size(0), " rows, expected ", B);
    return rows;
  });
  if (r.first < 0 || r.first > sampler.steps() || (r.first > 0 && !r.start.defined()))
    fail("sample: ", r.first, " steps are done, expected 0 to ", sampler.steps(), " and where they ended");
  torch::Tensor x = r.start.defined() ? given_start(r) : keyed_noise(r.seed, r.numbers, 0, r.shape, r.device);
  if (B == 0) return x;
  if (r.together < 0) fail("sample: together is ", r.together, ", expected 0 for the default, or a number of samples");
  const std::int64_t together = r.together != 0 ? r.together : r.device.is_cpu() ? 1 : B;
  const auto places = torch::TensorOptions(torch::kFloat).device(r.device);
  for (std::int64_t step = r.first; step < sampler.steps(); ++step) {
    const torch::Tensor t = torch::full({B}, sampler.times()[static_cast<std::size_t>(step)], places);
    const torch::Tensor out = denoised(model, x, t, r.condition, together);
    const torch::Tensor noise =
        sampler.takes_noise(step) ? keyed_noise(r.seed, r.numbers, step + 1, r.shape, r.device) : torch::Tensor();
    Sampler::Step next = sampler.step(step, x, out, noise);
    x = next.x;
    expect_finite(x, r.numbers, step);
    if (progress) progress({step + 1, sampler.steps(), x, next.x_start});
  }
  return x;
}

}  // namespace mhla
