// Matrices for tests.
#pragma once

#include "mhla/analysis/matrix.h"
#include "mhla/testing/random.h"

namespace mhla {

inline Matrix normal(Random& random, std::int64_t rows, std::int64_t columns) {
  Matrix matrix(rows, columns);
  for (double& value : matrix.values) value = random.normal();
  return matrix;
}

}  // namespace mhla
