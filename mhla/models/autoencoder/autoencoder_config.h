// What an autoencoder is made of. Fields have the names of diffusers' config.json, which is what is read and written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mhla/io/fields.h"
#include "mhla/models/model_size.h"

namespace mhla {

// AutoencoderKL, the VAE of Stable Diffusion (sd-vae-ft-ema, sd-vae-ft-mse): a factor of 2 for every level but the
// last.
struct KlConfig {
  std::int64_t in_channels = 3, out_channels = 3, latent_channels = 4;
  std::vector<std::int64_t> block_out_channels{128, 256, 512, 512};
  std::int64_t layers_per_block = 2;  // residual blocks of a level of the encoder; the decoder has one more
  std::int64_t norm_num_groups = 32;
  double norm_eps = 1e-6;
  std::int64_t sample_size = 256;
  double scaling_factor = 0.18215;
  std::optional<double> shift_factor;
  bool use_quant_conv = true, use_post_quant_conv = true;
  bool mid_block_add_attention = true;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("in_channels", c.in_channels, "channels of an image");
    visit("out_channels", c.out_channels, "channels of a decoded image");
    visit("latent_channels", c.latent_channels, "channels of a latent");
    visit("block_out_channels", c.block_out_channels, "channels of every level");
    visit("layers_per_block", c.layers_per_block, "residual blocks of a level");
    visit("norm_num_groups", c.norm_num_groups, "groups of the norms");
    visit("norm_eps", c.norm_eps, "epsilon of the norms");
    visit("sample_size", c.sample_size, "pixels of a side in training");
    visit("scaling_factor", c.scaling_factor, "latents are multiplied by this");
    visit("shift_factor", c.shift_factor, "subtracted from latents before they are scaled");
    visit("use_quant_conv", c.use_quant_conv, "a 1x1 convolution after the encoder");
    visit("use_post_quant_conv", c.use_post_quant_conv, "a 1x1 convolution before the decoder");
    visit("mid_block_add_attention", c.mid_block_add_attention, "attention in the middle");
  }
  bool operator==(const KlConfig&) const = default;
};

// AutoencoderDC, the deep-compression autoencoder of SANA. The defaults are dc-ae-f32c32-sana-1.0 and 1.1.
struct DcConfig {
  std::int64_t in_channels = 3, latent_channels = 32, attention_head_dim = 32;
  std::vector<std::string> encoder_block_types{"ResBlock",          "ResBlock",          "ResBlock",
                                               "EfficientViTBlock", "EfficientViTBlock", "EfficientViTBlock"};
  std::vector<std::string> decoder_block_types = encoder_block_types;
  std::vector<std::int64_t> encoder_block_out_channels{128, 256, 512, 512, 1024, 1024};
  std::vector<std::int64_t> decoder_block_out_channels = encoder_block_out_channels;
  std::vector<std::int64_t> encoder_layers_per_block{2, 2, 2, 3, 3, 3};
  std::vector<std::int64_t> decoder_layers_per_block{3, 3, 3, 3, 3, 3};
  std::vector<std::vector<std::int64_t>> encoder_qkv_multiscales{{}, {}, {}, {5}, {5}, {5}};
  std::vector<std::vector<std::int64_t>> decoder_qkv_multiscales = encoder_qkv_multiscales;
  std::string upsample_block_type = "interpolate";  // or pixel_shuffle
  std::string downsample_block_type = "Conv";       // or pixel_unshuffle
  bool encoder_out_shortcut = true, decoder_in_shortcut = true;
  double norm_eps = 1e-5, attention_eps = 1e-15;
  double scaling_factor = 0.41407;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("in_channels", c.in_channels, "channels of an image");
    visit("latent_channels", c.latent_channels, "channels of a latent");
    visit("attention_head_dim", c.attention_head_dim, "channels of an attention head");
    visit("encoder_block_types", c.encoder_block_types, "ResBlock or EfficientViTBlock, for every level");
    visit("decoder_block_types", c.decoder_block_types, "ResBlock or EfficientViTBlock, for every level");
    visit("encoder_block_out_channels", c.encoder_block_out_channels, "channels of every level");
    visit("decoder_block_out_channels", c.decoder_block_out_channels, "channels of every level");
    visit("encoder_layers_per_block", c.encoder_layers_per_block, "blocks of every level");
    visit("decoder_layers_per_block", c.decoder_layers_per_block, "blocks of every level");
    visit("encoder_qkv_multiscales", c.encoder_qkv_multiscales, "kernels of the attention's branches, for every level");
    visit("decoder_qkv_multiscales", c.decoder_qkv_multiscales, "kernels of the attention's branches, for every level");
    visit("upsample_block_type", c.upsample_block_type, "interpolate or pixel_shuffle");
    visit("downsample_block_type", c.downsample_block_type, "Conv or pixel_unshuffle");
    visit("encoder_out_shortcut", c.encoder_out_shortcut, "the mean of channel groups added to the latent");
    visit("decoder_in_shortcut", c.decoder_in_shortcut, "the repeated latent added to the decoder's input");
    visit("norm_eps", c.norm_eps, "epsilon of the norms");
    visit("attention_eps", c.attention_eps, "added to the denominator of the attention");
    visit("scaling_factor", c.scaling_factor, "latents are multiplied by this");
  }
  bool operator==(const DcConfig&) const = default;
};

using AutoencoderConfig = std::variant<KlConfig, DcConfig>;

// Throw with the field, its value and what was expected.
void check(const KlConfig& config);
void check(const DcConfig& config);

// "_class_name" says which one. Keys that change nothing here (sample sizes, versions) are passed over; a value that
// asks for another network, or an unknown key, is refused by name.
AutoencoderConfig parse_autoencoder_config(const JsonValue& object, const std::string& label);
AutoencoderConfig read_autoencoder_config(const std::filesystem::path& path);
// What diffusers reads, too.
JsonValue autoencoder_json(const AutoencoderConfig& config);

std::int64_t downsampling_of(const AutoencoderConfig& config);  // pixels of a latent's side: 8, 32

// What a model of latents was trained with: a latent is (the encoder's answer - shift) * scale.
struct LatentFormat {
  std::int64_t channels = 0;
  double scale = 1.0, shift = 0.0;
};
LatentFormat latent_format(const AutoencoderConfig& config);
bool same_scale(double a, double b);  // as far as files round them

// A sample is one image of rows x columns pixels, encoded and decoded; of tiles it is one tile.
ModelSize size_of(const AutoencoderConfig& config, std::int64_t rows, std::int64_t columns);

}  // namespace mhla
