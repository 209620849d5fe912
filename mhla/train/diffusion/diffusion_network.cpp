// The network of the options, and what options may not be.
#include "mhla/core/error.h"
#include "mhla/core/limits.h"
#include "mhla/data/loader.h"
#include "mhla/data/preprocess.h"
#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"

namespace mhla::train {
namespace {

void expect_between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) fail("train: ", field, " is ", value, ", expected ", least, " to ", most);
}

DitConfig named_network(const DiffusionOptions& o, JsonValue& file) {
  if (!is_model_file(o.model)) return dit_config(o.model, o.attention.value_or("mhla"), o.official);
  file = read_json(o.model);
  if (!file.is_object()) fail(o.model, ": is no object, expected the fields of a model");
  if (o.attention) file.set("attention", *o.attention);
  if (o.official) file.set("official", true);
  return parse_dit_config(file, o.model);
}

std::array<std::int64_t, 2> image_of(const DiffusionSource& source) {
  const std::vector<std::int64_t>& shape = source.latents->test_set->config().shape;
  return {shape[1], shape[2]};
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
  if (o.test_images) expect_between("test_images", *o.test_images, 0, INT64_MAX);
  if (!(o.sample_guidance >= 0 && o.sample_guidance <= 1000))
    fail("train: sample_guidance is ", o.sample_guidance, ", expected 0 to 1000");
  if (o.process == "flow" && o.learned_variance.value_or(false))
    fail("train: learned_variance is on, expected off for process flow");
  (void)DiffusionProcess(o, o.process != "flow" && o.learned_variance.value_or(true));
}

GenerationConfig generation_of(const DiffusionOptions& o, bool learn_sigma, const DiffusionSource& source) {
  GenerationConfig g = generation_of(o, learn_sigma);
  if (!source.latents) return g;
  const LatentSetConfig& c = source.latents->test_set->config();
  g.space = "latents", g.autoencoder = c.autoencoder, g.latent_scale = c.scale, g.latent_shift = c.shift;
  return g;
}

DitConfig network_of(const DiffusionOptions& o, const DiffusionSource& source) {
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

void expect_fits(const DiffusionOptions& o, const DitConfig& c) {
  const double image = static_cast<double>(c.channels) * static_cast<double>(c.image[0] * c.image[1]);
  const double ready = static_cast<double>(LoaderOptions{}.prefetch) * static_cast<double>(o.train.batch);
  expect_training_fits("train diffusion", size_of(c), o.train, ready * image);
}

DiffusionOptions resolved(const DiffusionOptions& options, const DitConfig& network, const DiffusionSource& source) {
  DiffusionOptions o = options;
  o.attention = network.attention, o.official = network.official;
  if (is_model_file(o.model)) {  // all of it, so that the options are enough where the file is not
    std::set<std::string> without{"model", "attention", "official", "classes"};  // options of their own, or the data's
    if (network.channels == source.channels()) without.insert("channels");
    o.model = network.model, o.network = network_fields(network, without), o.variant.clear();
  }
  o.learned_variance = network.learn_sigma, o.label_dropout = network.label_dropout;
  if (source.latents && !o.fit.empty()) fail("train: fit is ", o.fit, ", expected none for latents");
  if (!source.latents && o.fit.empty()) o.fit = preprocess_of(augment_of(o, network, *source.images.train)).fit;
  if (!o.flip) o.flip = source.latents && source.latents->train_set->config().flipped ? 0.5 : 0.0;
  if (!o.test_images) o.test_images = source.test_size();
  if (!o.train.mix_weight_decay) o.train.mix_weight_decay = o.official ? o.train.weight_decay : 0.0;
  if (!o.train.clip_mix_apart) o.train.clip_mix_apart = !o.official;
  return o;
}

}  // namespace mhla::train
