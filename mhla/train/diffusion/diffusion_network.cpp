// The network of the options, and what options may not be.
#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"
#include "mhla/data/loader.h"
#include "mhla/data/preprocess.h"
#include "mhla/io/json_object.h"
#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"

namespace mhla::train {
namespace {

void expect_between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) fail("train: ", field, " is ", value, ", expected ", least, " to ", most);
}

DitConfig named_network(const DiffusionOptions& o, JsonValue& file) {
  if (!is_model_file(o.model)) {
    std::vector<std::string> names = dit_names();
    if (std::find(names.begin(), names.end(), o.model) == names.end()) {
      for (const std::string& name : sana_names()) names.push_back(name);
      std::string all;
      for (const std::string& name : names) all += str(all.empty() ? "" : ", ", name);
      fail("train: model is '", o.model, "', expected a .json file or one of ", all);
    }
    return dit_config(o.model, o.attention.value_or("mhla"), o.official);
  }
  file = read_json(o.model);
  if (!file.is_object()) fail(o.model, ": is no object, expected the fields of a model");
  if (o.attention) file.set("attention", *o.attention);
  if (o.official) file.set("official", true);
  return parse_dit_config(file, o.model);
}

constexpr double kCaptionDropout = 0.1;  // SANA's

std::array<std::int64_t, 2> image_of(const DiffusionSource& source) {
  const std::vector<std::int64_t>& shape = source.latents->test_set->config().shape;
  return {shape[1], shape[2]};
}

// ---- SANA

bool names_sana(const DiffusionOptions& o) {
  if (is_model_file(o.model)) return is_sana_config(read_json_object(o.model));
  const std::vector<std::string> names = sana_names();
  return std::find(names.begin(), names.end(), o.model) != names.end();
}

// MHLA from the weights of linear attention: uniform mixing is the same function up to eps.
void turn_linear_into_mhla(SanaConfig& c) {
  const SanaConfig usual = sana_config("sana_600m", "mhla");
  c.attention = "mhla", c.eps = usual.eps, c.features = usual.features, c.mix_init = "uniform";
}

SanaConfig named_sana(const DiffusionOptions& o) {
  if (!is_model_file(o.model)) return sana_config(o.model, o.attention.value_or("mhla"));
  SanaConfig c = parse_sana_config(read_json_object(o.model), o.model);
  if (!o.attention || *o.attention == c.attention) return c;
  if (*o.attention == "mhla" && c.attention == "linear" && !o.train.init.empty()) {
    turn_linear_into_mhla(c);
  } else {
    const SanaConfig usual = sana_config("sana_600m", *o.attention);
    c.attention = *o.attention, c.eps = usual.eps, c.features = usual.features;
  }
  return c;
}

void expect_of_latents(const char* field, std::int64_t value, std::int64_t expected, const DiffusionSource& source) {
  if (value != expected)
    fail("network: ", field, " is ", value, ", expected the ", expected, " of the latents of ", source.name());
}

NetworkConfig sana_network_of(const DiffusionOptions& o, const DiffusionSource& source) {
  SanaConfig c = named_sana(o);
  if (!source.has_captions())
    fail("train: ", source.name(), " has no captions, expected latents with captions for ", c.model,
         ": `mhla data encode` with --vae and --text-encoder");
  if (o.process != "flow") fail("train: process is ", o.process, ", expected flow for ", c.model);
  if (o.official || !o.variant.empty()) fail("train: official or variant is given, expected neither for ", c.model);
  const bool named = !is_model_file(o.model);
  const std::vector<std::int64_t>& captions = source.latents->test_set->config().captions;
  if (named) c.channels = source.channels(), c.caption_dim = captions[1];
  c.caption_tokens = captions[0];
  fields_from_json(c, o.network, "network");
  check(c);
  expect_of_latents("channels", c.channels, source.channels(), source);
  expect_of_latents("caption_dim", c.caption_dim, captions[1], source);
  expect_of_latents("caption_tokens", c.caption_tokens, captions[0], source);
  const std::array<std::int64_t, 2> image = image_of(source);
  for (const std::int64_t side : image)
    if (side % c.patch != 0)
      fail("network: patch is ", c.patch, ", expected one that divides the ", image[0], "x", image[1],
           " of the latents of ", source.name());
  return {c, image};
}

}  // namespace

void check(const DiffusionOptions& o) {
  check(o.train);
  if (o.flip && !(*o.flip >= 0 && *o.flip <= 1)) fail("train: flip is ", *o.flip, ", expected 0 to 1");
  expect_between("test_seed", o.test_seed, 0, INT64_MAX);
  expect_between("max_damaged", o.max_damaged, 0, INT32_MAX);
  expect_between("eval_times", o.eval_times, 1, o.noise_steps);
  expect_between("sample_columns", o.sample_columns, 1, 100);
  expect_between("sample_steps", o.sample_steps, 1, o.noise_steps);
  if (o.sample_every) expect_between("sample_every", *o.sample_every, 0, INT64_MAX);
  if (o.label_dropout && !(*o.label_dropout >= 0 && *o.label_dropout < 1))
    fail("train: label_dropout is ", *o.label_dropout, ", expected 0 or more and less than 1");
  if (o.test_images) expect_between("test_images", *o.test_images, 0, INT64_MAX);
  if (!(o.sample_guidance >= 0 && o.sample_guidance <= 1000))
    fail("train: sample_guidance is ", o.sample_guidance, ", expected 0 to 1000");
  if (o.process == "flow" && o.learned_variance.value_or(false))
    fail("train: learned_variance is on, expected off for process flow");
  const auto expect_default = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) fail("train: ", name, " is ", value, ", expected ", usual, " for process ", o.process);
  };
  const DiffusionOptions usual;
  if (o.process == "noise") {
    expect_default("shift", o.shift, usual.shift);
    expect_default("logit_mean", o.logit_mean, usual.logit_mean);
    expect_default("logit_std", o.logit_std, usual.logit_std);
  } else if (o.process == "flow") {
    expect_default("noise_schedule", o.noise_schedule, usual.noise_schedule);
  }
  (void)DiffusionProcess(o, o.process != "flow" && o.learned_variance.value_or(true));
}

GenerationConfig generation_of(const DiffusionOptions& o, bool learn_sigma, const DiffusionSource& source) {
  GenerationConfig g = generation_of(o, learn_sigma);
  if (!source.latents) return g;
  const LatentSetConfig& c = source.latents->test_set->config();
  g.space = "latents", g.autoencoder = c.autoencoder, g.latent_scale = c.scale, g.latent_shift = c.shift;
  if (c.has_captions()) g.sample = {c.shape[1], c.shape[2]}, g.text_encoder = c.text_encoder;
  return g;
}

NetworkConfig network_of(const DiffusionOptions& o, const DiffusionSource& source) {
  if (names_sana(o)) return sana_network_of(o, source);
  if (source.latents && !source.latents->test_set->config().has_labels())
    fail("train: ", source.name(), " has latents without classes, expected those of labelled images for ", o.model,
         ", or a model of captions such as sana_600m");
  JsonValue file = JsonValue::object();
  DitConfig c = named_network(o, file);
  const std::array<std::int64_t, 2> named_image = c.image;
  const bool starts_from = !o.train.init.empty();  // what differs from the weights is adapted
  if (file.find("channels") == nullptr) c.channels = source.channels();
  if (file.find("classes") == nullptr || starts_from) c.classes = source.classes();
  if (source.latents && (file.find("image") == nullptr || starts_from)) c.image = image_of(source);
  if (o.process == "flow") c.learn_sigma = false;
  if (!o.variant.empty()) c = with_variant(c, o.variant);
  if (o.learned_variance) c.learn_sigma = *o.learned_variance;
  if (o.label_dropout) c.label_dropout = *o.label_dropout;
  fields_from_json(c, o.network, "network");
  if (o.process == "flow" && c.learn_sigma) fail("network: learn_sigma is true, expected false for process flow");
  if (source.latents) {
    if (c.channels != source.channels())
      fail("network: channels is ", c.channels, ", expected the ", source.channels(), " of the latents of ",
           source.name());
    if (c.image != image_of(source))
      fail("network: image is ", c.image[0], "x", c.image[1], ", expected the ", image_of(source)[0], "x",
           image_of(source)[1], " of the latents of ", source.name());
  } else if (c.channels != 1 && c.channels != 3)
    fail("network: channels is ", c.channels, ", expected 1 or 3 for the pixels of ", source.name());
  if (c.classes != source.classes())
    fail("network: classes is ", c.classes, ", expected the ", source.classes(), " of ", source.name());
  check(c);
  if (starts_from && file.find("image") != nullptr && c.image != named_image && !o.network.contains("pos_base")) {
    const auto [rows, columns] = c.image;
    c.image = named_image;
    c = at_size(c, rows, columns);  // positions keep their scale
  }
  (void)plan_of(c);  // whether blocks fit the grid
  return c;
}

void expect_fits(const DiffusionOptions& o, const NetworkConfig& c) {
  double sample = static_cast<double>(c.channels()) * static_cast<double>(c.image[0] * c.image[1]);
  if (c.takes_captions())
    sample += static_cast<double>(c.sana().caption_tokens) * static_cast<double>(c.sana().caption_dim);
  const double ready = static_cast<double>(LoaderOptions{}.prefetch) * static_cast<double>(o.train.batch);
  expect_training_fits("train diffusion", c.size(), o.train, ready * sample);
}

SharedKind shared_kind(const NetworkConfig& network) {
  const auto refuse = [&](const char* what, const std::string& value, const char* expected) {
    fail("train: ", what, " is ", value, " with context_parallel, expected ", expected);
  };
  if (network.takes_captions()) refuse("model", network.model(), "a DiT");
  const DitConfig& c = network.dit();
  if (c.attention != "mhla") refuse("attention", c.attention, "mhla");
  if (c.official) refuse("official", "on", "off");
  if (c.scan) refuse("scan", "on", "off");
  SharedKind kind;
  kind.shape.H = kind.shape.Hkv = c.heads, kind.shape.E = c.dim / c.heads;
  kind.shape.D = feature_size(parse_features(c.features), c.dim / c.heads), kind.shape.mix_per_head = c.mix_per_head;
  kind.whole.layout = plan_of(c).layout, kind.whole.tokens = c.rows() * c.columns();
  kind.whole.normalizer = parse_normalizer(c.normalizer);
  for (const auto& [name, taps] : {std::pair{"lepe", c.lepe}, {"cpe", c.cpe}, {"dwconv", c.dwconv}})
    if (taps / 2 * c.columns() > kind.halo) kind.halo = taps / 2 * c.columns(), kind.halo_of = name;
  return kind;
}

DiffusionOptions resolved(const DiffusionOptions& options, const NetworkConfig& network,
                          const DiffusionSource& source) {
  DiffusionOptions o = options;
  o.attention = network.attention(), o.learned_variance = network.learn_sigma();
  if (network.takes_captions()) {
    const SanaConfig& c = network.sana();
    if (is_model_file(o.model)) {
      const std::set<std::string> without{"model", "attention", "channels", "caption_dim", "caption_tokens"};
      o.model = c.model, o.network = network_fields(c, without);
    }
    if (!o.label_dropout) o.label_dropout = kCaptionDropout;
  } else {
    const DitConfig& c = network.dit();
    o.official = c.official, o.label_dropout = c.label_dropout;
    if (is_model_file(o.model)) {  // all of it, so that the options are enough where the file is not
      std::set<std::string> without{"model", "attention", "official",
                                    "classes"};  // options of their own, or the data's
      if (c.channels == source.channels()) without.insert("channels");
      o.model = c.model, o.network = network_fields(c, without), o.variant.clear();
    }
    if (!o.sample_prompts.empty())
      fail("train: sample_prompts is ", o.sample_prompts, ", expected none: ", c.model, " is a model of classes");
  }
  if (source.latents && !o.fit.empty()) fail("train: fit is ", o.fit, ", expected none for latents");
  if (!source.latents && o.fit.empty()) o.fit = preprocess_of(augment_of(o, network.dit(), *source.images.train)).fit;
  if (!o.flip) o.flip = source.latents && source.latents->train_set->config().flipped ? 0.5 : 0.0;
  if (!o.test_images) o.test_images = source.test_size();
  if (!o.train.mix_weight_decay) o.train.mix_weight_decay = o.official ? o.train.weight_decay : 0.0;
  if (!o.train.clip_mix_apart) o.train.clip_mix_apart = !o.official;
  return o;
}

}  // namespace mhla::train
