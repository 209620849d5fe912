// Batches for a language model, wherever they come from: a token set (token_loader.h) or sequences made on the fly
// (mqar_loader.h). Without end, in an order fixed by a seed, the same from any cursor on.
#pragma once

#include "mhla/data/loader.h"

namespace mhla {

inline constexpr std::int64_t kNoTarget = -100;  // as LibTorch's cross-entropy ignores

struct TokenBatch {
  std::int64_t rows = 0, length = 0;          // packed: one row
  std::vector<std::int64_t> tokens, targets;  // [rows, length]
  std::vector<std::int64_t> cu_seqlens;       // packed: 0, ..., length
  std::int64_t epoch = 0;
  Cursor next;  // resume here once this batch has been used
};

class TokenBatches {
 public:
  virtual ~TokenBatches() = default;
  virtual void next(TokenBatch& batch) = 0;  // `batch` gives its memory back: pass the same one again
  [[nodiscard]] virtual std::int64_t batches_per_epoch() const = 0;
};

}  // namespace mhla
