// Plans of the causal kernels of `sm80` and `sm90`, as pure functions of the shape.
#pragma once

#include <string>
#include <vector>

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla {
struct Problem;
}

namespace mhla::sm80 {

// Parts of the columns of v, each the work of a unit: at most 128 columns, as equal as multiples of 8 allow. E: padded.
constexpr std::int64_t column_parts(std::int64_t E) {
  for (std::int64_t parts = E / 128 > 0 ? (E + 127) / 128 : 1; parts < E / 8; ++parts) {
    if (E % (8 * parts) == 0) return parts;
  }
  return E / 8 > 0 ? E / 8 : 1;
}

// Sequences that share launches, each with as many chunks as the longest of them: the others end in empty ones.
struct SequenceGroup {
  std::int64_t first, count, chunks;  // of SequencePlan::ranges
  std::int64_t before;                // chunks of all sequences of the groups before
};

// Packed sequences, longest first, without empty ones. Those of a group have more than half of the chunks of its first:
// less than half of its chunks are empty, and 1024 chunks make at most 11 groups. Bits do not depend on it: a chunk
// never looks at a later one. Without cu_seqlens one group of B sequences, and no ranges.
struct SequencePlan {
  std::vector<TokenRange> ranges;
  std::vector<SequenceGroup> groups;
  std::int64_t chunks = 0;  // of all sequences
};
SequencePlan sequence_plan(const Problem& problem);

// Why the kernels do not take a problem in the memory of a card that can run them, or empty.
std::string fit_causal_problem(const Problem& problem);

}  // namespace mhla::sm80
