#include "mhla/diffusion/generation_config.h"

#include <algorithm>
#include <cmath>

#include "mhla/diffusion/flow.h"
#include "mhla/diffusion/gaussian.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"

namespace mhla {
namespace {

void one_of(const char* field, const std::string& value, const char* first, const char* second) {
  if (value != first && value != second)
    fail("generation: ", field, " is '", value, "', expected ", first, " or ", second);
}

}  // namespace

void check(const GenerationConfig& c) {
  one_of("process", c.process, "noise", "flow");
  one_of("space", c.space, "pixels", "latents");
  check(gaussian_options(c));
  check(flow_options(c));
  if (c.is_flow() && c.learned_variance) fail("generation: learned_variance is true, expected false for process flow");
  if (!(c.latent_scale >= 0.0) || !std::isfinite(c.latent_scale))
    fail("generation: latent_scale is ", c.latent_scale, ", expected 0 or more");
  if (c.unshuffle < 1 || c.unshuffle > 64) fail("generation: unshuffle is ", c.unshuffle, ", expected 1 to 64");
  if (!std::isfinite(c.latent_shift))
    fail("generation: latent_shift is ", c.latent_shift, ", expected a finite number");
  const bool sides = std::all_of(c.sample.begin(), c.sample.end(), [](std::int64_t n) { return n >= 1 && n <= 65536; });
  if (!(c.sample.empty() || ((c.sample.size() == 2 || c.sample.size() == 3) && sides)))
    fail("generation: sample has ", c.sample.size(),
         " numbers, expected none, or rows and columns from 1 to 65536, of "
         "videos frames before them");
}

void check(const GenerationConfig& c, std::int64_t channels, bool learn_sigma) {
  check(c);
  if (c.learned_variance != learn_sigma)
    fail("generation: learned_variance is ", c.learned_variance ? "true" : "false",
         ", expected what learn_sigma of the network is: ", learn_sigma ? "true" : "false");
  if (!c.is_latent() && channels != 1 && channels != 3)
    fail("generation: space is pixels, expected latents for the ", channels, " channels of the network");
}

GenerationConfig dit_generation(std::int64_t channels, bool learn_sigma) {
  GenerationConfig c;
  c.learned_variance = learn_sigma;
  c.space = channels == 1 || channels == 3 ? "pixels" : "latents";
  return c;
}

GenerationConfig sana_generation() {
  GenerationConfig c;
  c.process = "flow", c.learned_variance = false, c.shift = 3.0, c.space = "latents";
  return c;
}

GenerationConfig sana_generation(const std::filesystem::path& config, const std::filesystem::path& pipeline) {
  GenerationConfig c = sana_generation();
  const JsonValue network = read_json_object(config);
  if (const JsonValue* size = network.find("sample_size"); size != nullptr && size->is_number())
    c.sample = {size->as_int(), size->as_int()};
  const std::filesystem::path file = pipeline / "scheduler" / "scheduler_config.json";
  if (std::filesystem::exists(file)) {
    const JsonValue scheduler = read_json_object(file);
    for (const char* key : {"shift", "flow_shift"})  // of Euler's scheduler, and of DPM-Solver's
      if (const JsonValue* shift = scheduler.find(key); shift != nullptr && shift->is_number())
        c.shift = shift->as_double();
  }
  labelled(config.string(), [&] { check(c); });
  return c;
}

GenerationConfig parse_generation_config(const JsonValue& object, const std::string& label) {
  GenerationConfig c;
  fields_from_json(c, object, label);
  labelled(label, [&] { check(c); });
  return c;
}

GenerationConfig read_generation_config(const std::filesystem::path& folder, const GenerationConfig& otherwise) {
  const std::filesystem::path file = folder / kGenerationFile;
  if (!std::filesystem::exists(file)) return otherwise;
  return parse_generation_config(read_json_object(file), file.string());
}

void write_generation_config(const std::filesystem::path& folder, const GenerationConfig& config) {
  write_file(folder / kGenerationFile, write_json(fields_to_json(config), 2) + "\n");
}

GaussianOptions gaussian_options(const GenerationConfig& c) {
  GaussianOptions o;
  o.schedule = c.schedule, o.steps = c.train_steps;
  o.variance = c.learned_variance ? "learned_range" : "fixed_large";
  return o;
}

FlowOptions flow_options(const GenerationConfig& c) {
  FlowOptions o;
  o.steps = c.train_steps, o.shift = c.shift;
  return o;
}

}  // namespace mhla
