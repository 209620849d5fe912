#include "mhla/models/clip/clip_recorded.h"

#include "mhla/models/clip/clip.h"

namespace mhla {
namespace {

Weights clip(const RecordedCase& c) {
  c.expect_keys({"names", "config"});
  const JsonValue* config = c.config.find("config");
  if (config != nullptr && config->is_null()) config = nullptr;
  const torch::NoGradGuard no_gradient;
  Clip model = make_clip(c.weights("param."), config);
  const torch::Tensor& pixels = c.tensor("in.pixels");
  model->to(pixels.device(), pixels.scalar_type());
  const torch::Tensor image = model->embed_images(pixels), text = model->embed_texts(c.index("in.ids"));
  const auto unit = [](const torch::Tensor& x) { return x / x.norm(2, -1, /*keepdim=*/true); };
  return {{"out.image", image},
          {"out.text", text},
          {"out.logits_per_image", model->logit_scale() * torch::matmul(unit(image), unit(text).t())}};
}

}  // namespace

RecordedFamilies clip_recorded() { return {{"clip", clip}}; }

}  // namespace mhla
