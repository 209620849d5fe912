// A TokenBatch as tensors where the model is. Where few tokens have a target, as in recall, those alone go on to the
// head and the loss: of 256 tokens and a vocabulary of 8192 most of the work would be logits that nobody asks for.
#pragma once

#include "mhla/data/token_batches.h"
#include "mhla/train/torch.h"

namespace mhla::train {

struct LmBatch {
  torch::Tensor tokens;            // [rows, length] i64
  torch::Tensor maybe_cu_seqlens;  // [S + 1] i64, on the host
  torch::Tensor maybe_places;      // [n] i64: the tokens of rows * length that have a target; none: take all
  torch::Tensor targets;           // [n], or [rows, length] with kNoTarget
  std::int64_t known = 0;          // tokens that have a target

  // What `targets` are the targets of: [n, dim], or hidden itself.
  [[nodiscard]] torch::Tensor asked(const torch::Tensor& hidden /* [rows, length, dim] */) const {
    return maybe_places.defined() ? hidden.flatten(0, 1).index_select(0, maybe_places) : hidden;
  }
};

// Keeps tokens and targets [first, first + count) of every row: the part of one process. Targets are found before, so
// that of the last token may be across the cut.
void cut_columns(TokenBatch& batch, std::int64_t first, std::int64_t count);

// A copy: `batch` may be filled again at once.
LmBatch batch_on(const torch::Device& device, const TokenBatch& batch);

}  // namespace mhla::train
