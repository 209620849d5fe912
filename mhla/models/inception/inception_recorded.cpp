#include "mhla/models/inception/inception_recorded.h"

#include "mhla/models/inception/inception.h"

namespace mhla {
namespace {

Weights inception(const RecordedCase& c) {
  c.expect_keys({"weights", "names"});
  c.expect_text("weights", "formula");
  static Inception network = formula_inception();  // made once: 24 million values, exact in f32 and f64
  const torch::Tensor images = c.tensor("in.image").to(torch::kByte);
  network->to(images.device(), c.tensor("in.image").scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor rows = torch::tensor({0, 1, 150, 298}, torch::kLong).to(images.device());
  const InceptionFeatures got = network->forward(images);
  return {{"out.resized", inception_input(images).index_select(2, rows)},
          {"out.64", got.f64},
          {"out.192", got.f192},
          {"out.768", got.f768},
          {"out.2048", got.f2048},
          {"out.logits", got.logits},
          {"out.logits_unbiased", got.logits_unbiased},
          {"out.sfid", got.spatial.view({-1, 17, 17, 7})}};
}

}  // namespace

RecordedFamilies inception_recorded() { return {{"inception", inception}}; }

}  // namespace mhla
