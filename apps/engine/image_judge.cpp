#include "apps/engine/image_judge.h"

#include <filesystem>

#include "apps/engine/clip_judge.h"
#include "apps/engine/image_source.h"
#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/data/augment_item.h"
#include "mhla/models/inception/inception.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/open_classifier.h"
#include "mhla/train/opening.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

using namespace mhla::train;

namespace {

constexpr std::string_view kInceptionHead = "inception:", kClassifierHead = "classifier:", kClipHead = "clip:";

class InceptionJudge : public ImageJudge {
 public:
  InceptionJudge(const std::string& file, const std::string& device)
      : device_(train::device_of(device)), model_(load_inception(file)) {
    model_->to(device_);
  }
  [[nodiscard]] std::int64_t features(const torch::Tensor&) const override { return 2048; }
  [[nodiscard]] std::int64_t classes() const override { return 1008; }
  [[nodiscard]] bool has_spatial() const override { return true; }
  JudgedBatch judge(const torch::Tensor& images) override {
    const InceptionFeatures f = model_->forward(images.to(device_));
    return {f.f2048.cpu().contiguous(), f.spatial.cpu().contiguous(), f.logits_unbiased.cpu().contiguous()};
  }

 private:
  torch::Device device_;
  Inception model_;
};

// Images go through the run's own preprocessing, as in its evaluation.
class ClassifierJudge : public ImageJudge {
 public:
  ClassifierJudge(const std::string& folder, const EvalImagesRequest& request, train::Observer& observer)
      : device_(train::device_of(request.device)) {
    train::OpenOptions open;
    open.run = folder, open.device = request.device, open.threads = request.threads;
    run_ = train::open_classifier(kEvalImagesCommand, open, observer);
    run_.model->eval();
    augmenter_ = std::make_unique<ItemAugmenter>(without_chance(run_.augment_for(run_.network)));
    names_ = read_class_names(folder, run_.network.classes);
    const torch::NoGradGuard no_gradient;
    const ClassifierConfig& c = run_.network;
    width_ = run_.model->features(torch::zeros({1, c.channels, c.image[0], c.image[1]}).to(device_)).size(1);
  }
  [[nodiscard]] std::int64_t features(const torch::Tensor&) const override { return width_; }
  [[nodiscard]] std::int64_t classes() const override { return run_.network.classes; }
  [[nodiscard]] std::vector<std::string> class_names() const override { return names_; }
  JudgedBatch judge(const torch::Tensor& images) override {
    const ClassifierConfig& c = run_.network;
    const std::int64_t count = images.size(0), rows = images.size(2), columns = images.size(3);
    const torch::Tensor pixels = images.permute({0, 2, 3, 1}).contiguous();
    const torch::Tensor inputs = torch::empty({count, c.channels, c.image[0], c.image[1]});
    default_executor()->run(count, [&](std::int64_t i, int) {
      ItemScratch scratch;
      scratch.image.resize(static_cast<int>(rows), static_cast<int>(columns), 3);
      const auto bytes = static_cast<std::int64_t>(scratch.image.pixels.size());
      std::copy_n(pixels.data_ptr<std::uint8_t>() + i * bytes, bytes, scratch.image.pixels.begin());
      convert_channels(scratch.image, static_cast<int>(c.channels));
      augmenter_->augment_item(scratch, {}, 0, 0, i, 0, inputs.data_ptr<float>() + i * augmenter_->item_floats());
    });
    const torch::Tensor features = run_.model->features(inputs.to(device_));
    const torch::Tensor logits = run_.model->head(features).to(torch::kFloat).cpu().contiguous();
    if (!logits.isfinite().all().item<bool>()) throw not_finite(kEvalImagesCommand, run_.weights);
    return {features.to(torch::kFloat).cpu().contiguous(), {}, logits};
  }

 private:
  torch::Device device_;
  train::ClassifierRun run_;
  std::unique_ptr<ItemAugmenter> augmenter_;
  std::vector<std::string> names_;
  std::int64_t width_ = 0;
};

// x / 255 of every pixel: distances of images as they are.
class PixelJudge : public ImageJudge {
 public:
  [[nodiscard]] std::int64_t features(const torch::Tensor& image) const override { return image.numel(); }
  [[nodiscard]] std::int64_t classes() const override { return 0; }
  JudgedBatch judge(const torch::Tensor& images) override {
    return {images.to(torch::kFloat).flatten(1).div(255.0).contiguous(), {}, {}};
  }
};

}  // namespace

std::string judge_label(const std::string& features) {
  const auto file = [&](std::string_view head) {
    const std::filesystem::path path(features.substr(head.size()));
    return (path.has_filename() ? path : path.parent_path()).filename().string();
  };
  if (features == kPixels) return features;
  if (features.rfind(kInceptionHead, 0) == 0) return "inception-v3, " + file(kInceptionHead);
  if (features.rfind(kClassifierHead, 0) == 0) return "classifier " + file(kClassifierHead);
  if (features.rfind(kClipHead, 0) == 0) return "clip " + file(kClipHead);
  fail(kEvalImagesCommand, ": --features is '", features,
       "', expected inception:FILE, classifier:RUN, clip:DIR or pixels");
}

torch::Tensor ImageJudge::embed_prompts(const std::vector<std::string>&) {
  fail(kEvalImagesCommand, ": ", name_, " reads no prompts, expected --features clip:DIR for the metric clip");
}

std::unique_ptr<ImageJudge> open_judge(const EvalImagesRequest& request, train::Observer& observer) {
  // Convolutions on a GPU round to TF32 otherwise, and metrics would differ from those of the CPU in the third digit.
  at::globalContext().setAllowTF32CuDNN(false);
  const std::string& features = request.features;
  std::unique_ptr<ImageJudge> judge;
  if (features.rfind(kInceptionHead, 0) == 0)
    judge = std::make_unique<InceptionJudge>(features.substr(kInceptionHead.size()), request.device);
  else if (features.rfind(kClassifierHead, 0) == 0)
    judge = std::make_unique<ClassifierJudge>(features.substr(kClassifierHead.size()), request, observer);
  else if (features.rfind(kClipHead, 0) == 0)
    judge = open_clip_judge(features.substr(kClipHead.size()), request.device);
  else
    judge = std::make_unique<PixelJudge>();
  judge->set_name(judge_label(features));
  return judge;
}

}  // namespace mhla::apps
