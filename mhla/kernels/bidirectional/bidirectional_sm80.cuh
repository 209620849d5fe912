// What the bidirectional form of `sm80` and `sm90` launches from files of its own, so that each compiles within a
// minute.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

struct Gradients;

// Forward where plan.stages > 0: all of a.units, from beginning to end.
void launch_fused(const Arguments& a, const FusedPlan& plan, cudaStream_t stream);

// With q_den and k_den: launch_summaries() with z of k_den; a.maybe_den from q_den and z~, z~ itself to `maybe_copy`
// [units, M, D]; phase 3 with these denominators. `a` says that nothing is normalised: the other kernels leave z alone.
void launch_den_summaries(const Arguments& a, const Strided<const Bf16>& k_den, cudaStream_t stream);
void launch_denominators(const Arguments& a, const Strided<const Bf16>& q_den, Bf16* maybe_copy, cudaStream_t stream);
void launch_den_readout(const Arguments& a, cudaStream_t stream);
// Backward: dq and dS~, with the gradients of denominators to g.maybe_dden; dz~ = sum_t dden_t q_den_t beside dS~; the
// gradients of q_den (with the copy of z~) and of k_den (with dz beside dS).
void launch_den_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);
void launch_den_sums(const Arguments& a, const Strided<const Bf16>& x, const float* maybe_factor, Bf16* summaries,
                     cudaStream_t stream);
void launch_q_den_gradient(const Arguments& a, const Strided<const Bf16>& q_den, const float* dden, const Bf16* z,
                           const Strided<Bf16>& out, cudaStream_t stream);
void launch_k_den_gradient(const Arguments& a, const Strided<const Bf16>& k_den, const Strided<Bf16>& out,
                           cudaStream_t stream);

// The tiles of a problem with q_den and k_den as a type: who rotates has applied the map before.
template <class F>
void with_den_spec(const Arguments& a, const F& f) {
  with_tiles(a, [&](auto rows, auto columns, bool filled) {
    constexpr int kRows = rows, kColumns = columns;
    if constexpr (kRows == 4 || kRows == 8) {
      if (filled && a.map == FeatureMap::kIdentity) return f(Spec<kRows, kColumns, Known::kIdentity>{});
    }
    f(Spec<kRows, kColumns, Known::kNothing>{});
  });
}

// Backward of short sequences (over_pairs()): g.weights and g.parts as bidirectional_backward_sm80.cu takes them.
void launch_pair_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream);

}  // namespace mhla::sm80
