// Forward of the bidirectional form where a head's summaries fit shared memory: memory sees q, k, v and out once.
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"

namespace mhla::sm80 {
namespace {

static_assert(sizeof(BlockTokens) <= kBlockTableBytes);

__device__ inline void group_barrier(int group, int threads) { named_barrier(group + 1, threads); }

// Columns [x, x + 16 * kWide) of all M blocks: mixed in registers, written in place. mix: fragments in shared memory.
// Blocks that do not exist stay 0, whatever was mixed: the next head multiplies them with zeros.
template <int kTiles, int kWide>
__device__ inline void mix_columns(char* S, int block_bytes, const uint4* mix, int x, int M) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t rows = shared_address(S) + lane % 16 * block_bytes + x * 2;
  float acc[kTiles][2 * kWide][4] = {};
#pragma unroll
  for (int b = 0; b < kTiles; ++b) {
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      std::uint32_t r[4];
      load_matrices_transposed(r, rows + b * 16 * block_bytes + (w * 16 + lane / 16 * 8) * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 m = mix[(i * kTiles + b) * 32 + lane];
        const std::uint32_t a[4] = {m.x, m.y, m.z, m.w};
        multiply_add(acc[i][2 * w], a, r[0], r[1]);
        multiply_add(acc[i][2 * w + 1], a, r[2], r[3]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if ((kTiles - 1) * 16 + lane / 4 + half * 8 < M) continue;
#pragma unroll
    for (float(&c)[4] : acc[kTiles - 1]) c[2 * half] = c[2 * half + 1] = 0.0f;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) store_tile<2 * kWide>(acc[i], rows + i * 16 * block_bytes);
}

// All columns, warp by warp: their number is a multiple of 16.
template <int kTiles, int kWarps>
__device__ inline void mix_in_place(char* S, int block_bytes, const uint4* mix, int columns, int M) {
  constexpr int kWide = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1, kStep = 16 * kWide;
  const int warp = threadIdx.x / 32, whole = columns / kStep * kStep;
  for (int x = warp * kStep; x < whole; x += kWarps * kStep) mix_columns<kTiles, kWide>(S, block_bytes, mix, x, M);
  for (int x = whole + warp * 16; x < columns; x += kWarps * 16) mix_columns<kTiles, 1>(S, block_bytes, mix, x, M);
}

// Heads from beginning to end, one after the other, summaries in shared memory. Groups of warps summarise blocks in
// turn, all warps mix columns in place, then every warp reads out tiles of 16 tokens of its own. The keys and values of
// the next head travel meanwhile.
template <class S, int kStages>
__global__ void __launch_bounds__(groups_of(S::kTiles) * S::kRows * 32, S::kRows == 2 ? 3 : 1)
    fused_kernel(Arguments p, FusedPlan plan) {
  after_previous();
  constexpr int kGroups = groups_of(S::kTiles), kGroupThreads = S::kRows * 32, kWarps = kGroups * S::kRows;
  extern __shared__ __align__(16) char shared[];
  const int tiles = (p.M + 15) / 16, D = S::D(p);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / S::kRows, row = warp % S::kRows * 16;
  auto* mix = reinterpret_cast<uint4*>(shared + plan.mix_at);
  auto* blocks = reinterpret_cast<BlockTokens*>(shared + plan.table_at);
  if (threadIdx.x < p.M) blocks[threadIdx.x] = p.block(threadIdx.x);
  // Blocks that do not exist are multiplied with zeros: they must be finite.
  for (int at = p.M * plan.block_bytes / 16 + threadIdx.x; at < tiles * plan.block_bytes; at += kWarps * 32) {
    reinterpret_cast<uint4*>(shared)[at] = uint4{};
  }
  __syncthreads();

  const std::uint32_t ring = shared_address(shared + plan.ring_at) + group * kStages * plan.stage_bytes;
  int next_unit = blockIdx.x, next_index = group, next_first = 0, next_slot = 0;  // of the next fetch
  const Bf16 *k = nullptr, *v = nullptr;                                          // of its head
  const auto enter = [&] {
    const Unit u(p, next_unit);
    k = u.k(p), v = u.v(p);
  };
  enter();
  const auto fetch = [&] {  // 16 tokens of this group's blocks, one after the other, of one head after the other
    if (next_index >= p.M) next_unit += gridDim.x, next_index = group, enter();
    if (next_unit < p.units && next_index < p.M) {
      const std::uint32_t stage = ring + next_slot * plan.stage_bytes;
      copy_keys<S, kStepTokens, kGroupThreads>(p, k, v, blocks[next_index], next_first, stage,
                                               stage + kStepTokens * S::kPitch, threadIdx.x % kGroupThreads);
      next_first += kStepTokens;
      if (next_first >= static_cast<int>(blocks[next_index].size)) next_index += kGroups, next_first = 0;
    }
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();

  int slot = 0;
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    if (unit == blockIdx.x || p.mix_head) {
      for (int at = warp; at < tiles * tiles; at += kWarps) {
        mix[at * 32 + lane] = mix_fragment(p, p.mix_head ? u.head : 0, at / tiles, at % tiles, lane);
      }
    }
    for (int index = group; index < p.M; index += kGroups) {
      const int size = static_cast<int>(blocks[index].size);
      Summary<S> summary;
      for (int first = 0; first < size; first += kStepTokens) {
        copy_wait<kStages - 2>();
        group_barrier(group, kGroupThreads);  // all copies of this slot are there, and all are done with the one before
        fetch();
        const std::uint32_t stage = ring + slot * plan.stage_bytes;
        summary.add(p, stage, stage + kStepTokens * S::kPitch, size - first, row);
        slot = slot + 1 == kStages ? 0 : slot + 1;
      }
      char* to = shared + index * plan.block_bytes;
      const int d = row + lane % 16;
      store_tile<S::kColumns>(summary.acc,
                              shared_address(d < D ? to + summary_row(d, S::kPitch) : shared + plan.trash_at));
      auto* z = reinterpret_cast<Bf16*>(to + summary_row(D, S::kPitch));
      summary.each_z(p, row, [&](int at, Bf16 value) { z[at] = value; });
    }
    __syncthreads();

    // The first queries travel while summaries are mixed.
    int head = 0, index = 0, first = warp * 16;  // of this warp's tile: query head of the group, block, place
    const auto settle = [&] {                    // `first` may be past the end of the block: go on in the next
      while (head < p.group && first >= static_cast<int>(blocks[index].size)) {
        first -= (static_cast<int>(blocks[index].size) + 15) / 16 * 16;
        if (++index == p.M) index = 0, ++head;
      }
    };
    settle();
    Queries<S> queries;
    const auto load = [&] {
      if (head < p.group) queries.load(p, p.q.at(u.batch, u.head * p.group + head), blocks[index], first);
    };
    load();
    const int columns = summary_row(D, S::kPitch) / 2 + (D + 15) / 16 * 16;
    switch (tiles) {
      case 1: mix_in_place<1, kWarps>(shared, plan.block_bytes, mix, columns, p.M); break;
      case 2: mix_in_place<2, kWarps>(shared, plan.block_bytes, mix, columns, p.M); break;
      case 3: mix_in_place<3, kWarps>(shared, plan.block_bytes, mix, columns, p.M); break;
      default: mix_in_place<4, kWarps>(shared, plan.block_bytes, mix, columns, p.M); break;
    }
    __syncthreads();

    while (head < p.group) {
      Queries<S> now = queries;
      const BlockTokens& block = blocks[index];
      const int now_first = first, now_head = u.head * p.group + head;
      const char* summary = shared + index * plan.block_bytes;
      first += kWarps * 16;
      settle();
      load();
      const Readout<S> x(p, now, summary);
      write_outputs<S>(p, x, u.out(p, now_head), block, now_first);
    }
    __syncthreads();  // the next head's summaries take the place of this one's
  }
  copy_wait<0>();
}

template <class S, int kStages>
void launch_stages(const Arguments& a, const FusedPlan& plan, cudaStream_t stream) {
  constexpr int kThreads = groups_of(S::kTiles) * S::kRows * 32;
  const auto kernel = fused_kernel<S, kStages>;
  launch_next("fused_kernel", kernel, blocks_for(kernel, kThreads, plan.shared_bytes, a.units), kThreads,
              plan.shared_bytes, stream, a, plan);
}

}  // namespace

void launch_fused(const Arguments& a, const FusedPlan& plan, cudaStream_t stream) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    switch (plan.stages) {
      case 4: return launch_stages<S, 4>(a, plan, stream);
      case 3: return launch_stages<S, 3>(a, plan, stream);
      default: return launch_stages<S, 2>(a, plan, stream);
    }
  });
}

}  // namespace mhla::sm80
