// How an image becomes the network's input outside training. Evaluation, prediction and export do the same because they
// read it from the same place: preprocess.json, which train and convert write beside config.json. The size and the
// channels are in config.json, so a model that is carried over to another image size keeps its file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mhla/data/augment.h"
#include "mhla/io/fields.h"

namespace mhla {

inline constexpr const char* kPreprocessFile = "preprocess.json";

struct Preprocess {
  std::string fit = "resize";
  std::string interpolation = "bicubic";
  double crop_fraction = 0.875;
  std::vector<double> mean{0.5}, std{0.5};  // of x / 255, one per channel or one for all

  template <class Self, class Visit>
  static void fields(Self& p, Visit&& visit) {
    visit("fit", p.fit, "pad: zeros around an image, larger ones are resized; resize: both sides; center_crop");
    visit("interpolation", p.interpolation, "bilinear or bicubic");
    visit("crop_fraction", p.crop_fraction, "center_crop: share of the scaled image that is kept");
    visit("mean", p.mean, "of x / 255, one per channel or one for all");
    visit("std", p.std, "standard deviation, as mean");
  }
  bool operator==(const Preprocess&) const = default;
};

// What `augment` does in evaluation, and back, for networks of this input.
Preprocess preprocess_of(const Augment& augment);
Augment augment_of(const Preprocess& preprocess, int height, int width, int channels);

// For models made before there was a file: by the options of their training. `kind` is that of the data (image_kind()),
// empty where nothing is known of it; `normalize` may be empty, too.
Preprocess preprocess_of(const std::string& recipe, const std::string& normalize, const std::string& kind,
                         int channels);

// From the file or nothing where it is not there. Errors name the file.
std::optional<Preprocess> read_preprocess(const std::filesystem::path& folder);
Preprocess parse_preprocess(const JsonValue& json, const std::string& label);
std::string preprocess_text(const JsonValue& json);  // as the file has it

// The same for language models, of the options of a training: packing and context, and what associative recall is made
// of. These are options of LmOptions by name.
JsonValue text_preprocess(const JsonValue& options);

}  // namespace mhla
