// What a step of P ranks sends, by formula (docs/scaling.md). `mhla bench scale` counts it beside.
#pragma once

namespace mhla::distributed {

// Bytes that each rank sends in a step of a model with so many numbers in its gradients, f32:
//   gradients   2 (1 - 1/P) 4 n   as a ring of sums, and as all-to-all and all-gather with a fixed tree
//   weights       (1 - 1/P) 4 n   with a sharded optimiser: each rank hands over the range that it has updated
inline double step_bytes(double numbers, int ranks, bool shard_optimizer) {
  return (shard_optimizer ? 3.0 : 2.0) * (1.0 - 1.0 / ranks) * 4.0 * numbers;
}

}  // namespace mhla::distributed
