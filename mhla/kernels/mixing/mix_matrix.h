// Internal to the mixing tools: a mix view checked once and held as dense f64, [heads, rows, rows].
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

struct MixMatrix {
  std::int64_t heads = 0;
  std::int64_t rows = 0;
  std::vector<double> values;  // [heads, rows, rows]

  MixMatrix(std::int64_t heads, std::int64_t rows);
  [[nodiscard]] double* row(std::int64_t head, std::int64_t i) { return values.data() + (head * rows + i) * rows; }
  [[nodiscard]] const double* row(std::int64_t head, std::int64_t i) const {
    return values.data() + (head * rows + i) * rows;
  }
};

struct MixSize {
  std::int64_t heads, rows;  // heads is 1 for a view of rank 2
};

// Rank 2 or 3, square, f32 or f64, on the CPU, with memory. Messages open with `entry` and call the view `name`.
MixSize check_mix_view(const ConstView& mix, const char* entry, const char* name);
// The same for a matrix that will be written: no two elements may share memory through a stride of 0.
MixSize check_mix_output(const ConstView& mix, const char* entry, const char* name);

MixMatrix load_mix(const ConstView& mix, const char* entry, const char* name);
void store_mix(const MixMatrix& matrix, const View& mix);  // sizes agree; rounds to the view's dtype

// Throws on the first NaN or infinity; with `causal` only entries on and below the diagonal are looked at.
void check_finite(const MixMatrix& matrix, bool causal, const char* entry, const char* name);

}  // namespace mhla
