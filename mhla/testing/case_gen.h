// RapidCheck generators of small cases: any layout, any options, sizes that shrink. Included by tests
// only. Seeds are fixed unless the environment says otherwise: include this and call fix_seed() first.
#pragma once

#include <rapidcheck.h>

#include <cstdlib>
#include <ostream>

#include "mhla/testing/cases.h"

namespace mhla {

inline std::ostream& operator<<(std::ostream& text, const Case& c) { return text << c.name(); }

// RapidCheck reads RC_PARAMS once, at its first property; the value a user sets wins.
inline bool fix_seed(const char* params = "seed=20260107 max_success=150") {
  setenv("RC_PARAMS", params, 0);
  return true;
}

namespace case_gen {

inline std::int64_t size(std::int64_t low, std::int64_t high) {  // both included
  return *rc::gen::inRange<std::int64_t>(low, high + 1);
}

// Blocks of at most `step` tokens on an axis of `grid`: such a count never leaves a block empty.
inline std::int64_t count(std::int64_t grid) {
  const std::int64_t step = size(1, grid);
  return (grid + step - 1) / step;
}

inline void layout(Case& c) {
  const int rank = c.form == Form::kCausal ? 1 : static_cast<int>(size(1, 3));
  if (rank == 1) {
    c.layout = Layout::line(size(1, 7));
    c.N = size(1, 20);
    return;
  }
  const std::int64_t frames = rank == 3 ? size(1, 3) : 1, rows = size(1, 4), columns = size(1, 5);
  c.layout = rank == 2 ? Layout::grid2d(rows, columns, count(rows), count(columns))
                       : Layout::grid3d({frames, rows, columns}, {count(frames), count(rows), count(columns)});
  c.N = frames * rows * columns;
}

inline void packing(Case& c) {
  c.B = 1;
  c.cu_seqlens = {0};
  for (std::int64_t cuts = size(0, 4); cuts > 0; --cuts) c.cu_seqlens.push_back(size(c.cu_seqlens.back(), c.N));
  c.cu_seqlens.push_back(c.N);
}

}  // namespace case_gen

// A case that every entry point accepts. Denominators stay away from 0.
inline rc::Gen<Case> any_case(Form form) {
  return rc::gen::exec([form] {
    using case_gen::size;
    Case c;
    c.form = form;
    case_gen::layout(c);
    c.B = size(1, 3), c.Hkv = size(1, 2), c.H = c.Hkv * size(1, 3), c.D = size(1, 5), c.E = size(1, 5);
    c.feature_map = static_cast<FeatureMap>(size(0, 3));
    c.normalizer = static_cast<Normalizer>(size(0, form == Form::kCausal ? 1 : 2));
    c.eps = 0.1;
    if (size(0, 1) != 0) c.scale = 0.6;
    c.den = c.normalizer != Normalizer::kNone && size(0, 1) != 0;
    c.per_head = size(0, 1) != 0;
    if (c.layout.rank == 1 && size(0, 2) == 0) case_gen::packing(c);
    for (const Sequence& sequence : c.sequences()) {
      if (c.normalizer == Normalizer::kOfficial && !BlockMap(c.layout, sequence.length).equal_blocks())
        c.normalizer = Normalizer::kPaper;
    }
    if (c.layout.rank == 1 && size(0, 2) == 0) c.rows = c.blocks() + size(0, 2);
    if (form == Form::kCausal && size(0, 2) == 0) c.rows = size(1, c.blocks()), c.extend = true;
    c.seed = static_cast<std::uint64_t>(size(1, 1000));
    return c;
  });
}

}  // namespace mhla
