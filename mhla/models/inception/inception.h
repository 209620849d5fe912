// Inception-v3 as FID knows it: the network of 2015-12-05 with TensorFlow 1's resizing, 1008 logits. It is not
// torchvision's: average pools leave the padding out, the last block has a max pool, batch norm adds 1e-3, and an image
// is resized without a half-pixel shift and without antialiasing. Parameters have torch-fidelity's names
// (weights-inception-2015-12-05), converted to safetensors by the user. For inference only.
#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "mhla/models/parts.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

// relu(batch_norm(conv(x)))
struct InceptionConvSpec {
  const char* name;
  std::int64_t out;
  std::int64_t rows = 1, columns = 1;  // of the kernel
  std::int64_t stride = 1;
  bool padded = true;  // so that stride 1 keeps the size
};

class InceptionConvImpl : public torch::nn::Module {
 public:
  InceptionConvImpl(std::int64_t in, const InceptionConvSpec& spec);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv_{nullptr};
  BatchNorm bn_{nullptr};
};
TORCH_MODULE(InceptionConv);

enum class InceptionPool : std::uint8_t {
  kAverage,  // 3 x 3, stride 1, then a convolution
  kMax,      // the same with the maximum
  kMaxHalf,  // 3 x 3, stride 2, no convolution
};

// A chain of convolutions; the last two may stand side by side on what comes before them.
struct InceptionBranchSpec {
  std::vector<InceptionConvSpec> chain;
  std::vector<InceptionConvSpec> fork;  // none or two
};

// Branches side by side, their channels one after the other; the pool comes last.
class InceptionBlockImpl : public torch::nn::Module {
 public:
  InceptionBlockImpl(std::int64_t in, const std::vector<InceptionBranchSpec>& branches, InceptionPool pool,
                     std::int64_t pool_out);
  torch::Tensor forward(const torch::Tensor& x, torch::Tensor* maybe_first = nullptr);  // of the first branch
  [[nodiscard]] std::int64_t out() const { return out_; }

 private:
  struct Branch {
    std::vector<InceptionConv> chain, fork;
  };
  std::vector<Branch> branches_;
  InceptionPool pool_;
  InceptionConv pool_conv_{nullptr};
  std::int64_t out_ = 0;
};
TORCH_MODULE(InceptionBlock);

struct InceptionFeatures {
  torch::Tensor f64, f192, f768, f2048;  // [B, 64] ...: means over places after the stages of so many channels
  torch::Tensor logits_unbiased;         // [B, 1008]: without the bias; the Inception score takes these
  torch::Tensor logits;                  // [B, 1008]
  torch::Tensor spatial;                 // [B, 17 * 17 * 7]: first 7 channels of Mixed_6d.branch1x1, row by row (sFID)
};

class InceptionImpl : public torch::nn::Module {
 public:
  InceptionImpl();
  InceptionFeatures forward(const torch::Tensor& images /* u8 [B, 3, rows, columns] */);

 private:
  std::vector<InceptionConv> stem_;
  std::vector<std::pair<std::string, InceptionBlock>> blocks_;
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(Inception);

// What enters the network: 299 x 299 by TensorFlow 1's bilinear resizing (source = i * in / out), then (x - 128) / 128.
torch::Tensor inception_input(const torch::Tensor& images /* u8 [B, 3, rows, columns] */);

// In evaluation mode, without gradients. Every tensor of the network must be in the file, and nothing else.
Inception load_inception(const std::filesystem::path& path);

// Weights by a formula of name and index, for tests without a file: the recorded cases were made with them.
Weights inception_formula_weights(const Inception& model);
Inception formula_inception();

}  // namespace mhla
