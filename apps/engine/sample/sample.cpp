// `mhla sample`: everything that can be wrong is found first, then images are made a batch at a time. The noise of an
// image is keyed by its number, so neither the batch nor an interruption changes it; on the CPU its bits do not depend
// on the batch at all, since every image goes through the network by itself.
#include "apps/engine/sample/sample.h"

#include <algorithm>
#include <chrono>

#include "apps/engine/sample/captions.h"
#include "apps/engine/sample/pixels.h"
#include "apps/engine/sample/sample_folder.h"
#include "mhla/core/memory.h"
#include "mhla/core/run_failed.h"
#include "mhla/core/seconds.h"
#include "mhla/core/threads.h"
#include "mhla/diffusion/graph_denoiser.h"
#include "mhla/diffusion/sample.h"
#include "mhla/train/opening.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

using train::Observer;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kGpuBatch = 32, kCpuBatch = 1;

// A lower bound, before anything is allocated: the text encoder is gone when the network comes.
void expect_sampling_room(const SampleImagesRequest& r, const SamplePlan& plan, torch::Device device,
                          std::int64_t batch) {
  const ModelSize size = plan.generator.size_at(plan.samples);
  const auto expect = [&](const std::string& what, const MemoryEstimate& needed) {
    expect_fits(what, needed, device.is_cuda() ? device_memory_at_hand(device.index()) : memory_at_hand());
  };
  const double rows = static_cast<double>(device.is_cpu() ? 1 : batch) * (plan.guided() ? 2.0 : 1.0);
  const double number = r.precision == "bf16" ? 2 : 4;
  MemoryEstimate needed;
  needed.add("weights", number * size.parameters).add("activations", number * rows * size.passing);
  if (plan.autoencoder) {
    const Plane tile = decoded_size(plan, r.tile);
    const ModelSize decoder = size_of(*plan.autoencoder, tile[0], tile[1]);
    const auto together = static_cast<double>(std::min(batch, decoded_together(plan, device)));
    needed.add("autoencoder", number * decoder.parameters).add("decoding", number * together * decoder.passing);
  }
  expect(str(kSampleCommand, ": ", plan.images[0], "x", plan.images[1], " images of a model with ",
             static_cast<std::int64_t>(size.parameters), " parameters"),
         needed);
  if (plan.prompts.empty()) return;
  const Gemma2Config encoder = check_text_encoder(plan, r.negative);
  const ModelSize text = size_of(encoder, 512);
  expect(str(kSampleCommand, ": a text encoder of ", static_cast<std::int64_t>(text.parameters), " parameters"),
         MemoryEstimate().add("weights", 2 * text.parameters).add("activations", 4 * text.passing));
}

torch::Tensor kind_rows(const torch::Tensor& all, const SamplePlan& plan, const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> kinds;
  for (const std::int64_t number : numbers) kinds.push_back(static_cast<std::int64_t>(plan.kind_of(number)));
  return all.index_select(0, torch::tensor(kinds, torch::kLong));
}

// What images can show, a row for every class or prompt, and what guidance leads away from.
Captions conditions_of(const SampleImagesRequest& r, const SamplePlan& plan, torch::Device device) {
  if (!plan.prompts.empty()) return encode_captions(plan, r.negative, device);
  Captions all;
  all.prompts.labels = torch::tensor(plan.classes, torch::kLong);
  if (!r.negative.empty())
    all.negative.labels = torch::tensor({class_called(r.negative, plan.generator.class_names)}, torch::kLong);
  return all;
}

// Time left, told after every step of a batch.
class SamplingProgress {
 public:
  SamplingProgress(std::int64_t images, std::int64_t steps, Observer& observer)
      : images_(images), steps_(steps), observer_(observer) {}
  void tell(std::int64_t finished, std::int64_t batch, std::int64_t step) const {
    const double done = static_cast<double>(finished) * static_cast<double>(steps_) +
                        static_cast<double>(batch) * static_cast<double>(step);
    const double all = static_cast<double>(images_) * static_cast<double>(steps_), seconds = seconds_since(start_);
    observer_.progress(JsonValue()
                           .set("kind", "sampling")
                           .set("images", finished)
                           .set("of", images_)
                           .set("step", step)
                           .set("steps", steps_)
                           .set("share", done / all)
                           .set("eta_s", done > 0 ? seconds * (all - done) / done : 0.0));
  }
  [[nodiscard]] double seconds() const { return seconds_since(start_); }

 private:
  std::int64_t images_, steps_;
  Observer& observer_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

void sample_images(const SampleImagesRequest& r, Observer& observer) {
  const SamplePlan plan = plan_sampling(r, observer);
  SampleFolder folder(plan, r);
  train::TrainOptions machine;
  machine.device = plan.device, machine.threads = r.threads;
  train::prepare(machine, observer);
  const torch::Device device = train::device_of(plan.device);
  const std::int64_t batch = std::min(r.batch > 0 ? r.batch : device.is_cpu() ? kCpuBatch : kGpuBatch, plan.count());
  expect_sampling_room(r, plan, device, batch);

  const Captions conditions = conditions_of(r, plan, device);
  Generator generator = load_generator(plan.generator, plan.weights, plan.prefix, plan.samples);
  const torch::ScalarType dtype = r.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  generator.network->to(device, dtype);
  PixelMaker pixels(plan, device, dtype, r.tile);
  const auto to_device = [&](const torch::Tensor& x) { return x.to(device); };
  GraphDenoiser network(*generator.denoiser);
  GuidedDenoiser guided(network, plan.guidance, conditions.negative.each(to_device));
  const std::unique_ptr<Sampler> sampler = plan.make_sampler();

  folder.begin();
  const train::StopSignal signal;
  const std::vector<std::int64_t> todo = folder.missing();
  const auto total = static_cast<std::int64_t>(todo.size());
  const SamplingProgress progress(total, sampler->steps(), observer);
  std::int64_t finished = 0;
  const auto leave_when_stopped = [&] {
    if (signal.name() == nullptr) return;
    throw RunFailed(str(kSampleCommand, ": stopped by ", signal.name(), "; ", plan.count() - total + finished, " of ",
                        plan.count(), " images are in ", r.out, ", continue with --resume"));
  };
  while (finished < total) {
    const std::int64_t count = std::min(batch, total - finished);
    const std::vector<std::int64_t> numbers(todo.begin() + finished, todo.begin() + finished + count);
    SampleRequest request;
    request.shape = {plan.generator.channels(), plan.samples[0], plan.samples[1]};
    request.numbers = numbers, request.seed = r.seed, request.device = device;
    request.condition =
        conditions.prompts.each([&](const torch::Tensor& all) { return kind_rows(all, plan, numbers).to(device); });
    const torch::Tensor made = sample(guided, *sampler, request, [&](const SampleProgress& p) {
      progress.tell(finished, count, p.step);
      leave_when_stopped();
      if (r.preview == 0 || p.step % r.preview != 0 || p.step == p.steps) return;
      const std::vector<Image> images = pixels.images(p.x_start, numbers);
      for (std::size_t i = 0; i < images.size(); ++i) folder.write_preview(numbers[i], p.step, images[i]);
    });
    const std::vector<Image> images = pixels.images(made, numbers);
    default_executor()->run(count, [&](std::int64_t i, int) {
      const auto at = static_cast<std::size_t>(i);
      folder.write_image(numbers[at], images[at]);
    });
    for (const std::int64_t number : numbers)
      observer.row(
          JsonValue().set("kind", "image").set("number", number).set("path", folder.image_path(number).string()));
    finished += count;
  }
  folder.end();
  const double seconds = progress.seconds();
  JsonValue end = JsonValue()
                      .set("kind", "sampled")
                      .set("model", plan.generator.model())
                      .set("attention", plan.generator.attention())
                      .set("weights", plan.weights.string())
                      .set("sampler", plan.sampler.sampler)
                      .set("steps", sampler->steps())
                      .set("guidance", plan.guidance.scale)
                      .set("images", total)
                      .set("kept", plan.count() - total)
                      .set("seconds", seconds)
                      .set("images_per_s", seconds > 0 ? static_cast<double>(total) / seconds : 0.0)
                      .set("out", r.out);
  if (r.sheet) end.set("sheet", folder.write_sheet(*r.sheet).string());
  if (r.npz) end.set("npz", folder.write_npz().string());
  observer.row(end);
}

}  // namespace mhla::apps
