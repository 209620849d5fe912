// One phase of the operator for some of its blocks: what a process of several computes (kernels/phases). All tensors
// here are contiguous, f32 (f64 for f64). A row has X numbers: S_b as [D][E], then z_b [D] where there is a normaliser.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/kernels/common/layout.h"

namespace mhla {

enum class Phase : std::uint8_t {
  kWhole,      // the operator in one call
  kSummaries,  // k, v: rows of the local blocks
  kOutput,     // q, all rows: out
  kQueries,    // dout, all rows: dq, dmix, and dP, the gradients of the local blocks' mixed summaries
  kKeys,       // dP of all blocks: dk, dv
};

struct Part {
  Phase phase = Phase::kWhole;
  std::int64_t tokens = 0;             // of the whole sequence
  std::int64_t first = 0, blocks = 0;  // the local ones
  ConstView gathered;                  // [M, B, Hkv, X] summaries, or [M, B, Hp, X] gradients for kKeys
  View own;                            // [blocks, B, Hkv, X] summaries, or [blocks, B, Hp, X] gradients of kQueries
  ConstView terms;                     // [B, N, H, 2]  of kKeys, causal form with a normaliser: scale / den, dden
  View own_terms;                      //               the same, from kQueries

  [[nodiscard]] bool given() const { return phase != Phase::kWhole; }
};

// Tokens of blocks [first, first + blocks) in raster order. A process that holds these blocks keeps its tokens so; in
// one dimension, and where whole slices of the first axis are held, they are consecutive.
std::vector<std::int64_t> tokens_of_blocks(const BlockMap& map, std::int64_t first, std::int64_t blocks);

}  // namespace mhla
