// Batches from a token set, in an order fixed by (seed, epoch): the same from any cursor on, without threads.
//   packed        documents cut at `length`, shuffled, one behind the other: one row of batch_size * length tokens and
//                 cu_seqlens, so that no document sees another. One that a batch's end cuts goes on in the next batch.
//   concatenated  windows of `length` over all documents as they lie, shuffled: batch_size rows, as published
// A token's target is the next one of its document, behind the last one the token that opens a document, or kNoTarget.
// What fills no batch at the end of an epoch is left out.
#pragma once

#include "mhla/data/token_batches.h"
#include "mhla/data/token_set.h"

namespace mhla {

struct TokenLoaderOptions {
  std::int64_t batch_size = 8, length = 2048;
  bool packed = true;
  bool shuffle = true;
  std::uint64_t seed = 0;
  int rank = 0, ranks = 1;  // of each ranks * per_rank batches, this process takes per_rank, from rank * per_rank on
  int per_rank = 1;
  Cursor start;  // position: tokens of the epoch, all ranks together
};

class TokenLoader final : public TokenBatches {
 public:
  TokenLoader(TokenSet set, TokenLoaderOptions options);
  void next(TokenBatch& batch) override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return stream_ / step(); }
  [[nodiscard]] const TokenSet& set() const { return set_; }

 private:
  struct Piece {
    std::int64_t begin, count;  // tokens of the set
  };
  [[nodiscard]] std::int64_t step() const {
    return options_.batch_size * options_.length * options_.ranks * options_.per_rank;
  }
  void plan(std::int64_t epoch);
  TokenSet set_;
  TokenLoaderOptions options_;
  std::vector<Piece> pieces_;         // in the order of the set
  std::vector<char> last_;            // whether a piece ends its document
  std::vector<std::int64_t> order_;   // of the epoch
  std::vector<std::int64_t> places_;  // [pieces + 1]: where in the epoch each begins
  std::int64_t planned_ = -1, stream_ = 0;
  Cursor at_;
  int turn_ = 0;  // which of this rank's batches at at_
};

}  // namespace mhla
