// The network of the options, and what options may not be.
#include "mhla/core/error.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"
#include "mhla/train/video/video_task.h"

namespace mhla::train {
namespace {

void expect_video_range(const char* field, double value, double least, double most) {
  if (!(value >= least && value <= most)) fail("train: ", field, " is ", value, ", expected ", least, " to ", most);
}

}  // namespace

void check(const VideoOptions& o) {
  check(o.train);
  expect_video_range("test_seed", static_cast<double>(o.test_seed), 0, 9e18);
  expect_video_range("max_damaged", static_cast<double>(o.max_damaged), 0, INT32_MAX);
  expect_video_range("eval_times", static_cast<double>(o.eval_times), 1, 1000);
  expect_video_range("sample_steps", static_cast<double>(o.sample_steps), 1, 1000);
  expect_video_range("sample_clips", static_cast<double>(o.sample_clips), 1, 100);
  expect_video_range("sample_guidance", o.sample_guidance, 0, 1000);
  expect_video_range("caption_dropout", o.caption_dropout, 0, 1);
  expect_video_range("teacher_share", o.teacher_share, 0, 1);
  expect_video_range("unshuffle", static_cast<double>(o.unshuffle), 1, 16);
  if (o.sample_every) expect_video_range("sample_every", static_cast<double>(*o.sample_every), 0, 9e18);
  if (o.test_clips) expect_video_range("test_clips", static_cast<double>(*o.test_clips), 0, 9e18);
  if (o.teacher_weights != "model" && o.teacher_weights != "ema" && o.teacher_weights != "best")
    fail("train: teacher_weights is '", o.teacher_weights, "', expected model, ema or best");
  FlowOptions flow;
  flow.shift = o.shift, flow.logit_mean = o.logit_mean, flow.logit_std = o.logit_std;
  check(flow);
}

WanConfig named_network(const VideoOptions& o) {
  WanConfig c;
  if (is_model_file(o.model)) {
    JsonValue file = read_json(o.model);
    if (!file.is_object()) fail(o.model, ": is no object, expected the fields of a model");
    c = parse_wan_config(file, o.model);
    if (o.attention && *o.attention != c.attention) c.attention = *o.attention, c.layers.clear();
  } else {
    c = wan_config(o.model, o.attention.value_or("mhla"));
  }
  if (o.official) c.official = true;
  if (c.attention == "softmax" && o.layers != "all")
    fail("train: layers is ", o.layers, " with softmax attention, which all layers have, expected all");
  fields_from_json(c, o.network, "network");
  if (o.layers != "all") c.layers = wan_layers(o.layers, c.depth, "train: layers");
  check(c);
  return c;
}

WanConfig network_of(const VideoOptions& o, const VideoSource& source) {
  WanConfig c = named_network(o);
  const std::vector<std::int64_t> shape = source.shape();
  const bool given = is_model_file(o.model);
  if (!given && !source.is_latent()) {
    if (!o.network.contains("channels")) c.channels = shape[0];
    if (!o.network.contains("out_channels")) c.out_channels = shape[0];
    if (!o.network.contains("vocab")) c.vocab = source.words->rows();
  }
  if (!given && source.is_latent()) {
    if (!o.network.contains("vocab")) c.vocab = 0;
    if (!o.network.contains("text_dim")) c.text_dim = source.empty_caption.size(2);
    if (!o.network.contains("channels")) c.channels = shape[0];
    if (!o.network.contains("out_channels")) c.out_channels = shape[0];
  }
  const std::string name = source.test->name();
  if (c.channels != shape[0] || c.out_channels != shape[0])
    fail("network: channels are ", c.channels, " and ", c.out_channels, ", expected the ", shape[0], " of ", name);
  if (source.is_latent() ? c.vocab != 0 : c.vocab != source.words->rows())
    fail("network: vocab is ", c.vocab, ", expected ", source.is_latent() ? 0 : source.words->rows(), " for ", name);
  if (source.is_latent() &&
      (c.text_dim != source.empty_caption.size(2) || c.text_tokens < source.empty_caption.size(1)))
    fail("network: captions of up to ", c.text_tokens, " tokens and ", c.text_dim, " channels, expected the ",
         source.empty_caption.size(1), " and ", source.empty_caption.size(2), " of ", name);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t size = shape[axis + 1], side = c.patch[axis];
    if (size % side != 0)
      fail("network: clips of ", name, " are ", shape[1], " frames of ", shape[2], "x", shape[3],
           " places, expected multiples of the patch ", c.patch[0], ", ", c.patch[1], ", ", c.patch[2]);
    if (c.attention == "mhla" && c.blocks[axis] > size / side)
      fail("network: blocks are ", c.blocks[0], ", ", c.blocks[1], ", ", c.blocks[2], ", expected at most ",
           shape[1] / c.patch[0], ", ", shape[2] / c.patch[1], ", ", shape[3] / c.patch[2], ", the tokens of a clip");
  }
  check(c);
  return c;
}

GenerationConfig generation_of(const VideoOptions& o, const VideoSource& source) {
  GenerationConfig g;
  g.process = "flow", g.learned_variance = false, g.shift = o.shift;
  if (source.is_latent()) {
    g.space = "latents", g.autoencoder = source.autoencoder;
    if (source.pixels.size() == 3) g.sample = source.pixels;
  } else {
    const std::vector<std::int64_t> shape = source.shape();
    g.unshuffle = o.unshuffle, g.sample = {shape[1], shape[2] * o.unshuffle, shape[3] * o.unshuffle};
  }
  check(g);
  return g;
}

void expect_fits(const VideoOptions& o, const WanConfig& c, const VideoSource& source) {
  const std::vector<std::int64_t> shape = source.shape();
  const double clip = static_cast<double>(shape[0] * shape[1]) * static_cast<double>(shape[2] * shape[3]);
  expect_training_fits("train video", size_of(c, {shape[1], shape[2], shape[3]}, o.recompute), o.train,
                       2 * static_cast<double>(o.train.batch) * clip);
}

SharedKind shared_kind(const WanConfig& c, const VideoSource& source) {
  if (c.attention != "mhla")
    fail("train: attention is ", c.attention, " with context_parallel, expected mhla in all layers");
  if (c.official) fail("train: official is on with context_parallel, expected off");
  const std::vector<std::int64_t> shape = source.shape();  // channels, frames, rows, columns
  const VideoGrid grid{shape[1] / c.patch[0], shape[2] / c.patch[1], shape[3] / c.patch[2]};
  SharedKind kind;
  kind.shape.H = kind.shape.Hkv = c.heads, kind.shape.D = kind.shape.E = c.dim / c.heads;
  kind.whole.layout = wan_layout(c, grid), kind.whole.tokens = grid[0] * grid[1] * grid[2];
  kind.whole.normalizer = parse_normalizer(c.normalizer), kind.shape.den = c.normalizer != "none";
  kind.halo = c.lepe / 2 * grid[1] * grid[2], kind.halo_of = "lepe";
  return kind;
}

VideoOptions resolved(const VideoOptions& options, const WanConfig& network, const VideoSource& source) {
  VideoOptions o = options;
  o.attention = network.attention, o.official = network.official;
  if (is_model_file(o.model) || network.model.empty()) {  // all of it, so that the options are enough without the file
    o.model = network.model.empty() ? "wan_1_3b" : network.model;
    o.network = network_fields(network, {"model", "attention", "official", "family"});
    o.layers = "all";  // they are among the fields
  }
  if (!o.test_clips) o.test_clips = source.test->size();
  if (!o.train.mix_weight_decay) o.train.mix_weight_decay = o.official ? o.train.weight_decay : 0.0;
  if (!o.train.clip_mix_apart) o.train.clip_mix_apart = !o.official;
  return o;
}

}  // namespace mhla::train
