// What `mhla train classify` can be told: the model, the data and its augmentation, then everything of TrainOptions.
// Plain values, as there.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "mhla/io/fields.h"
#include "mhla/models/names.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct ClassifyOptions {
  static constexpr const char* kTask = "classify";  // in train.json, and after `mhla train`
  std::string model = "deit_tiny";
  std::optional<std::string> attention;  // none: mhla, or what the file of the model says
  bool official = false;
  JsonValue network = JsonValue::object();
  std::string data = "fashion-mnist";
  std::int64_t train_images = 0;
  std::int64_t test_images = 0;
  double hold_out = 0.1;
  std::optional<std::int64_t> test_seed;  // none: 0, and of a run made before there was one its seed
  std::int64_t max_damaged = 100;
  double label_smoothing = 0.1;

  std::string augment, normalize;  // empty: by the data, as resolved()
  std::optional<double> flip, color_jitter, erase, mixup, cutmix;
  std::optional<std::int64_t> shift, repeats;
  std::optional<std::string> rand_augment;
  TrainOptions train;
  JsonValue origin = JsonValue::object();  // of paths(), absolute (origin.h)

  static std::set<std::string> paths() { return {"data", "init"}; }

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("model", o.model, model_help<ClassifyOptions>());
    visit("attention", o.attention,
          "mhla, softmax, linear, gla, mamba, mamba2, gdn, focused, inline, mala or rala (default: mhla, or as in the "
          "config.json)");
    visit("official", o.official, "compute and train as the published code does");
    visit("network", o.network, "fields of the model that differ from the named one");
    visit(
        "data", o.data,
        "fashion-mnist, mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR (class folders), or a folder of one of these");
    visit("train_images", o.train_images, "use only this many training images, the same share of every class; 0: all");
    visit("test_images", o.test_images, "use only this many test images; 0: all");
    visit("hold_out", o.hold_out, "share of the images to test on if the data has no test set");
    visit("test_seed", o.test_seed,
          "seed that chooses the test images of test_images and hold_out (default: 0, whatever the seed)");
    visit("max_damaged", o.max_damaged, "skip up to this many images that cannot be read; more end the run");
    visit("label_smoothing", o.label_smoothing, "label smoothing of the targets");
    visit("augment", o.augment, "recipe: none, small, strong, official, deit or vlt (default: by the data)");
    visit("normalize", o.normalize,
          "by the mean and deviation of fashion-mnist, mnist, cifar10, cifar100, imagenet, or half (default: by the "
          "data)");
    visit("flip", o.flip, "probability of a horizontal flip (default: the recipe's, as for all that follow)");
    visit("shift", o.shift, "largest shift of a batch, in pixels");
    visit("color_jitter", o.color_jitter, "strength of colour jitter");
    visit("rand_augment", o.rand_augment, "RandAugment, such as rand-m9-mstd0.5-inc1");
    visit("erase", o.erase, "probability of random erasing");
    visit("mixup", o.mixup, "alpha of mixup");
    visit("cutmix", o.cutmix, "alpha of cutmix");
    visit("repeats", o.repeats, "repeated augmentation: how often an image comes in a row");
    TrainOptions::fields(o.train, visit);
    visit("origin", o.origin, "where the files above were when the run began");
  }
};

}  // namespace mhla::train
