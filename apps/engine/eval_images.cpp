// `mhla eval images`: features of two sets of images, and the metrics of diffusion/metrics over them. Images are read a
// batch at a time; what is kept of them follows from the metrics (needs_of), so FID takes the same memory for any
// number.
#include "apps/engine/eval_images.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>

#include "apps/engine/image_judge.h"
#include "apps/engine/image_source.h"
#include "apps/engine/nearest_images.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/diffusion/metrics/features.h"
#include "mhla/diffusion/metrics/metrics.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/models/clip/clip.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/train/opening.h"

namespace mhla::apps {
namespace {

using train::Observer;

constexpr const char *kNearest = "nearest", *kClip = "clip";

// Runs images through the network; counts on the way how many it takes for what they should be.
class Extractor {
 public:
  Extractor(const EvalImagesRequest& request, std::unique_ptr<ImageJudge> judge, Observer& observer)
      : observer_(observer), batch_(request.batch), judge_(std::move(judge)) {}

  [[nodiscard]] ImageJudge& judge() { return *judge_; }

  // `asked`: the class of every image, or none. `prompts` [N, d]: embeddings of what each should show, or undefined.
  ImageFeatures features_of(SourceImages& images, const std::string& label, const FeatureNeeds& needs,
                            const std::vector<std::int64_t>& asked = {}, const torch::Tensor& prompts = {}) {
    if (needs.logits && judge_->classes() == 0)
      fail(kEvalImagesCommand, ": ", judge_->name(), " have no classes, expected inception or a classifier for is");
    if (needs.spatial_stats && !judge_->has_spatial())
      fail(kEvalImagesCommand, ": ", judge_->name(), " has no spatial features, expected inception:FILE for sfid");
    const auto count = static_cast<double>(images.size());
    expect_fits(
        str(kEvalImagesCommand, ": features of ", images.size(), " images"),
        MemoryEstimate()
            .add("features", needs.rows ? 4.0 * count * static_cast<double>(judge_->features(images.batch(0, 1))) : 0.0)
            .add("logits", needs.logits ? 4.0 * count * static_cast<double>(judge_->classes()) : 0.0));
    const torch::NoGradGuard no_gradient;
    ImageFeatures all(label, judge_->name(), needs);
    agreed_ = 0, clip_scores_.clear();
    for (std::int64_t done = 0; done < images.size();) {
      const torch::Tensor batch = images.batch(done, batch_);
      const JudgedBatch judged = judge_->judge(batch);
      const auto view = [&](const torch::Tensor& part, const char* what) {
        return part.defined() ? ops::view_of(part, kEvalImagesCommand, what) : ConstView();
      };
      all.add({.features = view(judged.features, "features"),
               .maybe_spatial = view(judged.spatial, "spatial features"),
               .maybe_logits = view(judged.logits, "logits")});
      if (prompts.defined()) {
        const torch::Tensor scores = clip_scores(judged.features, prompts.narrow(0, done, batch.size(0)));
        for (std::int64_t i = 0; i < scores.size(0); ++i) clip_scores_.push_back(scores[i].item<double>());
      }
      if (!asked.empty()) {
        const torch::Tensor best = judged.logits.argmax(1);
        for (std::int64_t i = 0; i < batch.size(0); ++i)
          agreed_ += best[i].item<std::int64_t>() == asked[static_cast<std::size_t>(done + i)] ? 1 : 0;
      }
      done += batch.size(0);
      observer_.progress(
          JsonValue().set("kind", "eval").set("step", done).set("of", images.size()).set("samples", "images"));
    }
    return all;
  }
  // Of the last set.
  [[nodiscard]] std::int64_t agreed() const { return agreed_; }
  [[nodiscard]] MetricValue clip_score() const {  // with its standard error
    const auto n = static_cast<double>(clip_scores_.size());
    double sum = 0, squares = 0;
    for (const double score : clip_scores_) sum += score;
    for (const double score : clip_scores_) squares += (score - sum / n) * (score - sum / n);
    if (n < 2) return {sum / n, {}};
    return {sum / n, std::sqrt(squares / (n - 1) / n)};
  }

 private:
  Observer& observer_;
  std::int64_t batch_;
  std::unique_ptr<ImageJudge> judge_;
  std::int64_t agreed_ = 0;
  std::vector<double> clip_scores_;
};

std::int64_t class_number(const std::string& given, const std::vector<std::string>& names, const std::string& where) {
  const auto by_name = std::find(names.begin(), names.end(), given);
  if (by_name != names.end()) return by_name - names.begin();
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
  if (error != std::errc() || end != given.data() + given.size() || number < 0 ||
      number >= static_cast<std::int64_t>(names.size()))
    fail(where, ": class '", given, "', expected a number from 0 to ", names.size() - 1, " or a name; nearest is '",
         nearest_name(given, names), "'");
  return number;
}

// The classes that samples should be of: their names or arr_1 say so, or a file with a class on every line.
std::vector<std::int64_t> asked_classes(const std::string& classes, const SourceImages& images,
                                        const std::vector<std::string>& names) {
  std::vector<std::int64_t> asked;
  if (classes == "from-names") {
    for (std::int64_t i = 0; i < images.size(); ++i) {
      const std::optional<std::int64_t> one = images.asked(i);
      if (!one) fail(kEvalImagesCommand, ": ", images.name(i), " does not say its class, expected NUMBER-classN.png");
      if (*one < 0 || *one >= static_cast<std::int64_t>(names.size()))
        fail(kEvalImagesCommand, ": ", images.name(i), " is of class ", *one, ", but the classifier has ",
             names.size());
      asked.push_back(*one);
    }
    return asked;
  }
  const std::vector<std::byte> bytes = read_file(classes, std::uint64_t{1} << 30);
  std::string line;
  for (const std::byte byte : bytes) {
    if (const char letter = static_cast<char>(byte); letter != '\n') {
      if (letter != '\r') line += letter;
    } else if (!line.empty()) {
      asked.push_back(class_number(line, names, classes)), line.clear();
    }
  }
  if (!line.empty()) asked.push_back(class_number(line, names, classes));
  if (static_cast<std::int64_t>(asked.size()) != images.size())
    fail(classes, ": has ", asked.size(), " classes, expected one for each of the ", images.size(), " samples");
  return asked;
}

// What every sample should show: as given, or as its file says. Equal prompts are embedded once.
torch::Tensor prompts_of(const EvalImagesRequest& request, const SourceImages& images, ImageJudge& judge) {
  std::vector<std::string> distinct;
  std::map<std::string, std::int64_t> places;
  std::vector<std::int64_t> rows;
  if (!request.prompts.empty() && static_cast<std::int64_t>(request.prompts.size()) != images.size())
    fail(kEvalImagesCommand, ": ", request.prompts.size(), " prompts are given, expected one for each of the ",
         images.size(), " samples");
  for (std::int64_t i = 0; i < images.size(); ++i) {
    const std::optional<std::string> prompt =
        request.prompts.empty() ? images.prompt(i) : request.prompts[static_cast<std::size_t>(i)];
    if (!prompt) fail(kEvalImagesCommand, ": ", images.name(i), " does not say its prompt, expected --prompts FILE");
    const auto [found, is_new] = places.emplace(*prompt, static_cast<std::int64_t>(distinct.size()));
    if (is_new) distinct.push_back(*prompt);
    rows.push_back(found->second);
  }
  const torch::NoGradGuard no_gradient;
  return judge.embed_prompts(distinct).index_select(0, torch::tensor(rows, torch::kLong));
}

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

// What a metric has to keep of either set, with that of `nearest`.
struct Wanted {
  std::vector<std::string> names;  // without nearest
  MetricNeeds needs;
  bool nearest = false, clip = false;

  explicit Wanted(const EvalImagesRequest& request) : names(request.metrics) {
    nearest = std::erase(names, kNearest) > 0, clip = std::erase(names, kClip) > 0;
    if (names.empty() && !nearest && !clip && request.save_stats.empty() && request.classes.empty()) names = {"fid"};
    needs = needs_of(names);
    if (nearest) needs.samples.rows = needs.reference.rows = needs.any_reference = true;
    if (needs.any_reference && request.reference.empty())
      fail(kEvalImagesCommand, ": --reference is missing, expected for all metrics but is, is-shuffled and clip");
    if (!needs.any_reference && !request.reference.empty())
      fail(kEvalImagesCommand, ": --reference is given, but no metric that compares with it");
    if (nearest && request.held_out.empty())
      fail(kEvalImagesCommand, ": --held-out is missing, expected images that were not trained on, to compare with");
    if (!clip && !request.prompts.empty()) fail(kEvalImagesCommand, ": --prompts without --metrics clip");
    if (!nearest && !request.sheet.empty()) fail(kEvalImagesCommand, ": --sheet without --metrics nearest");
    if (!nearest && !request.held_out.empty()) fail(kEvalImagesCommand, ": --held-out without --metrics nearest");
  }
};

SourceImages& images_of(ImageSource& source, const std::string& path, const char* metric) {
  if (!source.images) fail(kEvalImagesCommand, ": ", path, " has statistics only, expected images for ", metric);
  return *source.images;
}

// Before hours of features: sets that have too few images for a metric.
void expect_enough(const std::vector<std::string>& metrics, const EvalImagesRequest& r, const ImageSource& samples,
                   const ImageSource& other, const MetricOptions& options) {
  if (samples.images) expect_enough_images(metrics, samples.images->size(), r.samples, /*reference=*/false, options);
  if (other.images && !other.stats)
    expect_enough_images(metrics, other.images->size(), r.reference, /*reference=*/true, options);
}

// Pixels are compared at the size of the first sample.
void fit_pixels(ImageSource& samples, ImageSource& other, ImageSource& held_out) {
  const Image first = samples.images->image(0);
  if (first.pixels.size() > static_cast<std::size_t>(kMaxFeatureSize))
    fail(kEvalImagesCommand, ": samples of ", first.height, " x ", first.width, " pixels are ", first.pixels.size(),
         " numbers, expected at most ", kMaxFeatureSize, " for --features pixels: take a classifier or inception");
  for (ImageSource* source : {&samples, &other, &held_out})
    if (source->images) source->images->fit_to({first.height, first.width});
}

}  // namespace

void eval_images(const EvalImagesRequest& request, Observer& observer) {
  const Wanted wanted(request);
  const MetricNeeds& needs = wanted.needs;
  train::TrainOptions options;
  options.device = request.device, options.threads = request.threads;
  // What can be wrong with paths is found before a network is read.
  const std::string network = judge_label(request.features);
  ImageSource source = open_image_source(request.samples, network), other, held_out;
  if (needs.any_reference) other = open_image_source(request.reference, network);
  if (wanted.nearest) held_out = open_image_source(request.held_out, network);
  const MetricOptions metric_options{.neighbours = request.neighbours, .kid_subsets = {}};
  expect_enough(wanted.names, request, source, other, metric_options);
  if (request.features == kPixels && source.images) fit_pixels(source, other, held_out);
  train::prepare(options, observer);
  Extractor extractor(request, open_judge(request, observer), observer);

  std::vector<std::int64_t> asked;
  if (!request.classes.empty()) {
    const std::vector<std::string> names = extractor.judge().class_names();
    if (names.empty()) fail(kEvalImagesCommand, ": --classes with ", network, ", expected --features classifier:RUN");
    asked = asked_classes(request.classes, images_of(source, request.samples, "--classes"), names);
  }
  torch::Tensor prompts;
  if (wanted.clip) prompts = prompts_of(request, images_of(source, request.samples, kClip), extractor.judge());
  FeatureNeeds kept = needs.samples;
  if (!request.save_stats.empty()) kept.stats = true, kept.spatial_stats = extractor.judge().has_spatial();
  ImageFeatures samples = source.images ? extractor.features_of(*source.images, request.samples, kept, asked, prompts)
                                        : std::move(*source.stats);
  if (!request.save_stats.empty()) {
    samples.save(request.save_stats);
    observer.row(JsonValue().set("kind", "stats").set("path", request.save_stats));
  }
  if (!asked.empty())
    tell({"accuracy",
          {static_cast<double>(extractor.agreed()) / static_cast<double>(asked.size()), {}},
          samples.images(),
          0,
          "",
          samples.network()},
         observer);

  if (wanted.clip) tell({kClip, extractor.clip_score(), samples.images(), 0, "", samples.network()}, observer);

  // ADM's files have statistics of a whole set beside some of its images, which serve the metrics of neighbours only.
  const std::optional<ImageFeatures>& stats = other.stats;
  std::optional<ImageFeatures> rows;
  FeatureNeeds of_images = needs.reference;
  if (stats) of_images.stats = of_images.spatial_stats = false;
  if (other.images && (!stats || of_images.rows))
    rows = extractor.features_of(*other.images, request.reference, of_images);
  const auto by_rows = [&](const std::string& name) { return rows && stats && metric_called(name).of_reference.rows; };
  std::map<std::string, MetricResult> results;
  const auto compute = [&](bool of_rows, const ImageFeatures* reference) {
    std::vector<std::string> some;
    std::copy_if(wanted.names.begin(), wanted.names.end(), std::back_inserter(some),
                 [&](const std::string& name) { return by_rows(name) == of_rows; });
    if (some.empty()) return;
    for (MetricResult& result : compute_metrics(some, samples, reference, metric_options))
      results[result.name] = std::move(result);
  };
  compute(true, rows ? &*rows : nullptr);
  compute(false, stats ? &*stats : rows ? &*rows : nullptr);
  for (const std::string& name : wanted.names) tell(results.at(name), observer);
  if (!wanted.nearest) return;
  SourceImages &of_samples = images_of(source, request.samples, kNearest),
               &training = images_of(other, request.reference, kNearest),
               &unseen = images_of(held_out, request.held_out, kNearest);
  const ImageFeatures unseen_rows = extractor.features_of(unseen, request.held_out, kFeatureRows);
  tell_nearest({of_samples, training, samples, *rows, unseen_rows, request.sheet}, observer);
}

}  // namespace mhla::apps
