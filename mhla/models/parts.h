// What the blocks of several models share.
#pragma once

#include "mhla/modules/attention.h"
#include "mhla/modules/norms.h"

namespace mhla {

// LayerNorm over the last axis, or RMSNorm, which has no bias.
class TokenNormImpl : public torch::nn::Module {
 public:
  explicit TokenNormImpl(std::int64_t size, bool rms = false, double eps = 1e-6);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight, bias;  // [size]

 private:
  double eps_;
};
TORCH_MODULE(TokenNorm);

// Batch normalisation of [B, C, rows, columns] with running statistics, and without the count that LibTorch keeps
// beside them: every tensor of a model is a float with axes.
class BatchNormImpl : public torch::nn::Module {
 public:
  explicit BatchNormImpl(std::int64_t size);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight, bias, running_mean, running_var;  // [size]
};
TORCH_MODULE(BatchNorm);

// fc2(gelu(fc1(x))), the exact GELU.
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(std::int64_t dim, std::int64_t width, double dropout);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Linear fc1_, fc2_;
  double dropout_;
};
TORCH_MODULE(Mlp);

// In training each sample of the batch keeps x / (1 - rate) or gets 0.
torch::Tensor drop_path(const torch::Tensor& x, double rate, bool training);

// Rate of block `index` of `count`: from 0 to `last`.
double drop_path_rate(double last, std::int64_t index, std::int64_t count);

// The start of published vision models: linear weights normal with deviation 0.02, biases 0. Feature maps and the steps
// of Mamba keep their own.
void init_linears(torch::nn::Module& module, double deviation = 0.02);

// [rows * columns, dim]: sines and cosines of the row in the first half of the channels, of the column in the second,
// at dim / 4 frequencies from 1 to 1e-4 each.
torch::Tensor sincos_positions(std::int64_t rows, std::int64_t columns, std::int64_t dim);

// Blocks of `own` parameters that come nearest to `blocks` of `wanted` parameters, at least one.
std::int64_t nearest_depth(std::int64_t own, std::int64_t wanted, std::int64_t blocks);
// Throws when `count` parameters are more than 3 % off those of the same model with softmax attention.
void expect_matched(const char* entry, std::string_view attention, std::int64_t count, std::int64_t wanted);

// down_proj(silu(gate_proj(x)) * up_proj(x)), without biases.
class SwigluImpl : public torch::nn::Module {
 public:
  SwigluImpl(std::int64_t dim, std::int64_t width);
  torch::Tensor forward(const torch::Tensor& x);
  // x + forward(norm(x)) for a few rows of f32 on a GPU without gradients, bf16 weights: the norm and the sum in the
  // kernels of the products (ops::linear_rows). Undefined: not for these.
  torch::Tensor few_rows(const torch::Tensor& x, const RmsNorm& norm);

 private:
  torch::nn::Linear gate_{nullptr}, up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Swiglu);

}  // namespace mhla
