#include "mhla/models/autoencoder/wan_vae.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"
#include "mhla/models/autoencoder/wan_vae_parts.h"

namespace mhla {
namespace {

constexpr const char* kWanVaeEntry = "WanVae";

}  // namespace

std::int64_t WanVaeConfig::space_factor() const {
  return std::int64_t{1} << (static_cast<std::int64_t>(dim_mult.size()) - 1);
}

std::int64_t WanVaeConfig::time_factor() const {
  return std::int64_t{1} << std::count(temperal_downsample.begin(), temperal_downsample.end(), true);
}

void check(const WanVaeConfig& c) {
  expect_within("config", "base_dim", c.base_dim, limits::kDim);
  expect_within("config", "z_dim", c.z_dim, limits::kChannels);
  expect_within("config", "num_res_blocks", c.num_res_blocks, limits::kLayers);
  if (c.dim_mult.empty() || c.dim_mult.size() > 8)
    fail("config: dim_mult has ", c.dim_mult.size(), " levels, expected 1 to 8");
  for (const std::int64_t mult : c.dim_mult) {
    expect_within("config", "dim_mult", mult, limits::kDim);
    expect_within("config", "dim_mult times base_dim", mult * c.base_dim, limits::kDim);
  }
  for (std::size_t level = 1; level < c.dim_mult.size(); ++level) {
    if (c.dim_mult[level] * c.base_dim % 2 != 0)
      fail("config: level ", level, " has ", c.dim_mult[level] * c.base_dim, " channels, expected an even number");
  }
  if (c.temperal_downsample.size() + 1 != c.dim_mult.size())
    fail("config: temperal_downsample has ", c.temperal_downsample.size(), " items, expected ", c.dim_mult.size() - 1);
  for (const auto& [name, values] :
       {std::pair("latents_mean", &c.latents_mean), std::pair("latents_std", &c.latents_std)}) {
    if (static_cast<std::int64_t>(values->size()) != c.z_dim)
      fail("config: ", name, " has ", values->size(), " numbers, expected z_dim = ", c.z_dim);
  }
  for (const double deviation : c.latents_std) {
    if (!(deviation > 0.0)) fail("config: latents_std has ", deviation, ", expected positive numbers");
  }
}

class WanEncoderImpl : public torch::nn::Module {
 public:
  explicit WanEncoderImpl(const WanVaeConfig& c) {
    conv_in_ = register_module("conv_in", std::make_shared<wan_vae::Conv>(3, c.base_dim, wan_vae::kCube));
    const auto blocks = register_module("down_blocks", std::make_shared<torch::nn::Module>());
    std::int64_t in = c.base_dim, index = 0;
    const auto add = [&](const auto& block) {
      const auto own = blocks->register_module(std::to_string(index++), block);
      steps_.push_back([own](const torch::Tensor& x, wan_vae::History& history) { return own->forward(x, history); });
    };
    for (std::size_t level = 0; level < c.dim_mult.size(); ++level) {
      const std::int64_t out = c.base_dim * c.dim_mult[level];
      for (std::int64_t i = 0; i < c.num_res_blocks; ++i, in = out) add(std::make_shared<wan_vae::Residual>(in, out));
      if (level + 1 < c.dim_mult.size()) add(std::make_shared<wan_vae::Down>(out, c.temperal_downsample[level]));
    }
    middle_ = register_module("mid_block", std::make_shared<wan_vae::Middle>(in));
    norm_ = register_module("norm_out", std::make_shared<wan_vae::ChannelNorm>(in, 3));
    conv_out_ = register_module("conv_out", std::make_shared<wan_vae::Conv>(in, 2 * c.z_dim, wan_vae::kCube));
  }
  torch::Tensor forward(torch::Tensor x, wan_vae::History& history) {
    x = conv_in_->causal(x, history);
    for (const wan_vae::Step& step : steps_) x = step(x, history);
    return conv_out_->causal(middle_->forward(x, history), history, norm_.get());
  }

 private:
  std::shared_ptr<wan_vae::Conv> conv_in_, conv_out_;
  std::vector<wan_vae::Step> steps_;
  std::shared_ptr<wan_vae::Middle> middle_;
  std::shared_ptr<wan_vae::ChannelNorm> norm_;
};

class WanDecoderImpl : public torch::nn::Module {
 public:
  explicit WanDecoderImpl(const WanVaeConfig& c) {
    std::int64_t in = c.base_dim * c.dim_mult.back();
    conv_in_ = register_module("conv_in", std::make_shared<wan_vae::Conv>(c.z_dim, in, wan_vae::kCube));
    middle_ = register_module("mid_block", std::make_shared<wan_vae::Middle>(in));
    const auto blocks = register_module("up_blocks", std::make_shared<torch::nn::Module>());
    const std::size_t levels = c.dim_mult.size();
    for (std::size_t level = 0; level < levels; ++level) {
      const auto block = blocks->register_module(std::to_string(level), std::make_shared<torch::nn::Module>());
      const auto resnets = block->register_module("resnets", std::make_shared<torch::nn::Module>());
      const std::int64_t out = c.base_dim * c.dim_mult[levels - 1 - level];
      for (std::int64_t i = 0; i <= c.num_res_blocks; ++i, in = out) {
        const auto own = resnets->register_module(std::to_string(i), std::make_shared<wan_vae::Residual>(in, out));
        steps_.push_back([own](const torch::Tensor& x, wan_vae::History& history) { return own->forward(x, history); });
      }
      if (level + 1 == levels) continue;
      const auto up =
          block->register_module("upsamplers", std::make_shared<torch::nn::Module>())
              ->register_module("0", std::make_shared<wan_vae::Up>(out, c.temperal_downsample[levels - 2 - level]));
      steps_.push_back([up](const torch::Tensor& x, wan_vae::History& history) { return up->forward(x, history); });
      in = out / 2;
    }
    norm_ = register_module("norm_out", std::make_shared<wan_vae::ChannelNorm>(in, 3));
    conv_out_ = register_module("conv_out", std::make_shared<wan_vae::Conv>(in, 3, wan_vae::kCube));
  }
  torch::Tensor forward(torch::Tensor x, wan_vae::History& history) {
    x = middle_->forward(conv_in_->causal(x, history), history);
    for (const wan_vae::Step& step : steps_) x = step(x, history);
    return conv_out_->causal(x, history, norm_.get());
  }

 private:
  std::shared_ptr<wan_vae::Conv> conv_in_, conv_out_;
  std::vector<wan_vae::Step> steps_;
  std::shared_ptr<wan_vae::Middle> middle_;
  std::shared_ptr<wan_vae::ChannelNorm> norm_;
};

WanVaeImpl::WanVaeImpl(const WanVaeConfig& config) : config_(config) {
  check(config_);
  encoder_ = register_module("encoder", std::make_shared<WanEncoderImpl>(config_));
  decoder_ = register_module("decoder", std::make_shared<WanDecoderImpl>(config_));
  quant_conv_ = register_module("quant_conv",
                                std::make_shared<wan_vae::Conv>(2 * config_.z_dim, 2 * config_.z_dim, wan_vae::kPoint));
  post_quant_conv_ = register_module("post_quant_conv",
                                     std::make_shared<wan_vae::Conv>(config_.z_dim, config_.z_dim, wan_vae::kPoint));
}

WanVaeImpl::~WanVaeImpl() = default;

torch::Tensor WanVaeImpl::row(const std::vector<double>& values, const torch::Tensor& like) const {
  return torch::tensor(values, torch::kDouble).to(like.device(), like.scalar_type()).view({1, -1, 1, 1, 1});
}

torch::Tensor WanVaeImpl::normalized(const torch::Tensor& z) const {
  return (z - row(config_.latents_mean, z)) / row(config_.latents_std, z);
}

torch::Tensor WanVaeImpl::denormalized(const torch::Tensor& latents) const {
  return latents * row(config_.latents_std, latents) + row(config_.latents_mean, latents);
}

WanVaeImpl::Moments WanVaeImpl::moments(const torch::Tensor& video, bool drop_rest) {
  const std::int64_t each = config_.time_factor(), side = config_.space_factor();
  if (video.dim() != 5 || video.size(1) != 3 || video.size(2) < 1)
    fail(kWanVaeEntry, ": the video has shape ", c10::str(video.sizes()), ", expected [B, 3, frames, rows, columns]");
  if (video.size(3) % side != 0 || video.size(4) % side != 0)
    fail(kWanVaeEntry, ": the video has ", video.size(3), " x ", video.size(4), " pixels, expected multiples of ",
         side);
  const std::int64_t chunks = (video.size(2) - 1) / each;
  if (!drop_rest && video.size(2) != 1 + each * chunks)
    fail(kWanVaeEntry, ": the video has ", video.size(2), " frames, expected ", 1 + each * chunks, " or ",
         1 + each * (chunks + 1), ": one and a multiple of ", each);
  wan_vae::History history(frames_of(video));
  std::vector<torch::Tensor> parts;
  for (std::int64_t chunk = 0; chunk <= chunks; ++chunk) {
    history.begin_chunk();
    const torch::Tensor frames =
        chunk == 0 ? wan_vae::frames_of(video, 0, 1) : wan_vae::frames_of(video, 1 + each * (chunk - 1), each);
    parts.push_back(encoder_->forward(frames, history));
  }
  const std::vector<torch::Tensor> both = quant_conv_->pointwise(torch::cat(parts, 2), history.in_rows()).chunk(2, 1);
  return {both[0], both[1]};
}

WanVaeFrames WanVaeImpl::frames_of(const torch::Tensor& x) const {
  if (x.size(0) != 1 || torch::GradMode::is_enabled()) return WanVaeFrames::kPlain;
  if (frames_) return *frames_;
  if (!x.is_cuda()) return WanVaeFrames::kPlain;
  // cuDNN 9.8 to 9.14 cannot convolve over frames in 16 bits: PyTorch would unfold the whole video.
  const long version = at::globalContext().versionCuDNN();
  return version >= 90800 && version < 91500 ? WanVaeFrames::kImages : WanVaeFrames::kRows;
}

void WanVaeImpl::expect_latents(const torch::Tensor& z) const {
  if (z.dim() != 5 || z.size(1) != config_.z_dim || z.size(2) < 1)
    fail(kWanVaeEntry, ": latents have shape ", c10::str(z.sizes()), ", expected [B, ", config_.z_dim,
         ", frames, rows, columns]");
}

torch::Tensor WanVaeImpl::decode(const torch::Tensor& latents) {
  expect_latents(latents);
  return decode_raw(denormalized(latents));
}

void WanVaeImpl::decode_raw_each(const torch::Tensor& z, const TakeFrames& take) {
  wan_vae::History history(frames_of(z));
  const torch::Tensor x = post_quant_conv_->pointwise(z, history.in_rows());
  for (std::int64_t frame = 0; frame < x.size(2); ++frame) {
    history.begin_chunk();
    take(decoder_->forward(wan_vae::frames_of(x, frame, 1), history));
  }
}

void WanVaeImpl::decode_each(const torch::Tensor& latents, const TakeFrames& take) {
  expect_latents(latents);
  decode_raw_each(denormalized(latents), take);
}

torch::Tensor WanVaeImpl::decode_raw(const torch::Tensor& z) {
  expect_latents(z);
  std::vector<torch::Tensor> parts;
  decode_raw_each(z, [&](const torch::Tensor& frames) { parts.push_back(frames); });
  return torch::cat(parts, 2);
}

namespace {

// Tiles of `in` through `work`, blended where they overlap. Sizes in pixels of `in` and of the result.
struct TilePlan {
  std::array<std::int64_t, 2> from_size, from_stride, to_size, to_stride, whole;  // rows, columns
};

// The head of `tile` along `axis` becomes a mix with the tail of `before`.
void blend(const torch::Tensor& before, torch::Tensor& tile, std::int64_t extent, std::int64_t axis) {
  extent = std::min({extent, before.size(axis), tile.size(axis)});
  if (extent < 1) return;
  std::vector<std::int64_t> shape(5, 1);
  shape[static_cast<std::size_t>(axis)] = extent;
  const torch::Tensor weight = (torch::arange(extent, tile.options()) / static_cast<double>(extent)).view(shape);
  const torch::Tensor tail = before.narrow(axis, before.size(axis) - extent, extent),
                      head = tile.narrow(axis, 0, extent);
  tile = torch::cat({tail * (1 - weight) + head * weight, tile.narrow(axis, extent, tile.size(axis) - extent)}, axis);
}

template <class F>
torch::Tensor in_tiles(const torch::Tensor& in, const TilePlan& plan, const F& work) {
  std::vector<std::vector<torch::Tensor>> rows;
  for (std::int64_t y = 0; y < in.size(3); y += plan.from_stride[0]) {
    std::vector<torch::Tensor> row;
    for (std::int64_t x = 0; x < in.size(4); x += plan.from_stride[1])
      row.push_back(work(in.narrow(3, y, std::min(plan.from_size[0], in.size(3) - y))
                             .narrow(4, x, std::min(plan.from_size[1], in.size(4) - x))));
    rows.push_back(std::move(row));
  }
  std::vector<torch::Tensor> bands;
  for (std::size_t y = 0; y < rows.size(); ++y) {
    std::vector<torch::Tensor> parts;
    for (std::size_t x = 0; x < rows[y].size(); ++x) {
      torch::Tensor& tile = rows[y][x];
      if (y > 0) blend(rows[y - 1][x], tile, plan.to_size[0] - plan.to_stride[0], 3);
      if (x > 0) blend(rows[y][x - 1], tile, plan.to_size[1] - plan.to_stride[1], 4);
      parts.push_back(tile.narrow(3, 0, std::min(plan.to_stride[0], tile.size(3)))
                          .narrow(4, 0, std::min(plan.to_stride[1], tile.size(4))));
    }
    bands.push_back(torch::cat(parts, 4));
  }
  return torch::cat(bands, 3).narrow(3, 0, plan.whole[0]).narrow(4, 0, plan.whole[1]);
}

void expect_tiles(const WanVaeTiles& tiles, std::int64_t side) {
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t size = tiles.size[axis], stride = tiles.stride[axis];
    if (size < side || size % side != 0 || stride < side || stride % side != 0 || stride > size)
      fail(kWanVaeEntry, ": tiles of ", size, " pixels every ", stride, ", expected multiples of ", side,
           ", the second not above the first");
  }
}

}  // namespace

torch::Tensor WanVaeImpl::mean_tiled(const torch::Tensor& video, const WanVaeTiles& tiles) {
  const std::int64_t side = config_.space_factor();
  expect_tiles(tiles, side);
  const auto latent = [&](const std::array<std::int64_t, 2>& pixels) {
    return std::array<std::int64_t, 2>{pixels[0] / side, pixels[1] / side};
  };
  const TilePlan plan{
      tiles.size, tiles.stride, latent(tiles.size), latent(tiles.stride), {video.size(3) / side, video.size(4) / side}};
  return in_tiles(video, plan, [&](const torch::Tensor& tile) { return moments(tile).mean; });
}

torch::Tensor WanVaeImpl::decode_raw_tiled(const torch::Tensor& z, const WanVaeTiles& tiles) {
  const std::int64_t side = config_.space_factor();
  expect_tiles(tiles, side);
  const auto latent = [&](const std::array<std::int64_t, 2>& pixels) {
    return std::array<std::int64_t, 2>{pixels[0] / side, pixels[1] / side};
  };
  const TilePlan plan{
      latent(tiles.size), latent(tiles.stride), tiles.size, tiles.stride, {z.size(3) * side, z.size(4) * side}};
  return in_tiles(z, plan, [&](const torch::Tensor& tile) { return decode_raw(tile); });
}

}  // namespace mhla
