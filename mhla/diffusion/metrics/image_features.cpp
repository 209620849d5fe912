#include "mhla/diffusion/metrics/image_features.h"

#include <charconv>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/diffusion/metrics/features.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/safetensors.h"

namespace mhla {
namespace {

constexpr const char* kImageFeatures = "ImageFeatures";
constexpr const char* kFormat = "mhla image features 1";

std::vector<double> numbers_of(const ConstView& view, const char* name) {
  if (view.rank != 1 || !is_float(view.dtype))
    fail(name, " is ", name_of(view.dtype), " ", shape_text(view), ", expected floats of one axis");
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.shape[0]; ++i)
    values.push_back(load_f64(view.data, view.dtype, i * view.stride[0]));
  return values;
}

Matrix matrix_of(const ConstView& view, const char* name) {
  if (view.rank != 2 || !is_float(view.dtype) || view.shape[0] > kMaxFeatureSize || view.shape[1] > kMaxFeatureSize)
    fail(name, " is ", name_of(view.dtype), " ", shape_text(view), ", expected floats of two axes up to ",
         kMaxFeatureSize);
  return Matrix(view);
}

// What a set of statistics is called in a file: "mu" and "sigma", "mu_s" and "sigma_s".
struct StatsNames {
  std::string mean, covariance, factor;
  explicit StatsNames(const std::string& ending)
      : mean("mu" + ending), covariance("sigma" + ending), factor("factor" + ending) {}
};

// The values of a FeatureStats while a file is written.
struct StatsTensors {
  std::vector<double> mean;
  Matrix matrix;
};

void put(const FeatureStats& stats, const StatsNames& names, StatsTensors& kept, std::vector<NamedView>& tensors) {
  const bool whole = stats.has_covariance() || stats.images() > stats.dim();
  kept.mean = stats.mean();
  kept.matrix = whole ? stats.covariance() : stats.factor();
  tensors.push_back({names.mean, ConstView(kept.mean.data(), DType::kF64, {stats.dim()})});
  tensors.push_back({whole ? names.covariance : names.factor,
                     ConstView(kept.matrix.values.data(), DType::kF64, {kept.matrix.rows, kept.matrix.columns})});
}

std::optional<FeatureStats> stats_in(const Safetensors& file, const StatsNames& names, std::int64_t images) {
  if (!file.contains(names.mean)) return std::nullopt;
  std::vector<double> mean = numbers_of(file.view(names.mean), names.mean.c_str());
  if (file.contains(names.factor))
    return FeatureStats::from_factor(std::move(mean), matrix_of(file.view(names.factor), names.factor.c_str()), images);
  return FeatureStats::from_moments(std::move(mean), matrix_of(file.view(names.covariance), names.covariance.c_str()),
                                    images);
}

std::optional<FeatureStats> stats_in(const Npz& file, const StatsNames& names) {
  if (!file.contains(names.mean)) return std::nullopt;
  const NpyArray mean = file.array(names.mean), covariance = file.array(names.covariance);
  return FeatureStats::from_moments(numbers_of(mean.view, names.mean.c_str()),
                                    matrix_of(covariance.view, names.covariance.c_str()), 0);
}

const std::string& field(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) fail("has no '", key, "' in its metadata, expected a file of image features");
  return found->second;
}

std::int64_t images_in(const Metadata& metadata) {
  const std::string& text = field(metadata, "images");
  std::int64_t images = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), images);
  if (error != std::errc() || end != text.data() + text.size() || images < 0)
    fail("images is '", text, "', expected a number of images");
  return images;
}

}  // namespace

void FeatureTable::add(const ConstView& rows, const char* entry, const std::string& name) {
  check_features(rows, entry, name);
  if (columns_ == 0) columns_ = rows.shape[1];
  if (rows.shape[1] != columns_) fail(entry, ": ", name, " has ", rows.shape[1], " columns, expected ", columns_);
  std::vector<double> row(static_cast<std::size_t>(columns_));
  for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
    widen_rows(rows, i, 1, row.data(), entry, name);
    for (const double value : row) values_.push_back(static_cast<float>(value));
  }
}

ImageFeatures::ImageFeatures(std::string label, std::string network, FeatureNeeds needs)
    : label_(std::move(label)), network_(std::move(network)), needs_(needs) {}

void ImageFeatures::add(const FeatureBatch& batch) {
  check_features(batch.features, kImageFeatures, label_);
  const std::int64_t count = batch.features.shape[0];
  const auto expect_rows = [&](const ConstView& part, bool needed, const char* what) {
    if (!needed) return;
    if (!part.given()) fail(kImageFeatures, ": ", label_, " has no ", what, ", which the metrics need");
    if (part.rank < 1 || part.shape[0] != count)
      fail(kImageFeatures, ": ", label_, " has ", what, " of shape ", shape_text(part), ", expected ", count, " rows");
  };
  expect_rows(batch.maybe_spatial, needs_.spatial_stats, "spatial features");
  expect_rows(batch.maybe_logits, needs_.logits, "logits");
  if (needs_.stats) {
    if (!stats_) stats_.emplace(batch.features.shape[1]);
    stats_->add(batch.features, label_);
  }
  if (needs_.spatial_stats) {
    check_features(batch.maybe_spatial, kImageFeatures, label_);
    if (!spatial_) spatial_.emplace(batch.maybe_spatial.shape[1]);
    spatial_->add(batch.maybe_spatial, label_);
  }
  if (needs_.rows) rows_.add(batch.features, kImageFeatures, label_);
  if (needs_.logits) logits_.add(batch.maybe_logits, kImageFeatures, label_);
  images_ += count;
}

void ImageFeatures::lack(const char* metric, const char* what) const {
  fail(metric, ": ", label_, " has no ", what, images_ == 0 ? ", or no images" : "");
}

const FeatureStats& ImageFeatures::stats(const char* metric) const {
  if (!stats_) lack(metric, "mean and covariance of features");
  return *stats_;
}

const FeatureStats& ImageFeatures::spatial_stats(const char* metric) const {
  if (!spatial_) lack(metric, "mean and covariance of spatial features (mu_s, sigma_s)");
  return *spatial_;
}

ConstView ImageFeatures::rows(const char* metric) const {
  if (rows_.images() == 0) lack(metric, "features of single images, only their statistics");
  return rows_.view();
}

ConstView ImageFeatures::logits(const char* metric) const {
  if (logits_.images() == 0) lack(metric, "logits of a classifier");
  return logits_.view();
}

void ImageFeatures::save(const std::filesystem::path& path) const {
  if (!stats_ && !spatial_ && rows_.images() == 0)
    fail(kImageFeatures, ": ", label_, " has nothing to save: no statistics and no features");
  std::vector<NamedView> tensors;
  StatsTensors pool, spatial;
  if (stats_) put(*stats_, StatsNames(""), pool, tensors);
  if (spatial_) put(*spatial_, StatsNames("_s"), spatial, tensors);
  if (rows_.images() > 0) tensors.push_back({"features", rows_.view()});
  write_safetensors(
      path, tensors,
      {{"format", kFormat}, {"images", std::to_string(images_)}, {"label", label_}, {"network", network_}});
}

ImageFeatures ImageFeatures::read(const std::filesystem::path& path, const std::string& network) {
  return labelled(path.string(), [&] {
    if (path.extension() == ".npz") {
      const Npz file = Npz::read(path);
      ImageFeatures set(path.string(), network, {});
      set.stats_ = stats_in(file, StatsNames(""));
      set.spatial_ = stats_in(file, StatsNames("_s"));
      if (!set.stats_ && !set.spatial_) fail("has no array 'mu', expected mu and sigma");
      return set;
    }
    const Safetensors file = Safetensors::read(path);
    const Metadata& metadata = file.metadata();
    if (field(metadata, "format") != kFormat)
      fail("format is '", field(metadata, "format"), "', expected '", kFormat, "'");
    ImageFeatures set(field(metadata, "label"), field(metadata, "network"), {});
    set.images_ = images_in(metadata);
    set.stats_ = stats_in(file, StatsNames(""), set.images_);
    set.spatial_ = stats_in(file, StatsNames("_s"), set.images_);
    if (file.contains("features")) {
      set.rows_.add(file.view("features"), kImageFeatures, "features");
      if (set.rows_.images() != set.images_)
        fail("has features of ", set.rows_.images(), " images, expected ", set.images_);
    }
    return set;
  });
}

}  // namespace mhla
