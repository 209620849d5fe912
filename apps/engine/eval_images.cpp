// `mhla eval images`: features of two sets of images, and the metrics of diffusion/metrics over them. Images are read a
// batch at a time; what is kept of them follows from the metrics (needs_of), so FID takes the same memory for any
// number.
#include "apps/engine/eval_images.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/data/image_set.h"
#include "mhla/diffusion/metrics/metrics.h"
#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/folder.h"
#include "mhla/models/inception/inception.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/train/opening.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using train::Observer;

constexpr const char* kEvalImagesCommand = "eval images";
constexpr std::int64_t kPoolSize = 2048, kLogitsSize = 1008;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// RGB images, some at a time; those of a batch have one size.
class Images {
 public:
  virtual ~Images() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // u8 [n, 3, rows, columns] from image `first` on, n from 1 to `most`.
  virtual torch::Tensor batch(std::int64_t first, std::int64_t most) = 0;
};

class FolderImages : public Images {
 public:
  explicit FolderImages(const std::string& folder) : folder_(folder), files_(image_files_in(folder)) {
    if (files_.empty())
      fail(kEvalImagesCommand, ": ", folder, " has no image, expected ", readable_endings(), " files");
  }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }

  torch::Tensor batch(std::int64_t first, std::int64_t most) override {
    std::vector<torch::Tensor> images;
    const std::int64_t end = std::min(size(), first + most);
    for (std::int64_t i = first; i < end; ++i) {
      if (next_at_ != i) next_ = read(i), next_at_ = i;
      if (!images.empty() && images.front().sizes() != next_.sizes()) break;
      images.push_back(next_);
    }
    return torch::stack(images).permute({0, 3, 1, 2});
  }

 private:
  torch::Tensor read(std::int64_t at) {
    Image image = read_image(fs::path(folder_) / files_[static_cast<std::size_t>(at)]);
    convert_channels(image, 3);
    return torch::from_blob(image.pixels.data(), {image.height, image.width, 3}, torch::kByte).clone();
  }

  std::string folder_;
  std::vector<std::string> files_;
  torch::Tensor next_;
  std::int64_t next_at_ = -1;
};

class NpzImages : public Images {
 public:
  explicit NpzImages(const Npz& file) : array_(file.array("arr_0")) {
    const ConstView& v = array_.view;
    if (v.dtype != DType::kU8 || v.rank != 4 || v.shape[3] != 3 || v.shape[0] < 1 || !v.contiguous())
      fail(file.label(), ": arr_0 is ", name_of(v.dtype), " ", shape_text(v), ", expected u8 [N, rows, columns, 3]");
    if (v.shape[1] < 1 || v.shape[2] < 1) fail(file.label(), ": arr_0 has shape ", shape_text(v), ": no pixels");
  }
  [[nodiscard]] std::int64_t size() const override { return array_.view.shape[0]; }

  torch::Tensor batch(std::int64_t first, std::int64_t most) override {
    const ConstView& v = array_.view;
    const std::int64_t count = std::min(most, size() - first), bytes = v.shape[1] * v.shape[2] * 3;
    auto* const from = const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(v.data)) + first * bytes;
    return torch::from_blob(from, {count, v.shape[1], v.shape[2], 3}, torch::kByte).permute({0, 3, 1, 2});
  }

 private:
  NpyArray array_;
};

// A set by its path: images, statistics, or an .npz with both.
struct Source {
  std::unique_ptr<Images> images;      // null: none there
  std::optional<ImageFeatures> stats;  // none: not there
};

Source open_source(const std::string& path, const std::string& network) {
  Source source;
  if (is_folder(path)) {
    source.images = std::make_unique<FolderImages>(path);
  } else if (ends_with(path, ".npz")) {
    const Npz file = Npz::read(path);
    if (file.contains("arr_0")) source.images = std::make_unique<NpzImages>(file);
    if (file.contains("mu")) source.stats = ImageFeatures::read(path, network);
    if (!source.images && !source.stats) fail(path, ": has neither arr_0 nor mu, expected images or statistics");
  } else if (ends_with(path, ".safetensors")) {
    source.stats = ImageFeatures::read(path, network);
  } else {
    fail(kEvalImagesCommand, ": ", path, " is no folder, .npz or .safetensors file");
  }
  return source;
}

// The file of --features inception:FILE.
fs::path inception_file(const std::string& features) {
  constexpr std::string_view kHead = "inception:";
  if (features.rfind(kHead, 0) != 0)
    fail(kEvalImagesCommand, ": --features is '", features, "', expected inception:FILE");
  return features.substr(kHead.size());
}

class Extractor {
 public:
  Extractor(const EvalImagesRequest& request, std::string network, Observer& observer)
      : observer_(observer),
        batch_(request.batch),
        device_(train::device_of(request.device)),
        network_(std::move(network)),
        model_(load_inception(inception_file(request.features))) {
    model_->to(device_);
  }

  ImageFeatures features_of(Images& images, const std::string& label, const FeatureNeeds& needs) {
    const auto count = static_cast<double>(images.size());
    expect_fits(str(kEvalImagesCommand, ": features of ", images.size(), " images"),
                MemoryEstimate()
                    .add("features", needs.rows ? 4.0 * count * kPoolSize : 0.0)
                    .add("logits", needs.logits ? 4.0 * count * kLogitsSize : 0.0));
    const torch::NoGradGuard no_gradient;
    ImageFeatures all(label, network_, needs);
    for (std::int64_t done = 0; done < images.size();) {
      const torch::Tensor batch = images.batch(done, batch_);
      const InceptionFeatures f = model_->forward(batch.to(device_));
      done += batch.size(0);
      const torch::Tensor pool = f.f2048.cpu().contiguous(), spatial = f.spatial.cpu().contiguous(),
                          logits = f.logits_unbiased.cpu().contiguous();
      all.add({.features = ops::view_of(pool, kEvalImagesCommand, "features"),
               .maybe_spatial = ops::view_of(spatial, kEvalImagesCommand, "spatial features"),
               .maybe_logits = ops::view_of(logits, kEvalImagesCommand, "logits")});
      observer_.progress(
          JsonValue().set("kind", "eval").set("step", done).set("of", images.size()).set("samples", "images"));
    }
    return all;
  }

 private:
  Observer& observer_;
  std::int64_t batch_;
  torch::Device device_;
  std::string network_;
  Inception model_;
};

void tell(const MetricResult& result, Observer& observer) {
  JsonValue row = JsonValue()
                      .set("kind", "metric")
                      .set("metric", result.name)
                      .set("value", result.value.value)
                      .set("images", result.images)
                      .set("features", result.features);
  if (result.value.deviation) row.set("deviation", *result.value.deviation);
  if (!result.reference.empty()) row.set("reference", result.reference);
  if (result.reference_images > 0) row.set("reference_images", result.reference_images);
  observer.row(row);
}

}  // namespace

void eval_images(const EvalImagesRequest& request, Observer& observer) {
  std::vector<std::string> names = request.metrics;
  if (names.empty() && request.save_stats.empty()) names = {"fid"};
  const MetricNeeds needs = needs_of(names);
  if (needs.any_reference && request.reference.empty())
    fail(kEvalImagesCommand, ": --reference is missing, expected for all metrics but is and is-shuffled");
  // What can be wrong with paths is found before the network is read.
  const std::string network = "inception-v3, " + inception_file(request.features).filename().string();
  Source source = open_source(request.samples, network), other;
  if (needs.any_reference) other = open_source(request.reference, network);
  train::TrainOptions options;
  options.device = request.device, options.threads = request.threads;
  train::prepare(options, observer);
  Extractor extractor(request, network, observer);

  FeatureNeeds kept = needs.samples;
  if (!request.save_stats.empty()) kept.stats = kept.spatial_stats = true;
  ImageFeatures samples =
      source.images ? extractor.features_of(*source.images, request.samples, kept) : std::move(*source.stats);
  if (!request.save_stats.empty()) {
    samples.save(request.save_stats);
    observer.row(JsonValue().set("kind", "stats").set("path", request.save_stats));
  }
  if (names.empty()) return;

  // ADM's files have statistics of a whole set beside some of its images, which serve the metrics of neighbours only.
  const std::optional<ImageFeatures>& stats = other.stats;
  std::optional<ImageFeatures> rows;
  FeatureNeeds of_images = needs.reference;
  if (stats) of_images.stats = of_images.spatial_stats = false;
  if (other.images && (!stats || of_images.rows))
    rows = extractor.features_of(*other.images, request.reference, of_images);
  const MetricOptions metric_options{.neighbours = request.neighbours, .kid_subsets = {}};
  const auto by_rows = [&](const std::string& name) { return rows && stats && metric_called(name).of_reference.rows; };
  std::map<std::string, MetricResult> results;
  const auto compute = [&](bool of_rows, const ImageFeatures* reference) {
    std::vector<std::string> some;
    std::copy_if(names.begin(), names.end(), std::back_inserter(some),
                 [&](const std::string& name) { return by_rows(name) == of_rows; });
    if (some.empty()) return;
    for (MetricResult& result : compute_metrics(some, samples, reference, metric_options))
      results[result.name] = std::move(result);
  };
  compute(true, rows ? &*rows : nullptr);
  compute(false, stats ? &*stats : rows ? &*rows : nullptr);
  for (const std::string& name : names) tell(results.at(name), observer);
}

}  // namespace mhla::apps
