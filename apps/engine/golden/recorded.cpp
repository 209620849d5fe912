// Families that cases name in their metadata: each room that has recorded cases says which, and computes them.
#include "apps/engine/golden/golden.h"
#include "mhla/data/images_recorded.h"
#include "mhla/diffusion/diffusion_recorded.h"
#include "mhla/diffusion/metrics/metrics_recorded.h"
#include "mhla/diffusion/video_recorded.h"
#include "mhla/language/captions_recorded.h"
#include "mhla/models/autoencoder/autoencoder_recorded.h"
#include "mhla/models/autoencoder/wan_vae_recorded.h"
#include "mhla/models/clip/clip_recorded.h"
#include "mhla/models/dit/dit_recorded.h"
#include "mhla/models/inception/inception_recorded.h"
#include "mhla/models/lm/lm_recorded.h"
#include "mhla/models/sana/sana_recorded.h"
#include "mhla/models/text_encoder/gemma2_recorded.h"
#include "mhla/models/text_encoder/umt5_recorded.h"
#include "mhla/models/wan/wan_recorded.h"

namespace mhla::golden {
namespace {

// A case of a room that does not know LibTorch: f64 in, f64 out.
Tensors compute_arrays(const RecordedArraysFamily& family, const Case& c) {
  RecordedArraysCase plain{{c.config}, {}};
  for (const auto& [name, value] : c.tensors) {
    const torch::Tensor wide = value.to(torch::kCPU, torch::kDouble).contiguous();
    const auto* data = wide.data_ptr<double>();
    plain.arrays[name] = {wide.sizes().vec(), {data, data + wide.numel()}};
  }
  Tensors results;
  for (const auto& [name, array] : family.compute(plain))
    results[name] = torch::tensor(array.values, torch::kDouble).view(array.shape);
  return results;
}

struct Room {
  Room(const RecordedFamilies& families) {
    for (const RecordedFamily& family : families) Family(family.name, family.compute);
  }
  Room(const RecordedArraysFamilies& families) {
    for (const RecordedArraysFamily& family : families)
      Family(family.name, [family](const Case& c) { return compute_arrays(family, c); });
  }
};
const Room kRooms[] = {diffusion_recorded(), dit_recorded(),       sana_recorded(), autoencoder_recorded(),
                       gemma2_recorded(),    inception_recorded(), clip_recorded(), metrics_recorded(),
                       images_recorded(),    wan_recorded(),       umt5_recorded(), wan_vae_recorded(),
                       video_recorded(),     captions_recorded(),  lm_recorded()};

}  // namespace
}  // namespace mhla::golden
