// What `mhla train diffusion` can be told: the model, the images and the process, then everything of TrainOptions.
// Plain values, as there.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "mhla/io/fields.h"
#include "mhla/models/names.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct DiffusionOptions {
  static constexpr const char* kTask = "diffusion";  // in train.json, and after `mhla train`
  std::string model = "dit_t32";
  std::optional<std::string> attention;  // none: mhla, or what the file of the model says
  bool official = false;
  std::string variant;
  JsonValue network = JsonValue::object();
  std::string data = "fashion-mnist";
  std::int64_t train_images = 0;
  std::optional<std::int64_t> test_images;  // none: 1000, or all where there are fewer
  double hold_out = 0.1;
  std::int64_t test_seed = 0;
  std::int64_t max_damaged = 100;
  std::string fit;
  std::optional<double> flip;  // none: 0, of latents that have mirrored ones 0.5

  std::string process = "noise";
  std::string noise_schedule = "linear";
  std::int64_t noise_steps = 1000;
  std::optional<bool> learned_variance;  // none: on, with flow off
  std::optional<double> label_dropout;   // none: the model's
  double shift = 1.0;
  double logit_mean = 0.0;
  double logit_std = 1.0;

  std::int64_t eval_times = 4;
  std::optional<std::int64_t> sample_every;  // none: a tenth of the run
  std::int64_t sample_steps = 20;
  std::int64_t sample_columns = 4;
  std::string vae, text_encoder;
  std::string sample_prompts;
  double sample_guidance = 2.0;
  TrainOptions train = defaults();
  JsonValue origin = JsonValue::object();  // of paths(), absolute (origin.h)

  static constexpr std::int64_t kUsualTest = 1000;  // held-out images, where test_images leaves it open
  static std::set<std::string> paths() { return {"data", "init", "sample_prompts", "text_encoder", "vae"}; }

  static TrainOptions defaults() {
    TrainOptions t;
    t.epochs = 40, t.batch = 256, t.lr = 1e-3, t.weight_decay = 0.0, t.beta2 = 0.99;
    t.usual_warmup = 1000, t.ema = 0.9995;
    return t;
  }

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("model", o.model, model_help<DiffusionOptions>());
    visit("attention", o.attention,
          "mhla, softmax, linear, gla, mamba, mamba2, gdn, focused, inline, mala or rala (default: mhla, or as in the "
          "config.json)");
    visit("official", o.official, "compute mhla as the published code does");
    visit("variant", o.variant,
          "none, cpe (LePE 3x3), gate or both, as in the paper's ablation (default: as the model has it)");
    visit("network", o.network, "fields of the model that differ from the named one");
    visit("data", o.data,
          "fashion-mnist, mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR (class folders), a folder of one of these, "
          "or of latents of `mhla data encode`, which SANA takes with captions");
    visit("train_images", o.train_images, "use only this many training images, the same share of every class; 0: all");
    visit("test_images", o.test_images, "held-out images to evaluate on; 0: all (default: up to 1000)");
    visit("hold_out", o.hold_out, "share of the images to evaluate on if the data has no test set");
    visit("test_seed", o.test_seed, "seed that chooses the held-out images and their noise, whatever the seed");
    visit("max_damaged", o.max_damaged, "skip up to this many images that cannot be read; more end the run");
    visit("fit", o.fit,
          "images to the model's size: pad, resize, or center_crop: scaled to cover it, then cut (default: pad images "
          "that are no larger, center_crop folders)");
    visit("flip", o.flip,
          "probability of a horizontal flip (default: 0; 0.5 for latents that were encoded with flips)");
    visit("process", o.process, "noise: predict the noise (DDPM); flow: predict the velocity (flow matching)");
    visit("noise_schedule", o.noise_schedule, "for noise: linear or squaredcos_cap_v2");
    visit("noise_steps", o.noise_steps, "steps between an image and noise");
    visit("learned_variance", o.learned_variance, "for noise: learn the variance of a step too (default: on)");
    visit("label_dropout", o.label_dropout,
          "share of labels replaced by the null class, or of captions by the empty one, which guidance needs (default: "
          "the model's, 0.1)");
    visit("shift", o.shift, "for flow: shift of the times towards noise; larger images take 3 to 6");
    visit("logit_mean", o.logit_mean, "for flow: mean of the logit-normal law of the times");
    visit("logit_std", o.logit_std, "for flow: deviation of the logit-normal law of the times");
    visit("eval_times", o.eval_times, "times at which every held-out image is evaluated");
    visit("sample_every", o.sample_every,
          "steps between two sheets of samples in samples/; 0: none (default: a tenth of the run)");
    visit("sample_steps", o.sample_steps, "steps of the sampler for the sheets: DDIM, or Euler for flow");
    visit("sample_columns", o.sample_columns, "samples of each class or prompt on a sheet; up to 10 of them are shown");
    visit("sample_prompts", o.sample_prompts,
          "file of prompts for the sheets, one a line (default: captions of held-out images)");
    visit("text_encoder", o.text_encoder,
          "for sample_prompts: folder of the text encoder (default: the one that captions were encoded with)");
    visit("sample_guidance", o.sample_guidance, "strength of the guidance for the sheets; 1: none");
    visit("vae", o.vae,
          "for latents: folder of the autoencoder that decodes samples (default: the one they were encoded with)");
    TrainOptions::fields(o.train, visit);
    visit("origin", o.origin, "where the files above were when the run began");
  }
};

}  // namespace mhla::train
