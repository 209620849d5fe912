#include "mhla/diffusion/guidance.h"

namespace mhla {

void check(const GuidanceOptions& o) {
  if (!(o.scale >= 0.0)) fail("guidance: scale is ", o.scale, ", expected 0 or more");
  if (o.channels < 0) fail("guidance: channels is ", o.channels, ", expected 0 for all, or a number of channels");
  if (!(o.interval[0] <= o.interval[1]))
    fail("guidance: interval is ", o.interval[0], " to ", o.interval[1], ", expected the lower end first");
}

torch::Tensor guided(const torch::Tensor& conditional, const torch::Tensor& null, double scale, std::int64_t channels) {
  const auto first = [&](const torch::Tensor& x) { return x.narrow(1, 0, channels); };
  const torch::Tensor mixed = first(null) + scale * (first(conditional) - first(null));
  if (channels == conditional.size(1)) return mixed;
  return torch::cat({mixed, conditional.narrow(1, channels, conditional.size(1) - channels)}, 1);
}

GuidedDenoiser::GuidedDenoiser(Denoiser& model, const GuidanceOptions& options, Conditioning negative)
    : model_(model), options_(options), negative_(std::move(negative)) {
  check(options);
}

torch::Tensor GuidedDenoiser::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  const std::int64_t B = x.size(0), channels = options_.channels == 0 ? x.size(1) : options_.channels;
  if (channels > x.size(1))
    fail("guidance: channels is ", channels, ", expected at most ", x.size(1), ", those of a sample");
  const torch::Tensor inside = (t >= options_.interval[0]).logical_and(t <= options_.interval[1]);
  if (options_.scale == 1.0 || B == 0 || !inside.any().item<bool>()) return model_.denoise(x, t, condition);
  const bool own = negative_.labels.defined() || negative_.captions.defined();
  const Conditioning null = own ? negative_.each([&](const torch::Tensor& rows) {
    if (rows.size(0) != 1 && rows.size(0) != B)
      fail("guidance: the negative conditioning has ", rows.size(0), " rows, expected 1 or ", B);
    std::vector<std::int64_t> shape = rows.sizes().vec();
    shape[0] = B;
    return rows.expand(shape);
  })
                                : model_.unconditional(condition);
  torch::Tensor conditional, other;
  if (options_.together) {
    const torch::Tensor out =
        model_.denoise(torch::cat({x, x}), torch::cat({t, t}), Conditioning::join(condition, null));
    conditional = out.narrow(0, 0, B), other = out.narrow(0, B, B);
  } else {
    conditional = model_.denoise(x, t, condition), other = model_.denoise(x, t, null);
  }
  const torch::Tensor mixed = guided(conditional, other, options_.scale, channels);
  if (inside.all().item<bool>()) return mixed;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(x.dim()), 1);
  rows[0] = B;
  return torch::where(inside.view(rows), mixed, conditional);
}

}  // namespace mhla
