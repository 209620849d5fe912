// The causal form of short chunks on Hopper in one kernel, which keeps summaries on the chip: nothing but q, k, v and
// out passes through memory. chunkwise_sm90_slices_plan.h says who does what. At lm_2048 summaries through memory are
// 836 MB; here every slice of 32 columns reads q and k again, 608 MB, most of it from the second-level cache.
#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise_slices_sm90.h"
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90_slice_copies.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_slice_outputs.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_slice_summaries.cuh"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"

namespace mhla::sm90 {
namespace {

__device__ inline void init_slice_barriers(const SliceShared& s) {
  using Kind = SliceBarriers;
  const auto init = [&](int kind, int count, int arrivals) {
    for (int i = 0; i < count; ++i) barrier_init(s.barrier(kind, i), arrivals);
  };
  constexpr int kGroupWarps = kSliceOutputWarps / kSliceOutputGroups;
  init(Kind::kCopied, kSliceTurns, 1);
  init(Kind::kReady, kSliceTurns, 2);
  init(Kind::kFree, kSliceStages, kSliceSummaryWarps + kGroupWarps);
  init(Kind::kQueries, kSliceOutputGroups, 1);
  init(Kind::kQueriesFree, kSliceOutputGroups, kGroupWarps);
  init(Kind::kPrefix, kSliceOutputGroups, kSliceSummaryWarps);
  init(Kind::kPrefixFree, kSliceOutputGroups, kGroupWarps);
  init(Kind::kMix, 2, 1);
  init(Kind::kMixFree, 2, kSliceSummaryWarps + kSliceOutputWarps);
  barriers_ready();
}

template <Known kKnown>
__global__ void __launch_bounds__(kSliceThreads, 1) slice_kernel(const __grid_constant__ SliceArguments p) {
  extern __shared__ __align__(1024) char memory[];
  const SliceShared s{shared_address(memory)};
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  after_previous();
  load_slice_mix(p, static_cast<int>(blockIdx.x) / p.slices % p.H, s.mix(0), static_cast<int>(threadIdx.x),
                 kSliceThreads);
  if (threadIdx.x == 0) {
    if (s.base % 1024 != 0) __trap();
    init_slice_barriers(s);
    set_shared_word(s.base + SliceMemory::kSelectAt, 0x10000u);
    set_shared_word(s.base + SliceMemory::kSelectAt + 4, 0xffff0000u);
  }
  __syncthreads();
  constexpr int kLoaded = kKnown == Known::kIdentity ? SliceBarriers::kCopied : SliceBarriers::kReady;
  if (warp >= kSliceSummaryWarps + kSliceOutputWarps) {
    keep_registers<kSliceCopyRegisters>();
    const int role = warp - kSliceSummaryWarps - kSliceOutputWarps;
    if (role == 0) {
      if (threadIdx.x % 32 == 0) copy_keys_role(p, s);
    } else if (role == 1) {
      copy_queries_role(p, s);
    } else {
      prepare_role<kKnown>(p, s, role - 2);
    }
  } else if (warp < kSliceSummaryWarps) {
    take_registers<kSliceSummaryRegisters>();
    summary_role<kLoaded>(p, s, warp);
  } else {
    take_registers<kSliceOutputRegisters>();
    output_role<kKnown>(p, s, (warp - kSliceSummaryWarps) / 4);
  }
}

SliceArguments slice_arguments(const Problem& p, std::int64_t sequences) {
  if (p.N > INT32_MAX) fail("sm90: ", p.N, " tokens, expected less than 2^31");
  SliceArguments a{};
  a.q = token_boxes(p.q, 64, kSliceChunk), a.k = token_boxes(p.k, 64, kSliceChunk);
  a.v = token_boxes(p.v, kSliceColumns, kSliceChunk), a.out = token_boxes(p.out, kSliceColumns, 16);
  a.out_rows = strided<Bf16>(p.out);
  a.mix = data_as<float>(p.mix), a.mix_head = p.Hm > 1 ? p.mix.stride[0] : 0;
  a.mix_row = p.mix.stride[1], a.mix_column = p.mix.stride[2];
  a.slices = static_cast<int>(p.E) / kSliceColumns, a.H = static_cast<int>(p.H), a.group = static_cast<int>(p.group());
  a.items = static_cast<int>(sequences * p.H) * a.slices;
  a.N = static_cast<int>(p.N), a.L = static_cast<int>(p.L);
  a.scale = static_cast<float>(p.scale), a.map = p.feature_map;
  return a;
}

template <Known kKnown>
void launch_slices(const SliceArguments& a, cudaStream_t stream) {
  const auto kernel = slice_kernel<kKnown>;
  launch_next("sm90 slice_kernel", kernel, blocks_for(kernel, kSliceThreads, SliceMemory::kBytes, a.items),
              kSliceThreads, SliceMemory::kBytes, stream, a);
}

void run_slices(const Problem& p, Workspace& workspace) {
  const SequencePlan plan = sequence_plan(p);
  auto* const ranges = workspace.take<TokenRange>(static_cast<std::int64_t>(plan.ranges.size()), "packed sequences");
  if (workspace.counting()) return;
  const cudaStream_t stream = stream_of(p.stream);
  const bool packed = p.maybe_cu_seqlens.given();
  SliceArguments a = slice_arguments(p, packed ? static_cast<std::int64_t>(plan.ranges.size()) : p.B);
  launch_ranges(plan.ranges, ranges, stream);
  if (packed) a.maybe_ranges = ranges;
  if (a.map == FeatureMap::kIdentity) return launch_slices<Known::kIdentity>(a, stream);
  if (a.map == FeatureMap::kReluEps) return launch_slices<Known::kReluEps>(a, stream);
  launch_slices<Known::kNothing>(a, stream);
}

}  // namespace

void forward_slices(const Problem& p, Workspace& workspace) {
  if (boxes_take(p.q) && boxes_take(p.k) && boxes_take(p.v) && boxes_take(p.out)) return run_slices(p, workspace);
  const Padding padding(p, workspace);
  if (!workspace.counting()) padding.copy_in();
  run_slices(padding.inner(), workspace);
  if (!workspace.counting()) padding.copy_out();
}

}  // namespace mhla::sm90
