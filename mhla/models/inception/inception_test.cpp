// Every output against what torch-fidelity computed with the weights of the formula.
#include "mhla/models/inception/inception.h"

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/inception/inception_recorded.h"
#include "mhla/models/recorded_fixture.h"
#include "mhla/models/weights_file.h"
#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

Inception& network() {  // made once: 24 million values of the formula
  static Inception model = formula_inception();
  return model;
}

TEST(Inception, RecordedCases) { expect_recorded_cases("inception", 2, inception_recorded(), 2e-5); }

TEST(Inception, WeightsFromAFile) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "inception.safetensors";
  Weights weights = state_of(*network());
  weights["Mixed_5b.branch1x1.bn.num_batches_tracked"] = torch::zeros({1}, torch::kLong);
  write_weights(path, weights);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor images = torch::arange(3 * 9 * 8).to(torch::kByte).view({1, 3, 9, 8});
  Inception read = load_inception(path);
  EXPECT_FALSE(read->is_training());
  EXPECT_TRUE(torch::equal(read->forward(images).f2048, network()->forward(images).f2048));
  weights.erase("fc.bias");
  write_weights(path, weights);
  const std::string message = message_of([&] { load_inception(path); });
  EXPECT_TRUE(has(message, path.string()) && has(message, "fc.bias")) << message;
  std::filesystem::remove(path);
}

TEST(Inception, ImagesThatAreRefused) {
  for (const torch::Tensor& images : {torch::zeros({1, 3, 8, 8}), torch::zeros({1, 1, 8, 8}, torch::kByte),
                                      torch::zeros({3, 8, 8}, torch::kByte), torch::zeros({0, 3, 8, 8}, torch::kByte)})
    EXPECT_TRUE(has(message_of([&] { inception_input(images); }), "expected u8 [B, 3, rows, columns]"));
}

}  // namespace
}  // namespace mhla
