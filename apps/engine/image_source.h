// Sets of images for `mhla eval images`, by path: a folder, the folder of `mhla sample`, an .npz, or a named data set.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mhla/diffusion/metrics/image_features.h"
#include "mhla/io/codecs/image.h"
#include "mhla/modules/torch.h"

namespace mhla::apps {

inline constexpr const char* kEvalImagesCommand = "eval images";

// Rows and columns.
using ImageSize = std::array<int, 2>;

// RGB images, some at a time; those of a batch have one size.
class SourceImages {
 public:
  virtual ~SourceImages() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::string name(std::int64_t at) const = 0;
  virtual Image image(std::int64_t at) = 0;  // [height, width, 3]
  // The class that was asked for, where names or the file say so.
  [[nodiscard]] virtual std::optional<std::int64_t> asked(std::int64_t at) const = 0;

  // Of every image; zeros: they may differ.
  [[nodiscard]] virtual ImageSize own_size() const { return {0, 0}; }
  // The prompt that it was made for, where its PNG says so.
  [[nodiscard]] virtual std::optional<std::string> prompt(std::int64_t) const { return std::nullopt; }

  // Batches have images of this size: others are scaled to cover it and cut in the middle, and those of a set whose
  // images are no larger get a black border, as `mhla train diffusion` brings them to its size.
  void fit_to(ImageSize size) { size_ = size; }

  // u8 [n, 3, rows, columns] from image `first` on, n from 1 to `most`.
  torch::Tensor batch(std::int64_t first, std::int64_t most);

 private:
  std::optional<ImageSize> size_;
  torch::Tensor next_;
  std::int64_t next_at_ = -1;
};

// A set by its path: images, statistics, or an .npz with both.
struct ImageSource {
  std::unique_ptr<SourceImages> images;  // null: none there
  std::optional<ImageFeatures> stats;    // none: not there
};

// A folder (of `mhla sample`: its images/), an .npz, a .safetensors of --save-stats, or a set as `mhla train classify`
// takes it, its training images or, with @test at the end, its test images. `network`: what statistics must be of.
ImageSource open_image_source(const std::string& path, const std::string& network);

}  // namespace mhla::apps
