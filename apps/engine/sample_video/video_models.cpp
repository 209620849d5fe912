#include "apps/engine/sample_video/video_models.h"

#include "mhla/core/run_failed.h"
#include "mhla/models/weights_folder.h"
#include "mhla/modules/unfilled.h"
#include "mhla/train/video/video_data.h"

namespace mhla::apps {
namespace {

void expect_numbers(const std::filesystem::path& path, double expected, double repeated = 0) {
  double count = 0;
  for (const auto& [name, value] : mapped_weights(path)) count += static_cast<double>(value.numel());
  if (count == expected || (repeated > 0 && count == expected + repeated)) return;
  fail(kVideoCommand, ": ", path.string(), " has ", static_cast<std::int64_t>(count), " numbers, expected the ",
       static_cast<std::int64_t>(expected), " of its configuration: it is of another model");
}

// [1, 3, T, rows, columns] in -1 to 1, truncated as the published code does it.
void take_pictures(const torch::Tensor& frames, const std::function<void(const Image&)>& take) {
  if (!frames.isfinite().all().item<bool>()) throw RunFailed(str(kVideoCommand, ": a frame is NaN or infinite"));
  const torch::Tensor levels = ((frames.to(torch::kFloat).clamp(-1, 1) + 1) / 2 * 255)
                                   .to(torch::kByte)
                                   .squeeze(0)
                                   .permute({1, 2, 3, 0})
                                   .contiguous()
                                   .cpu();
  for (std::int64_t i = 0; i < levels.size(0); ++i) {
    Image image;
    image.resize(static_cast<int>(levels.size(1)), static_cast<int>(levels.size(2)), 3);
    const auto* from = levels[i].data_ptr<std::uint8_t>();
    std::copy(from, from + image.pixels.size(), image.pixels.begin());
    take(image);
  }
}

}  // namespace

void expect_weights_of(const VideoPlan& plan, bool with_encoder) {
  expect_numbers(plan.files.weights, size_of(plan.network, plan.latent_grid()).parameters);
  if (!plan.pixels) expect_numbers(plan.files.vae, size_of(plan.autoencoder, plan.size[0], plan.size[1]).parameters);
  if (!with_encoder) return;
  const Umt5Config& c = *plan.encoder;  // some files have the table of tokens twice
  expect_numbers(plan.files.text_encoder, size_of(c, 1).parameters, static_cast<double>(c.vocab_size * c.d_model));
}

Wan& VideoModels::transformer() {
  if (!transformer_.is_empty()) return transformer_;
  if (!memory_.decoder_beside) autoencoder_ = WanVae(nullptr);
  {
    const UnfilledWeights unfilled;
    transformer_ = Wan(plan_.network);
  }
  transformer_->to(dtype_);
  labelled(plan_.files.weights.string(), [&] { load_published(*transformer_, mapped_weights(plan_.files.weights)); });
  transformer_->to(device_);
  transformer_->eval();
  return transformer_;
}

WanVae& VideoModels::autoencoder() {
  if (!autoencoder_.is_empty()) return autoencoder_;
  if (!memory_.decoder_beside) transformer_ = Wan(nullptr);
  {
    const UnfilledWeights unfilled;
    autoencoder_ = WanVae(plan_.autoencoder);
  }
  autoencoder_->to(dtype_);
  labelled(plan_.files.vae.string(), [&] { load_published(*autoencoder_, mapped_weights(plan_.files.vae)); });
  autoencoder_->to(device_);
  autoencoder_->eval();
  return autoencoder_;
}

void VideoModels::decode(const torch::Tensor& latents, const std::function<void(const Image&)>& take) {
  const torch::NoGradGuard no_gradient;
  if (plan_.pixels) return take_pictures(train::shuffled(latents, plan_.unshuffle), take);
  WanVae& vae = autoencoder();
  const torch::Tensor narrow = latents.to(device_, dtype_);
  if (memory_.tiles && latents.size(2) > 1)
    return take_pictures(vae->decode_raw_tiled(vae->denormalized(narrow), *memory_.tiles), take);
  vae->decode_each(narrow, [&](const torch::Tensor& frames) { take_pictures(frames, take); });
}

}  // namespace mhla::apps
