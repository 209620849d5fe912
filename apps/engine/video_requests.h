// What the program asks the engine for about video models (requests.h has the others).
#pragma once

#include "apps/engine/requests.h"

namespace mhla::apps {

// `mhla eval video`: the held-out loss of a video model, and how its samples follow their captions.
struct EvalVideoRequest {
  train::OpenOptions open;
  std::string data, against, judge;
  bool each = false;
  std::int64_t samples = 256, steps = 25, judge_steps = 600, seed = 0;
  double guidance = 3.0;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train video`");
    visit("data", r.data, "other clips or latents of the same kind (default: the run's held-out clips)");
    visit("against", r.against, "another run on the same data: the difference, with its paired standard error");
    visit("each", r.each, "with --json: also the loss of every clip, to pair runs later");
    visit("judge", r.judge,
          "moving-garments: folder of the judge, a small network that reads class, colour, direction, speed and ground "
          "off a clip; trained there if the folder has none. Samples are then made and judged");
    visit("judge_steps", r.judge_steps, "judge: steps of its training");
    visit("samples", r.samples, "judge: clips to sample, one for each of the first held-out captions");
    visit("steps", r.steps, "judge: Euler steps of a sample");
    visit("guidance", r.guidance, "judge: strength of classifier-free guidance; 1: none");
    visit("seed", r.seed, "judge: seed of the samples' noise");
    visit("batch", r.open.batch, "clips at a time (default: as in training)");
    train::OpenOptions::fields(r.open, visit);
  }
};

// One row of `mhla bench model` of a video model.
struct BenchVideoRequest {
  BenchModelRequest bench;
  std::int64_t frames = 81, rows = 480, columns = 800;  // of the video

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    BenchModelRequest::fields(r.bench, visit);
    visit("frames", r.frames, "frames of a video");
    visit("rows", r.rows, "pixels of its height");
    visit("columns", r.columns, "pixels of its width");
  }
};

}  // namespace mhla::apps
