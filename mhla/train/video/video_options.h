// What `mhla train video` can be told: the model, the clips and the process, then everything of TrainOptions. Plain
// values, as there.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "mhla/io/fields.h"
#include "mhla/models/names.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct VideoOptions {
  static constexpr const char* kTask = "video";  // in train.json, and after `mhla train`
  std::string model = "wan_s64";
  std::optional<std::string> attention;  // none: mhla, or what the file of the model says
  std::string layers = "all";
  bool official = false;
  JsonValue network = JsonValue::object();
  std::string data = "moving-garments";
  std::int64_t frames = 16;
  std::string size = "64x64";
  double fps = 0;
  std::int64_t unshuffle = 2;
  std::int64_t train_clips = 0;
  std::optional<std::int64_t> test_clips;  // none: 256, or all where there are fewer
  double hold_out = 0.1;
  std::int64_t test_seed = 0;
  std::int64_t max_damaged = 100;

  double caption_dropout = 0.1;
  double shift = 3.0;
  double logit_mean = 0.0;
  double logit_std = 1.0;
  std::string teacher;
  std::string teacher_weights = "model";
  double teacher_share = 0.5;
  bool recompute = false;

  std::int64_t eval_times = 5;
  std::optional<std::int64_t> sample_every;  // none: a tenth of the run
  std::int64_t sample_steps = 25;
  std::int64_t sample_clips = 6;
  double sample_guidance = 3.0;
  TrainOptions train = defaults();
  JsonValue origin = JsonValue::object();  // of paths(), absolute (origin.h)

  static constexpr std::int64_t kUsualTest = 256;  // held-out clips, where test_clips leaves it open
  static std::set<std::string> paths() { return {"data", "init", "teacher"}; }

  static TrainOptions defaults() {
    TrainOptions t;
    t.epochs = 1, t.batch = 32, t.lr = 6e-4, t.weight_decay = 0.0, t.beta2 = 0.99;
    t.usual_warmup = 50, t.ema = 0.0;
    return t;
  }

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("model", o.model, model_help<VideoOptions>());
    visit("attention", o.attention, "mhla, softmax or linear (default: mhla, or as in the config.json)");
    visit(
        "layers", o.layers,
        "mhla, linear: layers that have it, the others keep softmax: all, every-3rd-kept (0, 3, 6, ... keep softmax), "
        "or numbers joined by commas");
    visit("official", o.official, "the published initial mixing matrix, which is not clipped");
    visit("network", o.network, "fields of the model that differ from the named one");
    visit("data", o.data,
          "moving-garments (made of Fashion-MNIST), folder:DIR (videos with captions), or a folder of latents of `mhla "
          "data encode`");
    visit("frames", o.frames, "clips: frames of one");
    visit("size", o.size, "clips: rows x columns of a frame, which is scaled to cover it and cut");
    visit("fps", o.fps, "clips: frames a second; 0: every frame of a file");
    visit("unshuffle", o.unshuffle, "clips: squares of so many pixels of a side become channels, instead of a VAE");
    visit("train_clips", o.train_clips, "use only this many training clips; 0: all");
    visit("test_clips", o.test_clips, "held-out clips to evaluate on; 0: all (default: up to 256)");
    visit("hold_out", o.hold_out, "share of the clips to evaluate on if the data has no test set");
    visit("test_seed", o.test_seed, "seed that chooses the held-out clips and their noise, whatever the seed");
    visit("max_damaged", o.max_damaged, "skip up to this many clips that cannot be read; more end the run");
    visit("caption_dropout", o.caption_dropout, "share of captions replaced by the empty one, which guidance needs");
    visit("shift", o.shift, "shift of the times towards noise, in training and in sampling");
    visit("logit_mean", o.logit_mean, "mean of the logit-normal law of the times");
    visit("logit_std", o.logit_std, "deviation of the logit-normal law of the times");
    visit("teacher", o.teacher, "run whose model is imitated, on the same noise, times and captions");
    visit("teacher_weights", o.teacher_weights, "weights of the teacher: model, ema or best");
    visit("teacher_share", o.teacher_share, "share of the loss that is the distance from the teacher's velocity");
    visit("recompute", o.recompute, "recompute blocks in the backward pass to save memory");
    visit("eval_times", o.eval_times, "times at which every held-out clip is evaluated; 5: 0.1, 0.3, 0.5, 0.7, 0.9");
    visit("sample_every", o.sample_every,
          "steps between two sheets of samples in samples/; 0: none (default: a tenth of the run)");
    visit("sample_steps", o.sample_steps, "Euler steps for the sheets");
    visit("sample_clips", o.sample_clips, "clips on a sheet, one a row, of captions of held-out clips");
    visit("sample_guidance", o.sample_guidance, "strength of the guidance for the sheets; 1: none");
    TrainOptions::fields(o.train, visit);
    visit("origin", o.origin, "where the files above were when the run began");
  }
};

}  // namespace mhla::train
