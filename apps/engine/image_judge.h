// Networks that metrics see images through: Inception-v3, a classifier trained here, CLIP, or the pixels themselves.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "apps/engine/requests.h"
#include "mhla/modules/torch.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

inline constexpr std::string_view kPixels = "pixels";  // of --features

struct JudgedBatch {
  torch::Tensor features;  // [n, d]; all f32 on the host
  torch::Tensor spatial;   // [n, e]; undefined: none
  torch::Tensor logits;    // [n, classes]; undefined: none
};

class ImageJudge {
 public:
  virtual ~ImageJudge() = default;
  [[nodiscard]] const std::string& name() const { return name_; }  // judge_label()
  void set_name(std::string name) { name_ = std::move(name); }
  // Numbers of an image of that size, for estimates of memory. Those of logits: 0 if there are none.
  [[nodiscard]] virtual std::int64_t features(const torch::Tensor& image) const = 0;
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  [[nodiscard]] virtual bool has_spatial() const { return false; }
  [[nodiscard]] virtual std::vector<std::string> class_names() const { return {}; }
  virtual JudgedBatch judge(const torch::Tensor& images /* u8 [n, 3, rows, columns] */) = 0;
  // [n, d] in the space of the features of images; an Error for networks that read no text.
  virtual torch::Tensor embed_prompts(const std::vector<std::string>& prompts);

 private:
  std::string name_;
};

// What a result calls the network of --features: "inception-v3, FILE", "classifier RUN", "clip DIR", "pixels". Reads
// nothing; other names than inception:FILE, classifier:RUN, clip:DIR and pixels are refused.
std::string judge_label(const std::string& features);
std::unique_ptr<ImageJudge> open_judge(const EvalImagesRequest& request, train::Observer& observer);

}  // namespace mhla::apps
