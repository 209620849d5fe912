// Tensors one after another as one row of n numbers, cut into equal ranges: rank r of P keeps the numbers
//   [r c, (r + 1) c),  c = ceil(n / P), rounded up to a multiple of kAlign.
// A cut may go through a tensor, so that ranks have equal bytes however large an embedding is. Each tensor begins at a
// multiple of kAlign, the numbers in between belong to nobody: a cut tensor then falls into vectors and a remainder as
// the whole one does, and what is computed number by number has the same bits in parts as it has at once.
#pragma once

#include <vector>

#include "mhla/train/distributed/team.h"

namespace mhla::distributed {

inline constexpr std::int64_t kAlign = 64;  // numbers: four vectors of 16, LibTorch's widest loop

class FlatCut {
 public:
  // Numbers [begin, begin + count) of one tensor, which are [at, at + count) of a range.
  struct Part {
    std::size_t tensor = 0;
    std::int64_t begin = 0, count = 0, at = 0;
  };

  FlatCut(const std::vector<std::int64_t>& sizes, int rank, int ranks);
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] std::int64_t longest() const { return longest_; }  // c
  [[nodiscard]] std::int64_t length(int rank) const;               // of a range: c, or what is left
  [[nodiscard]] std::vector<Part> parts(int rank) const { return parts(rank, 0, length(rank)); }
  // Of the numbers [from, from + count) of a range.
  [[nodiscard]] std::vector<Part> parts(int rank, std::int64_t from, std::int64_t count) const;

 private:
  std::vector<std::int64_t> begins_, ends_;  // of the tensors in the row
  int rank_, ranks_;
  std::int64_t longest_;
};

// How much of a row is on its way at once, for all ranks together.
inline constexpr std::int64_t kRowPiece = 16 << 20;

// `tensors` are those of the cut, contiguous and of one type, and right in this rank's own range: right in all of them
// when it returns.
void complete(Team& team, const FlatCut& cut, const std::vector<at::Tensor>& tensors, const char* what,
              std::int64_t piece_bytes = kRowPiece);

// The numbers of all ranges in their order, piece by piece in host memory, for the rank that writes them to a file. All
// ranks call next() until it says false, and no longer.
class RowReader {
 public:
  // `mine` [length(rank)]: this rank's range.
  RowReader(Team& team, const FlatCut& cut, at::Tensor mine, const char* what, std::int64_t piece_bytes = kRowPiece);
  bool next();
  [[nodiscard]] const at::Tensor& piece() const { return piece_; }
  [[nodiscard]] std::vector<FlatCut::Part> parts() const { return cut_.parts(owner_, from_, piece_.numel()); }  // of it

 private:
  Team& team_;
  const FlatCut& cut_;
  at::Tensor mine_, piece_;
  const char* what_;
  std::int64_t most_;  // numbers of a piece
  int owner_ = 0;
  std::int64_t from_ = 0;  // of the piece, in the range of its owner
};

}  // namespace mhla::distributed
