// The parts of Wan's autoencoder: convolutions over frames that come in chunks, each with a history.
#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "mhla/modules/torch.h"
#include "mhla/ops/torch.h"

namespace mhla::wan_vae {

// What convolutions remember of the frames before, in the order in which they are asked.
class History {
 public:
  void begin_chunk() { next_ = 0; }
  // The place of the next one who asks; undefined in the first chunk.
  torch::Tensor& slot() {
    if (next_ == slots_.size()) slots_.emplace_back();
    return slots_[next_++];
  }

 private:
  std::deque<torch::Tensor> slots_;  // a place stays where it is when others come
  std::size_t next_ = 0;
};

inline torch::Tensor frames_of(const torch::Tensor& x, std::int64_t first, std::int64_t count) {
  return x.narrow(2, first, count);
}

// One convolution with its weights; kernels of 3 frames look back.
class Conv : public torch::nn::Module {
 public:
  Conv(std::int64_t in, std::int64_t out, std::vector<std::int64_t> kernel) {
    std::vector<std::int64_t> shape{out, in};
    std::int64_t taps = in;
    for (const std::int64_t side : kernel) shape.push_back(side), taps *= side;
    const double bound = 1.0 / std::sqrt(static_cast<double>(taps));
    weight = register_parameter("weight", torch::empty(shape).uniform_(-bound, bound));
    bias = register_parameter("bias", torch::empty({out}).uniform_(-bound, bound));
  }

  // Frames [B, C, T, H, W] behind those in `before`, which become the last two.
  torch::Tensor causal(const torch::Tensor& x, torch::Tensor& before) const {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[2] = 2;
    const torch::Tensor all = torch::cat({before.defined() ? before : torch::zeros(shape, x.options()), x}, 2);
    before = frames_of(all, all.size(2) - 2, 2);
    const std::int64_t side = weight.size(-1) / 2;
    return torch::conv3d(all, weight, bias, 1, {0, side, side});
  }
  [[nodiscard]] torch::Tensor pointwise(const torch::Tensor& x) const { return torch::conv3d(x, weight, bias); }

  torch::Tensor weight, bias;
};

class ChannelNorm : public torch::nn::Module {
 public:
  ChannelNorm(std::int64_t channels, std::int64_t axes) {
    std::vector<std::int64_t> shape{channels};
    shape.resize(static_cast<std::size_t>(axes) + 1, 1);
    gamma_ = register_parameter("gamma", torch::ones(shape));
  }
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& x) const {  // channels are axis 1
    const torch::Tensor length = x.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12);
    return x / length * std::sqrt(static_cast<double>(gamma_.size(0))) * gamma_;
  }

 private:
  torch::Tensor gamma_;
};

inline const std::vector<std::int64_t> kCube{3, 3, 3}, kPoint{1, 1, 1};

class Residual : public torch::nn::Module {
 public:
  Residual(std::int64_t in, std::int64_t out) {
    norm1_ = register_module("norm1", std::make_shared<ChannelNorm>(in, 3));
    conv1_ = register_module("conv1", std::make_shared<Conv>(in, out, kCube));
    norm2_ = register_module("norm2", std::make_shared<ChannelNorm>(out, 3));
    conv2_ = register_module("conv2", std::make_shared<Conv>(out, out, kCube));
    if (in != out) shortcut_ = register_module("conv_shortcut", std::make_shared<Conv>(in, out, kPoint));
  }
  torch::Tensor forward(const torch::Tensor& x, History& history) {
    torch::Tensor y = conv1_->causal(torch::silu(norm1_->forward(x)), history.slot());
    y = conv2_->causal(torch::silu(norm2_->forward(y)), history.slot());
    return y + (shortcut_ ? shortcut_->pointwise(x) : x);
  }

 private:
  std::shared_ptr<ChannelNorm> norm1_, norm2_;
  std::shared_ptr<Conv> conv1_, conv2_, shortcut_;
};

// Every frame by itself, [B, C, T, H, W] to [B T, C, H, W] and back.
template <class F>
torch::Tensor by_frame(const torch::Tensor& x, const F& f) {
  const std::int64_t B = x.size(0);
  const torch::Tensor flat = f(x.transpose(1, 2).flatten(0, 1));
  return flat.unflatten(0, {B, x.size(2)}).transpose(1, 2);
}

class FrameAttention : public torch::nn::Module {
 public:
  explicit FrameAttention(std::int64_t channels) {
    norm_ = register_module("norm", std::make_shared<ChannelNorm>(channels, 2));
    qkv_ = register_module("to_qkv", std::make_shared<Conv>(channels, 3 * channels, std::vector<std::int64_t>{1, 1}));
    proj_ = register_module("proj", std::make_shared<Conv>(channels, channels, std::vector<std::int64_t>{1, 1}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + by_frame(x, [&](const torch::Tensor& frames) {
             const torch::Tensor qkv = torch::conv2d(norm_->forward(frames), qkv_->weight, qkv_->bias);
             const std::vector<torch::Tensor> parts = qkv.flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1);
             const torch::Tensor out = ops::softmax_attention(parts[0], parts[1], parts[2], /*causal=*/false);
             const torch::Tensor image = out.squeeze(1).transpose(1, 2).reshape(frames.sizes());
             return torch::conv2d(image, proj_->weight, proj_->bias);
           });
  }

 private:
  std::shared_ptr<ChannelNorm> norm_;
  std::shared_ptr<Conv> qkv_, proj_;
};

class Middle : public torch::nn::Module {
 public:
  explicit Middle(std::int64_t channels) {
    const auto resnets = register_module("resnets", std::make_shared<torch::nn::Module>());
    first_ = resnets->register_module("0", std::make_shared<Residual>(channels, channels));
    last_ = resnets->register_module("1", std::make_shared<Residual>(channels, channels));
    attention_ = register_module("attentions", std::make_shared<torch::nn::Module>())
                     ->register_module("0", std::make_shared<FrameAttention>(channels));
  }
  torch::Tensor forward(const torch::Tensor& x, History& history) {
    return last_->forward(attention_->forward(first_->forward(x, history)), history);
  }

 private:
  std::shared_ptr<Residual> first_, last_;
  std::shared_ptr<FrameAttention> attention_;
};

// Half the sides, and half the frames where `in_time`.
class Down : public torch::nn::Module {
 public:
  Down(std::int64_t channels, bool in_time) {
    space_ = register_module("resample", std::make_shared<torch::nn::Module>())
                 ->register_module("1", std::make_shared<Conv>(channels, channels, std::vector<std::int64_t>{3, 3}));
    if (in_time)
      time_ =
          register_module("time_conv", std::make_shared<Conv>(channels, channels, std::vector<std::int64_t>{3, 1, 1}));
  }
  torch::Tensor forward(const torch::Tensor& x, History& history) {
    const torch::Tensor y = by_frame(x, [&](const torch::Tensor& frames) {
      return torch::conv2d(torch::constant_pad_nd(frames, {0, 1, 0, 1}), space_->weight, space_->bias, 2);
    });
    if (!time_) return y;
    torch::Tensor& last = history.slot();
    const bool first = !last.defined();
    const torch::Tensor all = first ? y : torch::cat({last, y}, 2), head = frames_of(y, 0, 1);
    last = frames_of(y, y.size(2) - 1, 1);
    if (all.size(2) < 3) return head;  // an image
    const torch::Tensor halved = torch::conv3d(all, time_->weight, time_->bias, {2, 1, 1});
    return first ? torch::cat({head, halved}, 2) : halved;
  }

 private:
  std::shared_ptr<Conv> space_, time_;
};

// Twice the sides with half the channels, and twice the frames where `in_time`.
class Up : public torch::nn::Module {
 public:
  Up(std::int64_t channels, bool in_time) {
    space_ =
        register_module("resample", std::make_shared<torch::nn::Module>())
            ->register_module("1", std::make_shared<Conv>(channels, channels / 2, std::vector<std::int64_t>{3, 3}));
    if (in_time)
      time_ = register_module("time_conv",
                              std::make_shared<Conv>(channels, 2 * channels, std::vector<std::int64_t>{3, 1, 1}));
  }
  torch::Tensor forward(const torch::Tensor& x, History& history) {
    const torch::Tensor y = time_ ? doubled(x, history) : x;
    return by_frame(y, [&](const torch::Tensor& frames) {
      const torch::Tensor wide = frames.repeat_interleave(2, 2).repeat_interleave(2, 3);
      return torch::conv2d(wide, space_->weight, space_->bias, 1, 1);
    });
  }

 private:
  torch::Tensor doubled(const torch::Tensor& x, History& history) {
    torch::Tensor &begun = history.slot(), &before = history.slot();
    const std::int64_t skipped = begun.defined() ? 0 : 1;  // the first frame of all
    begun = torch::empty({0}, x.options());
    if (x.size(2) == skipped) return x;
    const torch::Tensor pairs = time_->causal(frames_of(x, skipped, x.size(2) - skipped), before);
    const torch::Tensor two = pairs
                                  .unflatten(1, {2, x.size(1)})  // [B, 2, C, T, H, W]: frame, then the next
                                  .permute({0, 2, 3, 1, 4, 5})
                                  .flatten(2, 3);
    return skipped == 0 ? two : torch::cat({frames_of(x, 0, 1), two}, 2);
  }
  std::shared_ptr<Conv> space_, time_;
};

using Step = std::function<torch::Tensor(const torch::Tensor&, History&)>;

}  // namespace mhla::wan_vae
