// What the kernels of both forms share where summaries pass through memory: items, launches, arguments; and the phases
// that make and mix summaries (summaries_sm80.cu).
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "mhla/core/cuda_check.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/cuda/sm80_pairs.cuh"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

// Waits until the launches before this one on the stream are done and what they wrote can be read.
__device__ inline void after_previous() { wait_for_previous(); }

// S and S~ of all blocks of a call, left by forward for backward: where the caller has memory for them.
class KeptSums {
 public:
  KeptSums() = default;
  KeptSums(const Problem& p, std::int64_t blocks, std::int64_t values)
      : given_(p.maybe_kept != nullptr), values_(values) {
    if (!given_) return;
    summaries_ = p.maybe_kept->take<Bf16>(blocks * values, "kept summaries");
    mixed_ = p.maybe_kept->take<Bf16>(blocks * values, "kept mixed summaries");
  }
  [[nodiscard]] bool given() const { return given_; }
  [[nodiscard]] Bf16* summaries(std::int64_t block) const { return summaries_ + block * values_; }
  [[nodiscard]] Bf16* mixed(std::int64_t block) const { return mixed_ + block * values_; }

 private:
  bool given_ = false;
  std::int64_t values_ = 0;  // of a block
  Bf16 *summaries_ = nullptr, *mixed_ = nullptr;
};

// More shared memory than a kernel has unasked.
template <class Kernel>
void allow_shared(Kernel kernel, int bytes, const char* name) {
  if (bytes <= 48 << 10) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

// A block of a head: what the blocks of threads of phases 1 and 3 take in turn.
struct Item {
  int unit, index;  // unit of this launch, block
  Unit u;
  BlockTokens block;
  __device__ Item(const Arguments& p, int item)
      : unit(item / p.M), index(item % p.M), u(p, p.first_unit + unit), block(u.block(p, index)) {}
};
__device__ inline int item_size(const Arguments& p, int item) {  // tokens of its block
  return static_cast<int>(p.maybe_ranges == nullptr ? p.block(item % p.M).size : Item(p, item).block.size);
}

// A launch that may begin while the one before it on the stream ends: kernels start with after_previous(). Devices
// before sm_90 know no early start.
template <class... P, class... A>
void launch_next(const char* name, void (*kernel)(P...), dim3 grid, int threads, int bytes, cudaStream_t stream,
                 const A&... arguments) {
  allow_shared(kernel, bytes, name);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  int device = 0;
  cuda_check(cudaGetDevice(&device), name);
  config.attrs = &overlap, config.numAttrs = device_facts(device).major >= 9 ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

// As many blocks of threads as run at once on the current device, at most `items`.
template <class Kernel>
unsigned blocks_for(Kernel kernel, int threads, int bytes, std::int64_t items) {
  int device = 0, count = 0, resident = 0;
  allow_shared(kernel, bytes, "shared memory");
  cuda_check(cudaGetDevice(&device), "current device");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, bytes), "occupancy");
  return static_cast<unsigned>(std::min<std::int64_t>(items, std::int64_t{count} * std::max(resident, 1)));
}

// Counters of the launches of a pass whose blocks of threads take items as they become free (sm90_items.cuh): one for
// each launch. The kernel that packs mix clears all of them.
class ItemCounters {
 public:
  ItemCounters() = default;
  ItemCounters(Workspace& ws, std::int64_t launches)
      : counters_(ws.take<std::uint32_t>(launches, "counters of items")), count_(static_cast<int>(launches)) {}

  // Arguments of the kernel that packs mix, and of the next of the launches after it.
  [[nodiscard]] Arguments cleared(Arguments a) {
    a.maybe_taken = counters_, a.taken_count = count_, used_ = 0;
    return a;
  }
  [[nodiscard]] Arguments next(Arguments a) {
    a.maybe_taken = used_ < count_ ? counters_ + used_++ : nullptr;
    return a;
  }

 private:
  std::uint32_t* counters_ = nullptr;
  int count_ = 0, used_ = 0;
};

// Clears the counters of the launches that follow: by all threads of the kernel that packs mix.
__device__ inline void clear_taken(const Arguments& p) {
  if (p.maybe_taken == nullptr) return;
  const int thread = static_cast<int>((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x);
  for (int i = thread; i < p.taken_count; i += static_cast<int>(gridDim.x * gridDim.y * blockDim.x))
    p.maybe_taken[i] = 0;
}

// Ranges of packed sequences to device memory, as arguments of kernels: that can be recorded in a CUDA graph. In
// summaries_sm80.cu.
void launch_ranges(std::span<const TokenRange> ranges, TokenRange* to, cudaStream_t stream);

// mix, or its transpose, of all heads into a.packed_mix; phase 1 for the units of `a`; phases 1 and 2; phase 2 alone,
// or back: dS of dS~. In summaries_sm80.cu.
void launch_pack_mix(const Arguments& a, int mix_heads, bool back, cudaStream_t stream);
void launch_block_summaries(const Arguments& a, cudaStream_t stream);
void launch_summaries(const Arguments& a, cudaStream_t stream);
void launch_mix(const Arguments& a, bool back, cudaStream_t stream);

template <class T, class View>
Strided<T> strided(const View& x) {
  return {static_cast<T*>(x.data), x.stride[0], x.stride[1], x.stride[2]};
}

// What the way of mixing follows from on Hopper. A causal sequence that is padded on the right keeps its bits, so it is
// not the number of its chunks: it is the rows of mix, or with `extend`, where chunks have no bound, the most there may
// be. Other cards have one way: 0.
inline std::int64_t mix_rows_of(const Problem& p, bool hopper) {
  if (!hopper) return 0;
  if (!p.causal) return p.M;
  return p.extend ? kMaxBlocks : p.L;
}

// What both forms tell their kernels; parts of the columns, buffers and units are the caller's.
inline Arguments arguments_of(const Problem& p, bool hopper) {
  Arguments a{};
  a.q = strided<const Bf16>(p.q), a.k = strided<const Bf16>(p.k), a.v = strided<const Bf16>(p.v);
  a.out = strided<Bf16>(p.out);
  a.layout = DeviceLayout(p.layout, p.C);
  a.N = p.N;
  a.M = static_cast<int>(p.M), a.D = static_cast<int>(p.D), a.E = static_cast<int>(p.E);
  a.Hkv = static_cast<int>(p.Hkv), a.group = static_cast<int>(p.group());
  a.parts = 1;
  a.causal = p.causal, a.mix_rows = static_cast<int>(mix_rows_of(p, hopper)), a.L = static_cast<int>(p.L);
  a.hopper = hopper, a.most_shared = most_shared_bytes(p.q.device);
  a.long_blocks = (p.layout.rank == 1 ? p.layout.block_size : p.C) > kPhaseTokens;
  a.map = p.feature_map, a.normalized = p.normalized();
  a.eps = static_cast<float>(p.eps), a.scale = static_cast<float>(p.scale);
  a.mix = data_as<float>(p.mix), a.mix_head = p.Hm > 1 ? p.mix.stride[0] : 0;
  a.mix_row = p.mix.stride[1], a.mix_column = p.mix.stride[2];
  return a;
}

// Whether kernels over panels take a problem (sm90_ring.cuh): on Hopper, blocks that fill a tile of 64 tokens, and D
// and E from 33 to 64 or from 73 to 128.
inline bool on_panels(const Arguments& a) {
  const int rows = tiles_of(a.D, a.E).rows;
  return a.hopper && a.long_blocks && (rows == 4 || rows == 8);
}

// The tiles of a problem as constants: f(rows, columns, whether D and E fill them).
template <class F>
void with_tiles(const Arguments& a, const F& f) {
  const Tiles t = tiles_of(a.D, a.E);
  const bool filled = a.D == exact_size(t) && a.E == exact_size(t);
  static_assert(kTiles[0].rows == 2 && kTiles[1].rows == 4 && kTiles[2].rows == 5 && kTiles[3].rows == 8);
  switch (t.rows) {
    case 2: f(std::integral_constant<int, 2>{}, std::integral_constant<int, 4>{}, filled); break;
    case 4: f(std::integral_constant<int, 4>{}, std::integral_constant<int, 8>{}, filled); break;
    case 5: f(std::integral_constant<int, 5>{}, std::integral_constant<int, 9>{}, filled); break;
    default: f(std::integral_constant<int, 8>{}, std::integral_constant<int, 16>{}, filled); break;
  }
}

// The tiles of a problem as a type: f(Spec<...>{}). The identity is worth kernels of its own in the causal form, where
// language models rotate what the map gave.
template <bool kCausal, class F>
void with_spec(const Arguments& a, const F& f) {
  with_tiles(a, [&](auto rows, auto columns, bool filled) {
    constexpr int kRows = rows, kColumns = columns;
    if (filled && a.map == FeatureMap::kReluEps) return f(Spec<kRows, kColumns, Known::kReluEps>{});
    if constexpr (kCausal && (kRows == 4 || kRows == 8)) {
      if (filled && a.map == FeatureMap::kIdentity) return f(Spec<kRows, kColumns, Known::kIdentity>{});
    }
    f(Spec<kRows, kColumns, Known::kNothing>{});
  });
}

}  // namespace mhla::sm80
