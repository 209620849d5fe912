// The parts of Wan's autoencoder: convolutions over frames that come in chunks, each with a history.
#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/modules/torch.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch.h"

namespace mhla::wan_vae {

// What convolutions remember of the frames before, in the order in which they are asked, and how frames lie.
class History {
 public:
  explicit History(WanVaeFrames frames) : frames_(frames) {}
  [[nodiscard]] bool in_rows() const { return frames_ != WanVaeFrames::kPlain; }
  [[nodiscard]] bool as_images() const { return frames_ == WanVaeFrames::kImages; }
  void begin_chunk() { next_ = 0; }
  // The place of the next one who asks; undefined in the first chunk.
  torch::Tensor& slot() {
    if (next_ == slots_.size()) slots_.emplace_back();
    return slots_[next_++];
  }

 private:
  std::deque<torch::Tensor> slots_;  // a place stays where it is when others come
  std::size_t next_ = 0;
  WanVaeFrames frames_;
};

// [1, C, T, H, W] as [T, H, W, C] and back; the second is a view.
inline torch::Tensor rows_of(const torch::Tensor& x) { return x.squeeze(0).permute({1, 2, 3, 0}).contiguous(); }
inline torch::Tensor from_rows(const torch::Tensor& rows) { return rows.permute({3, 0, 1, 2}).unsqueeze(0); }

inline torch::Tensor frames_of(const torch::Tensor& x, std::int64_t first, std::int64_t count) {
  return x.narrow(2, first, count);
}

class ChannelNorm : public torch::nn::Module {
 public:
  ChannelNorm(std::int64_t channels, std::int64_t axes) {
    std::vector<std::int64_t> shape{channels};
    shape.resize(static_cast<std::size_t>(axes) + 1, 1);
    gamma_ = register_parameter("gamma", torch::ones(shape));
  }
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& x) const { return along(x, 1, gamma_); }
  // silu(norm) of rows [T, H, W, C].
  void silu_into(const torch::Tensor& out, const torch::Tensor& rows) const {
    const torch::Tensor gamma = gamma_.flatten();
    // Beside the smallest length that counts, 1e-12, the epsilon of a mean of squares.
    if (!ops::norm_silu_into(out, rows, gamma, 1e-24 / static_cast<double>(gamma.size(0))))
      out.copy_(torch::silu(along(rows, -1, gamma)));
  }

 private:
  static torch::Tensor along(const torch::Tensor& x, std::int64_t axis, const torch::Tensor& gamma) {
    const torch::Tensor length = x.norm(2, {axis}, /*keepdim=*/true).clamp_min(1e-12);
    return x / length * std::sqrt(static_cast<double>(gamma.size(0))) * gamma;
  }
  torch::Tensor gamma_;
};

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

  // Frames [B, C, T, H, W], or silu(norm(frames)), after those in the history, which keeps the last two.
  torch::Tensor causal(const torch::Tensor& x, History& history, const ChannelNorm* norm = nullptr) const {
    torch::Tensor& before = history.slot();
    if (history.in_rows()) return causal_rows(rows_of(x), before, norm, history.as_images());
    const std::int64_t side = weight.size(-1) / 2;
    const torch::Tensor seen = norm == nullptr ? x : torch::silu(norm->forward(x));
    std::vector<std::int64_t> shape = seen.sizes().vec();
    shape[2] = 2;
    const torch::Tensor all = torch::cat({before.defined() ? before : torch::zeros(shape, seen.options()), seen}, 2);
    before = frames_of(all, all.size(2) - 2, 2);
    return torch::conv3d(all, weight, bias, 1, {0, side, side});
  }
  [[nodiscard]] torch::Tensor pointwise(const torch::Tensor& x, bool in_rows) const {
    if (!in_rows) return torch::conv3d(x, weight, bias);
    return from_rows(torch::linear(rows_of(x), weight.flatten(1), bias));
  }

  torch::Tensor weight, bias;

 private:
  torch::Tensor causal_rows(const torch::Tensor& rows, torch::Tensor& before, const ChannelNorm* norm,
                            bool as_images) const {
    const std::int64_t T = rows.size(0), H = rows.size(1), W = rows.size(2), C = rows.size(3);
    const std::int64_t side = weight.size(-1) / 2;
    const torch::Tensor all = torch::empty({T + 2, H, W, C}, rows.options());
    torch::Tensor old = all.narrow(0, 0, 2), own = all.narrow(0, 2, T);
    before.defined() ? old.copy_(before) : old.zero_();
    norm == nullptr ? (void)own.copy_(rows) : norm->silu_into(own, rows);
    before = all.narrow(0, T, 2).clone();  // a view would keep all frames
    if (!as_images) {
      const auto format = at::MemoryFormat::ChannelsLast3d;
      if (!weight.is_contiguous(format)) weight.set_data(weight.contiguous(format));
      return torch::conv3d(from_rows(all), weight, bias, 1, {0, side, side});
    }
    const torch::Tensor three = torch::cat({all.narrow(0, 0, T), all.narrow(0, 1, T), own}, -1);  // [T, H, W, 3 C]
    const torch::Tensor flat = weight.transpose(1, 2).flatten(1, 2).contiguous(at::MemoryFormat::ChannelsLast);
    return from_rows(torch::conv2d(three.permute({0, 3, 1, 2}), flat, bias, 1, side).permute({0, 2, 3, 1}));
  }
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
    const torch::Tensor y = conv2_->causal(conv1_->causal(x, history, norm1_.get()), history, norm2_.get());
    return y + (shortcut_ ? shortcut_->pointwise(x, history.in_rows()) : x);
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
      const torch::Tensor wide = torch::upsample_nearest2d(frames, {2 * frames.size(2), 2 * frames.size(3)});
      return torch::conv2d(wide, space_->weight, space_->bias, 1, 1);
    });
  }

 private:
  torch::Tensor doubled(const torch::Tensor& x, History& history) {
    torch::Tensor& begun = history.slot();
    const std::int64_t skipped = begun.defined() ? 0 : 1;  // the first frame of all
    begun = torch::empty({0}, x.options());
    if (x.size(2) == skipped) return history.slot(), x;
    const torch::Tensor pairs = time_->causal(frames_of(x, skipped, x.size(2) - skipped), history);
    const torch::Tensor two = history.in_rows()
                                  ? from_rows(rows_of(pairs)
                                                  .unflatten(-1, {2, x.size(1)})  // [T, H, W, 2, C]
                                                  .permute({0, 3, 1, 2, 4})
                                                  .flatten(0, 1))
                                  : pairs
                                        .unflatten(1, {2, x.size(1)})  // [B, 2, C, T, H, W]: frame, then the next
                                        .permute({0, 2, 3, 1, 4, 5})
                                        .flatten(2, 3);
    return skipped == 0 ? two : torch::cat({frames_of(x, 0, 1), two}, 2);
  }
  std::shared_ptr<Conv> space_, time_;
};

using Step = std::function<torch::Tensor(const torch::Tensor&, History&)>;

}  // namespace mhla::wan_vae
