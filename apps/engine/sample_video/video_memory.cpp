#include "apps/engine/sample_video/video_memory.h"

#include <algorithm>
#include <charconv>

namespace mhla::apps {
namespace {

struct DenoiseCost {
  double weights = 0, activations = 0;
  [[nodiscard]] double bytes() const { return weights + activations; }
};

DenoiseCost denoise_cost(const VideoPlan& plan, double number, std::array<std::int64_t, 3> latent, double rows) {
  const ModelSize size = size_of(plan.network, latent);
  return {number * size.parameters, number * rows * size.passing};
}

double decode_bytes(const VideoPlan& plan, double number, const std::array<std::int64_t, 2>& size) {
  if (plan.pixels) return 0;
  const ModelSize vae = size_of(plan.autoencoder, size[0], size[1]);
  return number * (vae.parameters + vae.passing);
}

// The most frames of this size that fit, or 0.
std::int64_t frames_that_fit(const VideoPlan& plan, double number, double limit) {
  for (std::int64_t latents = plan.latent[1] - 1; latents > 0; --latents) {
    if (latents % plan.network.patch[0] != 0) continue;
    if (denoise_cost(plan, number, {latents, plan.latent[2], plan.latent[3]}, 1).bytes() <= limit)
      return 1 + (latents - 1) * plan.time_factor();
  }
  return 0;
}

std::array<std::int64_t, 2> tile_size(const VideoPlan& plan, std::int64_t side) {
  return {std::min(plan.size[0], side), std::min(plan.size[1], side)};
}

}  // namespace

double parse_bytes(const std::string& text, const std::string& option) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
  double factor = 0;
  for (const auto& [name, bytes] :
       {std::pair("", 1.0), std::pair("MB", 1e6), std::pair("GB", 1e9), std::pair("MiB", 1048576.0),
        std::pair("GiB", 1073741824.0), std::pair("M", 1048576.0), std::pair("G", 1073741824.0)})
    if (unit == name) factor = bytes;
  if (error != std::errc() || factor == 0 || !(value > 0) || value * factor > 1e18)
    fail(option, " is '", text, "', expected a size such as 8GiB or 500MB");
  return value * factor;
}

VideoMemory plan_video_memory(const SampleVideoRequest& r, const VideoPlan& plan, torch::Device device,
                              std::int64_t encoded) {
  VideoMemory memory;
  const MemoryAtHand host = memory_at_hand();
  const MemoryAtHand here = device.is_cuda() ? device_memory_at_hand(device.index()) : host;
  double limit = static_cast<double>(here.bytes);
  std::string bound = here.bound;
  if (!r.max_memory.empty()) {
    const double asked = parse_bytes(r.max_memory, str(kVideoCommand, ": --max-memory"));
    if (asked < limit) limit = asked, bound = "--max-memory";
  }
  const double number = plan.precision == "bf16" ? 2 : 4;
  const std::string place = device.is_cuda() ? plan.device : std::string("memory");
  memory.lines.push_back(str("limit    ", bytes_text(limit), " of ", place, " (", bound, ")"));
  const auto line = [&](const char* stage, const std::string& what, double bytes) {
    memory.lines.push_back(str(stage, bytes_text(bytes), ": ", what));
  };

  if (encoded > 0) {
    const ModelSize text = size_of(*plan.encoder, encoded);
    const double bytes = 2 * text.parameters + 4 * text.passing;
    if (bytes > limit && device.is_cuda() && bytes <= static_cast<double>(host.bytes)) memory.encoder_on_host = true;
    if (bytes > limit && !memory.encoder_on_host)
      fail(kVideoCommand, ": the text encoder needs ", bytes_text(bytes), ", but ", bytes_text(limit), " are there (",
           bound, "): expected more, or --text-cache with the embeddings of these prompts");
    line("text     ",
         str("umT5 in bf16 on the ", memory.encoder_on_host || device.is_cpu() ? "CPU" : "GPU",
             ", freed after the prompts are encoded"),
         bytes);
  } else {
    memory.lines.emplace_back(plan.words ? "text     words of the model's own, no text encoder"
                                         : "text     all embeddings are there, no text encoder is loaded");
  }

  const double rows = plan.guided() ? 2 : 1;
  DenoiseCost denoise = denoise_cost(plan, number, plan.latent_grid(), rows);
  if (denoise.bytes() > limit && plan.guided()) {
    memory.rows_together = false;
    denoise = denoise_cost(plan, number, plan.latent_grid(), 1);
  }
  if (denoise.bytes() > limit) {
    const std::int64_t fewer = frames_that_fit(plan, number, limit);
    fail(kVideoCommand, ": ", plan.frames, " frames of ", plan.size[0], "x", plan.size[1], " need ",
         bytes_text(denoise.bytes()), ", but ", bytes_text(limit), " are there (", bound, "): expected ",
         fewer > 0 ? str("--frames ", fewer, ", ") : std::string(),
         number == 4 && device.is_cuda() ? "--precision bf16, " : "", "a smaller --size, or more memory");
  }
  line("denoise  ",
       str("transformer ", bytes_text(denoise.weights), ", activations ", bytes_text(denoise.activations),
           !plan.guided()         ? ""
           : memory.rows_together ? ", prompt and negative in one pass"
                                  : ", prompt and negative one after the other"),
       denoise.bytes());

  if (plan.pixels) {
    memory.decoder_beside = true;
    memory.lines.emplace_back("decode   the model makes pixels, no autoencoder");
    return memory;
  }
  std::array<std::int64_t, 2> piece = plan.size;
  const std::int64_t unit = plan.autoencoder.space_factor();
  const auto take_tiles = [&](std::int64_t side) {
    const std::int64_t stride = side * 3 / 4 / unit * unit;
    memory.tiles = WanVaeTiles{{side, side}, {stride, stride}};
    piece = tile_size(plan, side);
  };
  if (r.tile) take_tiles(256);
  for (const std::int64_t side : {std::int64_t{256}, std::int64_t{128}})
    if (decode_bytes(plan, number, piece) > limit && (!memory.tiles || memory.tiles->size[0] > side)) take_tiles(side);
  const double decode = decode_bytes(plan, number, piece);
  if (decode > limit)
    fail(kVideoCommand, ": decoding tiles of 128x128 pixels needs ", bytes_text(decode), ", but ", bytes_text(limit),
         " are there (", bound, "): expected more memory");
  memory.decoder_beside = denoise.bytes() + decode <= limit;
  if (r.preview > 0 && !memory.decoder_beside)
    fail(kVideoCommand, ": --preview needs the transformer and the autoencoder at once, ",
         bytes_text(denoise.bytes() + decode), ", but ", bytes_text(limit), " are there (", bound,
         "): expected --preview 0 or more memory");
  line("decode   ",
       str(memory.tiles ? str("tiles of ", memory.tiles->size[0], " pixels, all frames of each")
                        : std::string("whole frames, one latent at a time"),
           memory.decoder_beside ? "" : "; the transformer is freed before"),
       decode);
  return memory;
}

}  // namespace mhla::apps
