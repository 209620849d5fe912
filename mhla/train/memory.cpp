#include "mhla/train/memory.h"

#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

constexpr double kNumber = 4;  // bytes of an f32

std::string opening(const std::string& what, const ModelSize& size) {
  return str(what, ": a model of ", static_cast<std::int64_t>(size.parameters), " parameters");
}

double activation_bytes(const TrainOptions& o) { return o.precision == "bf16" ? 2 : kNumber; }

}  // namespace

void expect_training_fits(const std::string& what, const ModelSize& size, const TrainOptions& o, double loaded) {
  const torch::Device device = device_of(o.device);
  const double weights = kNumber * size.parameters;
  MemoryEstimate needed, host;
  const double keepers = keepers_of(o).ranks;
  needed.add("weights", weights).add("gradients", weights).add("AdamW", 2 * weights / keepers);
  if (o.ema > 0) needed.add("EMA", weights / keepers);
  if (o.place.ranks > 1) needed.add("gradients on their way", (o.deterministic_reduce ? 2 : 1) * weights);
  needed.add("activations", activation_bytes(o) * static_cast<double>(share_of(o).each) * size.kept / o.place.context);
  MemoryEstimate& loader = device.is_cuda() ? host : needed;
  if (device.is_cuda()) host.add("weights", weights);  // models are made on the host
  loader.add("batches", kNumber * loaded);
  if (device.is_cuda()) expect_fits(opening(what, size), needed, device_memory_at_hand(device.index()));
  expect_fits(opening(what, size), device.is_cuda() ? host : needed);
}

void expect_inference_fits(const std::string& what, const ModelSize& size, std::int64_t batch, const TrainOptions& o,
                           double more, const char* of) {
  const torch::Device device = device_of(o.device);
  const double weights = kNumber * size.parameters;
  MemoryEstimate needed, host;
  needed.add("weights", weights);
  needed.add("activations", activation_bytes(o) * static_cast<double>(batch) * size.passing);
  if (device.is_cuda()) {
    host.add("weights", weights).add(of, more);
    expect_fits(opening(what, size), needed, device_memory_at_hand(device.index()));
  } else {
    needed.add(of, more);
  }
  expect_fits(opening(what, size), device.is_cuda() ? host : needed);
}

}  // namespace mhla::train
