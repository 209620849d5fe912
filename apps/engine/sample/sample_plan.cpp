#include "apps/engine/sample/sample_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "apps/engine/caption_states.h"
#include "apps/engine/model_files.h"
#include "mhla/core/limits.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/utf8.h"
#include "mhla/train/opening.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using train::Observer;
using train::RunWeights;

constexpr std::int64_t kMostImages = std::int64_t{1} << 26;
constexpr Plane kSanaSize{1024, 1024};  // pixels of the published models

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string plane_text(Plane plane) { return str(plane[0], "x", plane[1]); }

// ---- Which model

// A pipeline of diffusers has its network in transformer/, and the other models beside it.
fs::path part_of(const fs::path& model, const char* part) {
  const fs::path folder = model / part;
  return !fs::exists(model / "config.json") && fs::exists(folder / "config.json") ? folder : fs::path();
}

void take_model(const SampleImagesRequest& r, SamplePlan& plan) {
  const fs::path model = r.model, part = part_of(model, "transformer");
  if (!is_folder(model))
    fail(kSampleCommand, ": --model is ", r.model, is_there(model) ? ", a file" : ", which is not there",
         ", expected a folder");
  if (!r.weights.empty() && r.weights != "model") {
    plan.weights = model / (r.weights + ".safetensors");
    if (!fs::exists(plan.weights))
      fail(kSampleCommand, ": --weights is ", r.weights, ", but ", r.model, " has no ",
           plan.weights.filename().string());
  }
  plan.generator = describe_generator(part.empty() ? model : part, model);
  if (plan.weights.empty()) plan.weights = plan.generator.folder / "model.safetensors";
  if (!fs::exists(plan.weights)) plan.weights = plan.generator.folder;  // another name, or shards
  plan.vae = part_of(model, "vae"), plan.text_encoder = part_of(model, "text_encoder");
}

void take_run(const SampleImagesRequest& r, SamplePlan& plan, Observer& observer) {
  const train::Run run = train::Run::open(kSampleCommand, r.run);
  if (run.task() != "diffusion")
    fail(kSampleCommand, ": ", r.run, " is a run of `mhla train ", run.task(),
         "`, expected one of `mhla train diffusion`");
  const JsonValue *ema = run.options().find("ema"), *device = run.options().find("device");
  const bool averages = ema != nullptr && ema->is_number() && ema->as_double() > 0.0;
  const std::string which = !r.weights.empty() ? r.weights : averages ? "ema" : "model";
  const RunWeights found = train::find_weights(kSampleCommand, r.run, which, observer);
  plan.generator = describe_generator(found.folder, r.run);
  plan.weights = found.file, plan.prefix = found.prefix;
  if (device != nullptr && device->is_string()) plan.device = device->as_string();
}

// ---- What the images show

void take_classes(const SampleImagesRequest& r, SamplePlan& plan) {
  const std::vector<std::string>& names = plan.generator.class_names;
  if (!r.prompts.empty())
    fail(kSampleCommand, ": prompts are given, but ", plan.generator.model(), " generates classes, expected --classes");
  if (!r.text_encoder.empty())
    fail(kSampleCommand, ": --text-encoder is given, but ", plan.generator.model(), " generates classes");
  for (const std::string& given : r.classes) {
    if (given != "all") {
      plan.classes.push_back(class_called(given, names));
    } else if (r.classes.size() > 1) {
      fail(kSampleCommand, ": --classes has all and other classes, expected all or a list");
    }
  }
  if (plan.classes.empty())
    for (std::size_t i = 0; i < names.size(); ++i) plan.classes.push_back(static_cast<std::int64_t>(i));
  if (!plan.guided()) {
    if (!r.negative.empty()) fail(kSampleCommand, ": --negative is given, but --guidance is 1, expected more");
  } else if (r.negative.empty() && !plan.generator.has_null_class()) {
    fail(kSampleCommand, ": --guidance is ", r.guidance,
         ", but the model has no null class (label_dropout is 0): expected ", "1, or --negative CLASS");
  }
}

void take_prompts(const SampleImagesRequest& r, SamplePlan& plan) {
  if (!r.classes.empty())
    fail(kSampleCommand, ": --classes is given, but ", plan.generator.model(),
         " generates captions, expected --prompts");
  if (r.prompts.empty()) fail(kSampleCommand, ": no prompt is given, expected --prompts FILE");
  if (!plan.guided() && !r.negative.empty())
    fail(kSampleCommand, ": --negative is given, but --guidance is 1, expected more");
  plan.prompts = r.prompts;
  for (std::size_t i = 0; i < plan.prompts.size(); ++i)
    if (!is_utf8(plan.prompts[i]) || plan.prompts[i].find('\0') != std::string::npos)
      fail(kSampleCommand, ": prompt ", i, " is not UTF-8 text");
  const std::string& known = plan.generator.generation.text_encoder;
  if (!r.text_encoder.empty()) {
    plan.text_encoder = r.text_encoder;
    if (!fs::exists(plan.text_encoder / "config.json"))
      fail(kSampleCommand, ": --text-encoder is ", r.text_encoder, ", which has no config.json, expected a folder of ",
           "Gemma-2");
  } else if (plan.text_encoder.empty() && !known.empty()) {
    plan.text_encoder = known;
    if (!fs::exists(plan.text_encoder / "config.json"))
      fail(kSampleCommand, ": the text encoder of the model is not in ", known, ", expected --text-encoder DIR");
  }
  if (plan.text_encoder.empty()) fail(kSampleCommand, ": --prompts needs --text-encoder DIR, a folder of Gemma-2");
}

// ---- Sizes

void take_autoencoder(const SampleImagesRequest& r, SamplePlan& plan) {
  const GenerationConfig& g = plan.generator.generation;
  if (!g.is_latent()) {
    if (!r.vae.empty()) fail(kSampleCommand, ": --vae is given, but ", plan.generator.model(), " generates pixels");
    if (r.tile) fail(kSampleCommand, ": --tile is given, but ", plan.generator.model(), " generates pixels");
    return;
  }
  if (!r.vae.empty()) {
    plan.vae = r.vae;
  } else if (!g.autoencoder.empty()) {
    plan.vae = g.autoencoder;
    if (!fs::exists(plan.vae / "config.json"))
      fail(kSampleCommand, ": the autoencoder of the model is not in ", g.autoencoder, ", expected --vae DIR");
  }
  if (plan.vae.empty())
    fail(kSampleCommand, ": ", plan.generator.model(),
         " generates latents, expected --vae DIR, the autoencoder they are of");
  plan.autoencoder = read_autoencoder_config(plan.vae / "config.json");
  const auto [channels, scale, shift] = latent_format(*plan.autoencoder);
  const auto* kl = std::get_if<KlConfig>(&*plan.autoencoder);
  const std::int64_t colours = kl != nullptr ? kl->out_channels : std::get<DcConfig>(*plan.autoencoder).in_channels;
  if (channels != plan.generator.channels())
    fail(kSampleCommand, ": ", plan.vae.string(), " has latents of ", channels, " channels, expected the ",
         plan.generator.channels(), " of ", plan.generator.model());
  if (colours != 1 && colours != 3)
    fail(kSampleCommand, ": ", plan.vae.string(), " has images of ", colours, " channels, expected 1 or 3");
  const bool other = !r.vae.empty() && g.latent_scale != 0.0 && !same_scale(scale, g.latent_scale);
  if (other)
    fail(kSampleCommand, ": ", plan.vae.string(), " scales latents by ", scale, ", expected the ", g.latent_scale,
         " that the model was trained with: latent_scale in generation.json");
  plan.latent_scale = g.latent_scale != 0.0 ? g.latent_scale : scale;
  plan.latent_shift = g.latent_scale != 0.0 ? g.latent_shift : shift;
}

void take_size(const SampleImagesRequest& r, SamplePlan& plan) {
  const std::int64_t factor = plan.autoencoder ? downsampling_of(*plan.autoencoder) : 1;
  const std::int64_t step = factor * plan.generator.patch();
  if (const auto own = plan.generator.own_size()) {
    plan.images = {(*own)[0] * factor, (*own)[1] * factor};
  } else {
    plan.images = kSanaSize;
  }
  if (r.size) plan.images = *r.size;
  for (const std::int64_t side : plan.images) {
    expect_within(kSampleCommand, "--size", side, limits::kImage);
    if (side % step == 0) continue;
    const std::int64_t below = side / step * step;
    fail(kSampleCommand, ": --size is ", plane_text(plan.images), ", expected multiples of ", step, " (",
         factor > 1 ? str(factor, " pixels of a latent times ") : std::string(), "patch ", plan.generator.patch(),
         "): ", below > 0 ? str(below, " or ") : std::string(), below + step, " instead of ", side);
  }
  plan.samples = {plan.images[0] / factor, plan.images[1] / factor};
  (void)plan.generator.size_at(plan.samples);  // blocks of MHLA that do not fit are refused here
}

// A sheet that could not be written is refused now, not after hours of work.
void check_sheet(const SampleImagesRequest& r, const SamplePlan& plan) {
  if (!r.sheet) return;
  const auto [rows, columns] = *r.sheet;
  for (const std::int64_t side : *r.sheet)
    if (side < 1 || side > 4096)
      fail(kSampleCommand, ": --sheet is ", plane_text(*r.sheet), ", expected 1 to 4096 a side");
  const std::int64_t count = std::min(rows * columns, plan.count()), across = std::min(columns, count);
  const std::int64_t down = (count + across - 1) / across;
  const std::int64_t height = down * (plan.images[0] + 2) + 2, width = across * (plan.images[1] + 2) + 2;
  if (height > 65500 || width > 65500 || height * width > (std::int64_t{1} << 27))
    fail(kSampleCommand, ": --sheet ", plane_text(*r.sheet), " has ", height, " x ", width,
         " pixels, expected sides up to 65500 and 2^27 pixels");
}

// ---- How

std::int64_t usual_steps(const std::string& sampler) {
  if (sampler == "ancestral") return 250;
  if (sampler == "dpm++") return 20;
  return sampler == "euler" ? 30 : 50;
}

void take_sampler(const SampleImagesRequest& r, SamplePlan& plan) {
  const GenerationConfig& g = plan.generator.generation;
  SamplerOptions& o = plan.sampler;
  o.sampler = !r.sampler.empty() ? r.sampler : g.is_flow() ? "dpm++" : "ddim";
  o.steps = r.steps > 0 ? r.steps : std::min(usual_steps(o.sampler), g.train_steps);
  o.clip = !g.is_latent();
  if (r.shift && !g.is_flow())
    fail(kSampleCommand, ": --shift is given, but ", plan.generator.model(),
         " predicts noise, expected it for flow matching");
  if (r.eta && o.sampler != "ddim") fail(kSampleCommand, ": --eta is given for ", o.sampler, ", expected it for ddim");
  o.eta = r.eta.value_or(0.0);
  if (!r.time_grid.empty() && !g.is_flow())
    fail(kSampleCommand, ": --time-grid is given, but ", plan.generator.model(),
         " predicts noise, expected it for flow matching");
  o.time_grid = r.time_grid;
  if (r.preview >= o.steps)
    fail(kSampleCommand, ": --preview is ", r.preview, ", expected less than the ", o.steps, " steps, 0 for none");
  plan.shift = r.shift.value_or(g.shift);
  (void)plan.make_sampler();
}

void take_guidance(const SampleImagesRequest& r, SamplePlan& plan) {
  GuidanceOptions& o = plan.guidance;
  o.scale = r.guidance;
  if (!std::isfinite(r.guidance)) fail(kSampleCommand, ": --guidance is ", r.guidance, ", expected a finite number");
  if (r.guidance_channels != "all") {
    const std::string& text = r.guidance_channels;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), o.channels);
    if (error != std::errc() || end != text.data() + text.size() || o.channels < 1)
      fail(kSampleCommand, ": --guidance-channels is ", text, ", expected all or a number such as 3");
    if (o.channels > plan.generator.channels())
      fail(kSampleCommand, ": --guidance-channels is ", text, ", expected at most the ", plan.generator.channels(),
           " of ", plan.generator.model());
  }
  if (!r.guidance_interval.empty()) {
    if (r.guidance_interval.size() != 2)
      fail(kSampleCommand, ": --guidance-interval has ", r.guidance_interval.size(), " numbers, expected two");
    o.interval = {r.guidance_interval[0], r.guidance_interval[1]};
  }
  check(o);
  if (plan.guided()) return;
  for (const auto& [name, given] : {std::pair("--guidance-channels", r.guidance_channels != "all"),
                                    std::pair("--guidance-interval", !r.guidance_interval.empty())})
    if (given) fail(kSampleCommand, ": ", name, " is given, but --guidance is 1, expected more");
}

// A checksum of all that decides what a model computes.
std::int64_t model_crc32c(const fs::path& model) {
  if (!is_folder(model)) return file_crc32c(model);
  std::uint32_t sum = 0;
  for (const fs::path& file : model_files(model)) {
    const std::string name = file.filename().string();
    sum = crc32c(MappedFile(file).bytes(), crc32c(std::as_bytes(std::span(name)), sum));
  }
  return sum;
}

JsonValue settings_of(const SampleImagesRequest& r, const SamplePlan& plan) {
  const GeneratorPlan& g = plan.generator;
  JsonValue s = JsonValue::object();
  s.set("model", g.model()).set("attention", g.attention());
  const auto add_model = [&](const std::string& key, const fs::path& path) {
    s.set(key, fs::absolute(path).lexically_normal().string()).set(key + kChecksum, model_crc32c(path));
  };
  add_model("weights", plan.weights);
  const fs::path config = g.folder / "config.json";
  if (!is_folder(plan.weights) && fs::exists(config)) add_model("config", config);
  s.set("process", g.generation.process);
  if (plan.prompts.empty()) {
    JsonValue classes = JsonValue::array();
    for (const std::int64_t one : plan.classes) classes.push(one);
    s.set("classes", classes);
  } else {
    JsonValue prompts = JsonValue::array();
    for (const std::string& prompt : plan.prompts) prompts.push(prompt);
    s.set("prompts", prompts);
    add_model("text_encoder", plan.text_encoder);
    if (const fs::path words = caption_tokenizer_folder(plan.text_encoder); words != plan.text_encoder)
      add_model("tokenizer", words);
  }
  s.set("per_class", plan.per_class).set("seed", r.seed);
  s.set("size", plane_text(plan.images)).set("sampler", plan.sampler.sampler).set("steps", plan.sampler.steps);
  if (plan.sampler.sampler == "ddim") s.set("eta", plan.sampler.eta);
  if (g.generation.is_flow()) s.set("shift", plan.shift);
  if (!plan.sampler.time_grid.empty()) s.set("time_grid", plan.sampler.time_grid);
  s.set("guidance", plan.guidance.scale);
  if (plan.guided()) {
    s.set("guidance_channels", r.guidance_channels).set("negative", r.negative);
    if (!r.guidance_interval.empty())
      s.set("guidance_interval", JsonValue::array({plan.guidance.interval[0], plan.guidance.interval[1]}));
  }
  if (plan.autoencoder) {
    add_model("vae", plan.vae);
    s.set("tile", r.tile);
  }
  s.set("precision", r.precision);
  return s;
}

}  // namespace

std::unique_ptr<Sampler> SamplePlan::make_sampler() const {
  const GenerationConfig& g = generator.generation;
  if (!g.is_flow()) return mhla::make_sampler(gaussian_options(g), sampler);
  FlowOptions flow = flow_options(g);
  flow.shift = shift;
  return mhla::make_sampler(flow, sampler);
}

std::int64_t class_called(const std::string& given, const std::vector<std::string>& names) {
  const auto count = static_cast<std::int64_t>(names.size());
  if (given.empty()) fail(kSampleCommand, ": a class has no name, expected numbers or names joined by commas, or all");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
  if (error == std::errc() && end == given.data() + given.size()) {
    if (number < 0 || number >= count)
      fail(kSampleCommand, ": class ", given, " does not exist, expected 0 to ", count - 1);
    return number;
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (names[static_cast<std::size_t>(i)] == given) return i;
  std::vector<std::int64_t> alike;
  for (std::int64_t i = 0; i < count; ++i)
    if (lower(names[static_cast<std::size_t>(i)]) == lower(given)) alike.push_back(i);
  if (alike.size() == 1) return alike[0];
  const bool named = names.empty() || names[0] != "0";
  fail(kSampleCommand, ": class '", given, "' does not exist, ",
       named ? str("nearest is '", nearest_name(given, names), "'") : str("expected a number from 0 to ", count - 1));
}

SamplePlan plan_sampling(const SampleImagesRequest& r, Observer& observer) {
  SamplePlan plan;
  plan.device = "cpu";
  if (r.run.empty() == r.model.empty()) fail(kSampleCommand, ": expected one of --run and --model");
  if (r.resume && r.overwrite) fail(kSampleCommand, ": --resume and --overwrite are given, expected one of them");
  r.run.empty() ? take_model(r, plan) : take_run(r, plan, observer);
  if (!r.device.empty()) plan.device = r.device;
  train::expect_precision(kSampleCommand, r.precision, train::device_of(plan.device));
  take_guidance(r, plan);
  plan.generator.takes_captions() ? take_prompts(r, plan) : take_classes(r, plan);
  plan.per_class = r.per_class;
  if (plan.per_class < 1 || plan.count() > kMostImages)
    fail(kSampleCommand, ": ", plan.kinds(), " times --per-class ", plan.per_class, " images, expected 1 to ",
         kMostImages);
  take_autoencoder(r, plan);
  take_size(r, plan);
  check_sheet(r, plan);
  take_sampler(r, plan);
  plan.settings = settings_of(r, plan);
  return plan;
}

}  // namespace mhla::apps
