// What metrics need to know about a set of images: filled batch by batch from any network, saved, read again. A command
// makes one for the samples and one for the reference, adds the features of every batch, and asks compute_metrics().
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mhla/diffusion/metrics/feature_stats.h"
#include "mhla/diffusion/metrics/metric_table.h"

namespace mhla {

struct FeatureBatch {
  ConstView features;         // [n, d]
  ConstView maybe_spatial{};  // [n, e]: a map flattened per image
  ConstView maybe_logits{};   // [n, classes]
};

// Rows of f32 that grow.
class FeatureTable {
 public:
  void add(const ConstView& rows, const char* entry, const std::string& name);  // refuses NaN and other widths
  [[nodiscard]] std::int64_t images() const {
    return columns_ == 0 ? 0 : static_cast<std::int64_t>(values_.size()) / columns_;
  }
  [[nodiscard]] ConstView view() const { return {values_.data(), DType::kF32, {images(), columns_}}; }
  void reserve(std::int64_t images, std::int64_t columns) {
    values_.reserve(static_cast<std::size_t>(images * columns));
  }

 private:
  std::int64_t columns_ = 0;
  std::vector<float> values_;
};

class ImageFeatures {
 public:
  // `label` names the images ("samples", a path), `network` what the features are of ("inception-v3 pool, FILE").
  ImageFeatures(std::string label, std::string network, FeatureNeeds needs);

  void add(const FeatureBatch& batch);

  [[nodiscard]] const std::string& label() const { return label_; }
  [[nodiscard]] const std::string& network() const { return network_; }
  [[nodiscard]] std::int64_t images() const { return images_; }  // 0: a file did not say
  // An Error that names `metric` and what is missing where the set does not have it.
  [[nodiscard]] const FeatureStats& stats(const char* metric) const;
  [[nodiscard]] const FeatureStats& spatial_stats(const char* metric) const;
  [[nodiscard]] ConstView rows(const char* metric) const;
  [[nodiscard]] ConstView logits(const char* metric) const;

  // A safetensors file with mu and sigma (or its factor while N <= d), the same of spatial features with _s, the rows
  // if they were kept, and N, label and network as metadata.
  void save(const std::filesystem::path& path) const;
  // Such a file, or an .npz of mu, sigma and, for sFID, mu_s, sigma_s: ADM's reference files and pytorch-fid's. An .npz
  // states neither N nor network: `network` is believed.
  static ImageFeatures read(const std::filesystem::path& path, const std::string& network);

 private:
  [[noreturn]] void lack(const char* metric, const char* what) const;

  std::string label_, network_;
  FeatureNeeds needs_;
  std::int64_t images_ = 0;
  std::optional<FeatureStats> stats_, spatial_;
  FeatureTable rows_, logits_;
};

}  // namespace mhla
