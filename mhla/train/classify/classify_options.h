// What `mhla train classify` can be told: the model, the data and its augmentation, then everything of TrainOptions.
// Plain values, as there.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "mhla/io/fields.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct ClassifyOptions {
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
    visit("model", o.model,
          "deit_tiny, deit_small, deit_base, vlt_tiny, vlt_small, vit_demo, vit_256 or a config.json");
    visit("attention", o.attention,
          "of the zoo: mhla, softmax, linear, gla, mamba, mamba2, gdn, focused, inline, mala, rala; none: mhla, or "
          "that of a "
          "config.json");
    visit("official", o.official, "compute and train as the published code does");
    visit("network", o.network, "fields of the model that differ from the named one");
    visit("data", o.data,
          "fashion-mnist, mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR or a folder of one of these");
    visit("train_images", o.train_images, "so many of the training set, the same share of every class; 0: all");
    visit("test_images", o.test_images, "so many of the test set; 0: all");
    visit("hold_out", o.hold_out, "share of the images to test on where the data has no test set");
    visit("test_seed", o.test_seed, "of the choice of test images (test_images, hold_out); none: 0, whatever the seed");
    visit("max_damaged", o.max_damaged, "images that cannot be read are left out; more than these end the run");
    visit("label_smoothing", o.label_smoothing, "of the targets");
    visit("augment", o.augment, "recipe: none, small, strong, official, deit, vlt; empty: by the data");
    visit(
        "normalize", o.normalize,
        "by the mean and deviation of fashion-mnist, mnist, cifar10, cifar100, imagenet, or half; empty: by the data");
    visit("flip", o.flip, "chance to swap left and right, in the place of the recipe's");
    visit("shift", o.shift, "pixels a batch is moved by at most, in the place of the recipe's");
    visit("color_jitter", o.color_jitter, "strength, in the place of the recipe's");
    visit("rand_augment", o.rand_augment, "such as rand-m9-mstd0.5-inc1, in the place of the recipe's");
    visit("erase", o.erase, "chance to erase a rectangle, in the place of the recipe's");
    visit("mixup", o.mixup, "alpha, in the place of the recipe's");
    visit("cutmix", o.cutmix, "alpha, in the place of the recipe's");
    visit("repeats", o.repeats, "repeated augmentation: times an image comes in a row, in the place of the recipe's");
    TrainOptions::fields(o.train, visit);
    visit("origin", o.origin, "where the files above were when the run began");
  }
};

}  // namespace mhla::train
