// Forward of the causal form in bf16, candidates `sm80` and `sm90` (README.md): summaries of chunks and their mixed
// prefixes as in the bidirectional form (common/cuda/sm80_phases.cuh), then per tile of 64 queries
//   num = q~ P_i + sum_j (m_ii (q~ k~_j^T) below the diagonal) v_j     over the tiles j of keys of the chunk up to its
//   own
// Columns of v beyond 128 are units of their own. Tiles are aligned to the chunk, and nothing looks at the length of
// the sequence, so right padding and later tokens change no bit.
#include "mhla/core/workspace.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_slices_sm90.h"
#include "mhla/kernels/chunkwise/chunkwise_sm80.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_summaries_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"

namespace mhla {
namespace sm80 {

// acc += scores v over 16 keys, scores = m (q~ k~^T) for keys up to the query's own place. `key`: the first key's
// place.
template <class S>
__device__ inline void attend(const Arguments& p, const std::uint32_t (&q)[S::kRows][4], std::uint32_t keys,
                              const char* values, float diagonal, int query, int key, Readout<S>& x) {
  const int lane = threadIdx.x % 32;
  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= S::D(p)) break;
    std::uint32_t b[4];
    load_matrices(
        b, keys + (lane % 8 + lane / 16 * 8) * S::kPitch + step * 32 + lane / 8 % 2 * second_half(step, S::D(p)));
    feature_fragment(S::map(p), b);
    if (step * 16 + 8 >= S::D(p)) b[1] = b[3] = 0;
    multiply_add(scores[0], q[step], b[0], b[1]);
    multiply_add(scores[1], q[step], b[2], b[3]);
  }
  std::uint32_t a[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = query + lane / 4 + half * 8;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      float s[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[i] = key + tile * 8 + lane % 4 * 2 + i <= t ? scores[tile][2 * half + i] * diagonal : 0.0f;
        x.den[2 * half] += s[i];  // of this lane's keys: summed over the row at the end
      }
      a[tile * 2 + half] = pack_bf16(s[0], s[1]);
    }
  }
  if (key + 16 <= query + 1) {  // every key before every query
    multiply_rows<S::kColumns>(x.acc, a, shared_address(values) + lane % 16 * S::kPitch);
  } else {
    multiply_used<S::kColumns>(x.acc, a, values, S::kPitch, S::E(p),
                               [&](int t, int s) { return key + s <= query + t; });
  }
}

template <class S>
__global__ void __launch_bounds__(128, 2) causal_kernel(Arguments p, int query_tiles) {
  after_previous();
  constexpr int kTile = kPhaseTokens * S::kPitch;
  extern __shared__ __align__(16) char shared[];  // queries, keys, values, prefix
  char *queries = shared, *keys = shared + kTile, *values = shared + 2 * kTile, *prefix = shared + 3 * kTile;
  const int tile = blockIdx.x % query_tiles, index = blockIdx.x / query_tiles % p.M;
  const int row = blockIdx.x / query_tiles / p.M, unit = row / p.group, warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const Unit u(p, p.first_unit + unit);
  const int head = u.head * p.group + row % p.group, D = S::D(p), E = S::E(p);
  const BlockTokens block = u.block(p, index);
  const int size = static_cast<int>(block.size), first = tile * kPhaseTokens;
  if (first >= size) return;
  const Bf16* q = p.q.at(u.batch, head) + block.origin * p.q.token;
  const Bf16 *k = u.k(p) + block.origin * p.k.token, *v = u.v(p) + block.origin * p.v.token;
  copy_tile<S>(q, p.q.token, first, size, D, queries);
  if (index > 0) {
    const Bf16* from = p.mixed + (static_cast<std::int64_t>(unit) * p.M + index) * (D * E + D);
    const std::uint32_t to = shared_address(prefix);
    for (int i = threadIdx.x; i < D * (E / 8); i += 128) {
      copy16(to + summary_row(i / (E / 8), S::kPitch) + i % (E / 8) * 16, from + i * 8, true);
    }
    for (int i = threadIdx.x; i < D / 8; i += 128) {
      copy16(to + summary_row(D, S::kPitch) + i * 16, from + D * E + i * 8, true);
    }
  }
  copy_commit();
  copy_tile<S>(k, p.k.token, 0, size, D, keys);
  copy_tile<S>(v, p.v.token, 0, size, E, values);
  copy_commit();
  copy_wait<1>();
  __syncthreads();

  std::uint32_t a[S::kRows][4];
  const std::uint32_t own = shared_address(queries + warp * 16 * S::kPitch);
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= D) break;
    load_matrices(a[step], own + lane % 16 * S::kPitch + step * 32 + lane / 16 * second_half(step, D));
    feature_fragment(S::map(p), a[step]);
    if (step * 16 + 8 >= D) a[step][2] = a[step][3] = 0;
  }
  Readout<S> x;
  if (index > 0) {
#pragma unroll
    for (int step = 0; step < S::kRows; ++step) {
      if (step * 16 >= D) break;
      const int d = min(step * 16 + lane % 16, D - 1);
      multiply_rows<S::kColumns>(x.acc, a[step], shared_address(prefix) + summary_row(d, S::kPitch));
      std::uint32_t b0 = 0, b1 = 0;
      if (lane < 4) {
        const auto* z = reinterpret_cast<const Bf16*>(prefix + summary_row(D, S::kPitch)) + step * 16 + lane * 2;
        b0 = *reinterpret_cast<const std::uint32_t*>(z);
        b1 = step * 16 + 8 < D ? *reinterpret_cast<const std::uint32_t*>(z + 8) : 0u;
      }
      multiply_add(x.den, a[step], b0, b1);
    }
  }
  if (lane % 4 != 0) x.den[0] = x.den[2] = 0;  // what column 0 of the product left; the scores are added to it
  const float diagonal = p.diagonal(head, index);
  for (int j = 0; j <= tile; ++j) {
    if (j > 0) {
      __syncthreads();
      copy_tile<S>(k, p.k.token, j * kPhaseTokens, size, D, keys);
      copy_tile<S>(v, p.v.token, j * kPhaseTokens, size, E, values);
      copy_commit();
    }
    copy_wait<0>();
    __syncthreads();
    const int steps = j < tile ? kPhaseTokens / 16 : warp + 1;  // on the diagonal: keys up to this warp's queries
    for (int step = 0; step < steps; ++step) {
      attend<S>(p, a, shared_address(keys) + step * 16 * S::kPitch, values + step * 16 * S::kPitch, diagonal,
                first + warp * 16, j * kPhaseTokens + step * 16, x);
    }
  }
#pragma unroll
  for (int half = 0; half < 4; half += 2) {  // lane 0 of a row gets the whole denominator
    x.den[half] += __shfl_xor_sync(0xffffffffu, x.den[half], 1);
    x.den[half] += __shfl_xor_sync(0xffffffffu, x.den[half], 2);
  }
  if (first + warp * 16 < size) write_outputs<S>(p, x, u.out(p, head), block, first + warp * 16);
}

class CausalForward {
 public:
  CausalForward(const Problem& p, Workspace& ws, bool hopper)
      : p_(p), hopper_(hopper), plan_(sequence_plan(p)), parts_(column_parts(p.E)) {
    const std::int64_t block = p.D * (p.E / parts_) + p.D;
    packed_mix_ = ws.take<uint4>(p.Hm * packed_mix_units(mix_rows_of(p, hopper), p.M), "packed mix");
    std::int64_t summaries = 0;
    for (const SequenceGroup& group : plan_.groups) {
      summaries = std::max(summaries, at_once(group) * group.chunks * block);
    }
    kept_ = KeptSums(p, plan_.chunks * p.Hkv * parts_, block);
    if (!kept_.given()) summaries_ = ws.take<Bf16>(summaries, "summaries");
    ranges_ = ws.take<TokenRange>(static_cast<std::int64_t>(plan_.ranges.size()), "packed sequences");
  }

  void run() {
    Arguments a = arguments_of(p_, hopper_);
    a.parts = static_cast<int>(parts_), a.E = static_cast<int>(p_.E / parts_);
    a.packed_mix = packed_mix_, a.summaries = a.mixed = summaries_;
    const cudaStream_t stream = stream_of(p_.stream);
    launch_ranges(plan_.ranges, ranges_, stream);
    for (const SequenceGroup& group : plan_.groups) {
      a.M = static_cast<int>(group.chunks);
      a.maybe_ranges = plan_.ranges.empty() ? nullptr : ranges_ + group.first;
      launch_group(a, group, stream);
    }
  }

 private:
  [[nodiscard]] std::int64_t units(const SequenceGroup& group) const { return group.count * p_.Hkv * parts_; }
  [[nodiscard]] std::int64_t at_once(const SequenceGroup& group) const {  // whole heads
    return parts_ * units_at_once(units(group) / parts_, 2 * group.chunks * (p_.D * p_.E + parts_ * p_.D));
  }

  void launch_group(Arguments a, const SequenceGroup& group, cudaStream_t stream) const {
    launch_pack_mix(a, static_cast<int>(p_.Hm), false, stream);
    const std::int64_t all = units(group), step = at_once(group);
    for (std::int64_t first = 0; first < all; first += step) {
      a.first_unit = static_cast<int>(first), a.units = static_cast<int>(std::min(step, all - first));
      const std::int64_t kept = group.before * p_.Hkv * parts_ + first * group.chunks;
      if (kept_.given()) a.summaries = kept_.summaries(kept), a.mixed = kept_.mixed(kept);
      summaries(a, stream);
      launch_mix(a, false, stream);
      read_out(a, stream);
    }
  }

  void summaries(const Arguments& a, cudaStream_t stream) const {
    if (on_panels(a) && sm90::takes_summary_ring(a.D, a.E)) return sm90::launch_chunk_summaries(a, p_, stream);
    launch_block_summaries(a, stream);
  }

  void read_out(const Arguments& a, cudaStream_t stream) const {
    if (on_panels(a)) return sm90::launch_causal_outputs(a, p_, stream);
    const int query_tiles = static_cast<int>((p_.C + kPhaseTokens - 1) / kPhaseTokens);
    const std::int64_t tiles = std::int64_t{a.units} * a.group * a.M * query_tiles;
    with_chunk_spec<true>(a, [&](auto spec) {
      using S = decltype(spec);
      const int bytes = 3 * kPhaseTokens * S::kPitch + summary_bytes(a.D, S::kTiles);
      launch_next("causal_kernel", causal_kernel<S>, static_cast<unsigned>(tiles), 128, bytes, stream, a, query_tiles);
    });
  }

  const Problem& p_;
  bool hopper_ = false;
  SequencePlan plan_;
  std::int64_t parts_ = 1;
  uint4* packed_mix_ = nullptr;
  KeptSums kept_;
  Bf16* summaries_ = nullptr;
  TokenRange* ranges_ = nullptr;
};

void run_causal_forward(const Problem& problem, Workspace& workspace, bool hopper) {
  const bool slices = hopper && sm90::over_slices(problem);
  const bool boxes = boxes_take(problem.q) && boxes_take(problem.k) && boxes_take(problem.v);
  run_padded(
      problem, workspace,
      [&](const Problem& padded) {
        if (slices) return sm90::forward_slices(padded, workspace);
        CausalForward pass(padded, workspace, hopper);
        if (!workspace.counting()) pass.run();
      },
      hopper && !slices && !boxes);
}

}  // namespace sm80

void chunkwise_forward_sm80(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_causal_forward(problem, workspace, false);
}
void chunkwise_forward_sm90(const Problem& problem, Workspace& workspace, Executor& /*executor*/) {
  sm80::run_causal_forward(problem, workspace, true);
}

}  // namespace mhla
