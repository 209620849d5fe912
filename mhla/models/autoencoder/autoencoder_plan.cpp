// How large an autoencoder is, by formula.
#include <algorithm>

#include "mhla/models/autoencoder/autoencoder_config.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/image_parts.h"

namespace mhla {
namespace {

double square(std::int64_t x) { return static_cast<double>(x) * static_cast<double>(x); }

// ---- KL

double kl_block(std::int64_t in, std::int64_t out) {
  const auto norms = 2.0 * static_cast<double>(in + out);
  return norms + conv_size(in, out, 3) + conv_size(out, out, 3) + (in != out ? conv_size(in, out, 1) : 0.0);
}

// `widths` in the order of the levels, each left through a 3x3 convolution but for the last.
double kl_levels(const std::vector<std::int64_t>& widths, std::int64_t layers) {
  double count = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    count += kl_block(widths[i == 0 ? 0 : i - 1], widths[i]) +
             static_cast<double>(layers - 1) * kl_block(widths[i], widths[i]);
    if (i + 1 < widths.size()) count += conv_size(widths[i], widths[i], 3);
  }
  return count;
}

double parameters(const KlConfig& c) {
  const std::vector<std::int64_t>& widths = c.block_out_channels;
  const std::int64_t first = widths[0], last = widths.back(), latent = c.latent_channels;
  double middle = 2 * kl_block(last, last);
  if (c.mid_block_add_attention) middle += 2.0 * static_cast<double>(last) + 4 * conv_size(last, last, 1);
  double count = 2 * middle + kl_levels(widths, c.layers_per_block) +
                 kl_levels({widths.rbegin(), widths.rend()}, c.layers_per_block + 1);
  count += conv_size(c.in_channels, first, 3) + conv_size(last, 2 * latent, 3) + 2.0 * static_cast<double>(last);
  count += conv_size(latent, last, 3) + conv_size(first, c.out_channels, 3) + 2.0 * static_cast<double>(first);
  if (c.use_quant_conv) count += conv_size(2 * latent, 2 * latent, 1);
  if (c.use_post_quant_conv) count += conv_size(latent, latent, 1);
  return count;
}

// ---- DC-AE

double dc_block(const std::string& type, std::int64_t width, std::int64_t head,
                const std::vector<std::int64_t>& kernels) {
  const double norm = 2.0 * static_cast<double>(width);
  if (type == "ResBlock") return conv_size(width, width, 3) + conv_size(width, width, 3, false) + norm;
  double count = 3 * square(width) + static_cast<double>(1 + kernels.size()) * square(width) + norm;
  for (const std::int64_t kernel : kernels)
    count += conv_size(1, 3 * width, kernel, false) + conv_size(head, 3 * width, 1, false);
  return count + glu_conv_size(width, 4 * width, true);
}

double parameters(const DcConfig& c) {
  const std::vector<std::int64_t>&down = c.encoder_block_out_channels, &up = c.decoder_block_out_channels;
  const bool unshuffle = c.downsample_block_type == "pixel_unshuffle",
             shuffle = c.upsample_block_type == "pixel_shuffle";
  double count = conv_size(c.in_channels, down[0], 3) + conv_size(down.back(), c.latent_channels, 3) +
                 conv_size(c.latent_channels, up.back(), 3) + 2.0 * static_cast<double>(up[0]) +
                 conv_size(up[0], c.in_channels, 3);
  for (std::size_t i = 0; i < down.size(); ++i) {
    count += static_cast<double>(c.encoder_layers_per_block[i]) *
             dc_block(c.encoder_block_types[i], down[i], c.attention_head_dim, c.encoder_qkv_multiscales[i]);
    count += static_cast<double>(c.decoder_layers_per_block[i]) *
             dc_block(c.decoder_block_types[i], up[i], c.attention_head_dim, c.decoder_qkv_multiscales[i]);
    if (i + 1 == down.size()) continue;
    count += conv_size(down[i], unshuffle ? down[i + 1] / 4 : down[i + 1], 3);
    count += conv_size(up[i + 1], shuffle ? 4 * up[i] : up[i], 3);
  }
  return count;
}

// Numbers that the blocks of a level have at once and leave for the backward pass.
void add_level(ModelSize& size, double places, std::int64_t width, std::int64_t blocks, bool vit) {
  const double plane = places * static_cast<double>(width);
  // Inputs of both convolutions, before and after SiLU; attention: q, k, v twice, and 8 widths before and after SiLU.
  size.kept += static_cast<double>(blocks) * plane * (vit ? 24.0 : 4.0);
  size.passing = std::max(size.passing, plane * (vit ? 17.0 : 3.0));
}

}  // namespace

ModelSize size_of(const AutoencoderConfig& config, std::int64_t rows, std::int64_t columns) {
  ModelSize size;
  double places = static_cast<double>(rows) * static_cast<double>(columns);
  if (const auto* kl = std::get_if<KlConfig>(&config)) {
    size.parameters = parameters(*kl);
    for (const std::int64_t width : kl->block_out_channels) {
      add_level(size, places, width, 2 * kl->layers_per_block + 1, false);
      places /= 4;
    }
    return size;
  }
  const DcConfig& c = std::get<DcConfig>(config);
  size.parameters = parameters(c);
  for (std::size_t i = 0; i < c.encoder_block_out_channels.size(); ++i, places /= 4) {
    add_level(size, places, c.encoder_block_out_channels[i], c.encoder_layers_per_block[i],
              c.encoder_block_types[i] != "ResBlock");
    add_level(size, places, c.decoder_block_out_channels[i], c.decoder_layers_per_block[i],
              c.decoder_block_types[i] != "ResBlock");
  }
  return size;
}

// ---- Wan's: kernels of 27 taps, frames in a stream

namespace {

double cube_size(double in, double out, double taps) { return in * out * taps + out; }

double wan_residual(double in, double out) {
  return in + cube_size(in, out, 27) + out + cube_size(out, out, 27) + (in != out ? cube_size(in, out, 1) : 0.0);
}

double wan_middle(double width) {
  return 2 * wan_residual(width, width) + width + cube_size(width, 3 * width, 1) + cube_size(width, width, 1);
}

}  // namespace

ModelSize size_of(const WanVaeConfig& c, std::int64_t rows, std::int64_t columns) {
  check(c);
  const auto base = static_cast<double>(c.base_dim), z = static_cast<double>(c.z_dim);
  const std::size_t levels = c.dim_mult.size();
  const auto width_of = [&](std::size_t level) { return base * static_cast<double>(c.dim_mult[level]); };
  ModelSize size;
  size.parameters = cube_size(3, base, 27) + cube_size(2 * z, 2 * z, 1) + cube_size(z, z, 1);
  double in = base;
  for (std::size_t level = 0; level < levels; ++level) {  // the encoder
    for (std::int64_t i = 0; i < c.num_res_blocks; ++i, in = width_of(level))
      size.parameters += wan_residual(in, width_of(level));
    if (level + 1 == levels) continue;
    size.parameters += cube_size(in, in, 9) + (c.temperal_downsample[level] ? cube_size(in, in, 3) : 0.0);
  }
  size.parameters += wan_middle(in) + in + cube_size(in, 2 * z, 27);

  // The decoder: two frames of every causal convolution's input are remembered.
  double pixels = static_cast<double>(rows) * static_cast<double>(columns), frames = 1;
  for (std::size_t level = 1; level < levels; ++level) pixels /= 4;
  size.parameters += cube_size(z, in, 27) + wan_middle(in);
  double remembered = 2 * pixels * (z + 4 * in), most = pixels * 8 * in;
  for (std::size_t level = 0; level < levels; ++level) {
    const double out = width_of(levels - 1 - level);
    for (std::int64_t i = 0; i <= c.num_res_blocks; ++i, in = out) {
      size.parameters += wan_residual(in, out);
      remembered += 2 * pixels * (in + out);
      most = std::max(most, pixels * (frames * (2 * in + out) + (frames + 2) * std::max(in, out)));
    }
    if (level + 1 == levels) continue;
    const bool in_time = c.temperal_downsample[levels - 2 - level];
    size.parameters += cube_size(in, in / 2, 9) + (in_time ? cube_size(in, 2 * in, 3) : 0.0);
    if (in_time) remembered += 2 * pixels * in, frames *= 2;
    pixels *= 4;
    most = std::max(most, pixels * frames * (in + in / 2));
    in /= 2;
  }
  size.parameters += in + cube_size(in, 3, 27);
  size.passing = remembered + 2 * pixels * in + most;
  size.kept = size.passing;  // it is not trained here
  return size;
}

}  // namespace mhla
