// Outputs of the slice kernel: out = scale (q~ P_i + m_ii (q~ k~^T below the diagonal) v) of 32 columns. A warpgroup
// has the 64 queries of every second tile; a warp has 16 of them.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_slices.cuh"

namespace mhla::sm90 {

// scores as the left side of the product with v, times m_ii, 0 for keys after a query. `warp`: of the warpgroup.
__device__ inline void mask_scores(const Accumulator& scores, float diagonal, int warp, std::uint32_t (&a)[4][4]) {
  const int query = threadIdx.x % 32 / 4;  // in this warp's 16 queries; the other one is 8 below
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float(&c)[4] = scores[j];
    const int tile = j - 2 * warp, key = tile * 8 + static_cast<int>(threadIdx.x) % 4 * 2;  // from the first query on
    std::uint32_t upper = 0, lower = 0;
    if (tile < 0) {
      upper = pack_bf16(c[0] * diagonal, c[1] * diagonal), lower = pack_bf16(c[2] * diagonal, c[3] * diagonal);
    } else if (tile < 2) {
      upper = pack_bf16(key <= query ? c[0] * diagonal : 0.0f, key + 1 <= query ? c[1] * diagonal : 0.0f);
      lower = pack_bf16(key <= query + 8 ? c[2] * diagonal : 0.0f, key + 1 <= query + 8 ? c[3] * diagonal : 0.0f);
    }
    a[j / 2][j % 2 * 2] = upper, a[j / 2][j % 2 * 2 + 1] = lower;
  }
}

// Zero times NaN is NaN, and no query may see a later token. Adds a v to acc for the values that are infinite or NaN,
// where a query sees them. `query`: the place of this warp's first query.
__device__ inline void add_unusual_values(NarrowSums& acc, const std::uint32_t (&a)[4][4], std::uint32_t v, int query) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row lane / 4 + i % 2 * 8, keys i / 2 * 8 + 2 pair and the next
        const float2 weight = unpack_bf16(__shfl_sync(0xffffffffu, a[step][i], (lane & ~3) + pair));
#pragma unroll 1
        for (int next = 0; next < 2; ++next) {
          const int t = query + lane / 4 + i % 2 * 8, key = step * 16 + i / 2 * 8 + pair * 2 + next;
          if (key > t) continue;
          const float x = next ? weight.y : weight.x;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float2 y = unpack_bf16(shared_word(v + narrow_offset(key, j) + lane % 4 * 4));
            float(&c)[4] = acc[j];
            if (!isfinite(y.x)) c[i % 2 * 2] = fmaf(x, y.x, c[i % 2 * 2]);
            if (!isfinite(y.y)) c[i % 2 * 2 + 1] = fmaf(x, y.y, c[i % 2 * 2 + 1]);
          }
        }
      }
    }
  }
}

// v with 0 instead of infinity and NaN. The summaries of this chunk still need v as it is, so this is a copy, where the
// warpgroup's outputs will lie.
__device__ inline void copy_finite_values(std::uint32_t v, std::uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
#pragma unroll 1
  for (int at = thread * 16; at < SliceMemory::kValues; at += kGroupThreads * 16) {
    const uint4 x = shared_words(v + at);
    set_shared_words(to + at, finite_pair(x.x), finite_pair(x.y), finite_pair(x.z), finite_pair(x.w));
  }
}

// 16 rows of a tile from shared memory, of which the first `rows` exist.
__device__ inline void write_last_rows(std::uint32_t from, Bf16* to, std::int64_t stride, int rows) {
  const int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll 1
  for (int row = lane / 4; row < min(rows, 16); row += 8) {
    *reinterpret_cast<uint4*>(to + row * stride + c * 8) = shared_words(from + narrow_offset(row, c));
  }
}

template <Known kKnown>
__device__ inline void output_role(const SliceArguments& p, const SliceShared& s, int group) {
  using At = SliceMemory;
  constexpr bool kMapped = kKnown != Known::kIdentity;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const std::uint32_t outputs = s.base + At::kOutputsAt + group * At::kValues;  // of the warpgroup
  const std::uint32_t own = outputs + warp * 16 * kNarrowRowBytes;
  // Where this lane's rows of q and of the outputs begin. Further columns are other bits of these addresses, so that
  // one register serves them all.
  const std::uint32_t query_row =
      s.base + At::kQueriesAt + group * 2 * At::kPanel + panel_offset(warp * 16 + lane % 16, lane / 16);
  const std::uint32_t output_row = own + narrow_offset(lane % 16, lane / 16);
  int first_tile = 0, prefix_parity = 0;
  for (int index = blockIdx.x, k = 0; index < p.items; index += gridDim.x, ++k) {
    const SliceItem item(p, index);
    wait_mix(p, s, k);
#pragma unroll 1
    for (int i = (first_tile ^ group) & 1; i < item.chunks; i += 2) {
      const unsigned tile = first_tile + i;
      const SliceTurn turn = slice_turn(tile);
      const std::uint32_t stage = s.stage(turn.stage());
      std::uint32_t q[8][4], a[4][4];
      barrier_wait(s.barrier(SliceBarriers::kQueries, group), static_cast<int>(tile / 2 % 2));
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        load_matrices(q[step], (query_row ^ step % 4 * 32) + step / 4 * At::kPanel);
      }
      warp_arrive(s.barrier(SliceBarriers::kQueriesFree, group));
#pragma unroll
      for (int step = 0; step < 8; ++step) feature_fragment(slice_map<kKnown>(p), q[step]);
      barrier_wait(s.barrier(kMapped ? SliceBarriers::kReady : SliceBarriers::kCopied, turn.slot), turn.parity);
      {
        Accumulator scores;
        const std::uint64_t keys = panel_descriptor(stage);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          multiply_panel_columns(scores, q[step], keys + step / 4 * (At::kPanel / 16) + step % 4 * kNextColumns,
                                 step > 0);
        }
        warpgroup_commit();
        const float diagonal = shared_float(s.mix(mix_place(p, k)) + i * (kSliceMixRows + 1) * 4);
        warpgroup_wait<0>();
        settle_sums(scores);
        mask_scores(scores, diagonal, warp, a);
      }
      if constexpr (!kMapped) barrier_wait(s.barrier(SliceBarriers::kReady, turn.slot), turn.parity);
      const uint2 found = shared_pair(s.unusual(turn.slot));
      const bool unusual = __any_sync(0xffffffffu, (found.x | found.y) != 0);  // known to be the same in a warp
      std::uint32_t values = stage + 2 * At::kPanel;
      if (unusual) {
        if (lane == 0) wait_boxes_read();
        warpgroup_barrier(1 + group);
        copy_finite_values(values, outputs);
        publish_shared();
        warpgroup_barrier(1 + group);
        values = outputs;
      }
      NarrowSums acc = {};
      settle_sums(acc);
      if (i > 0) {  // the prefix comes last: what does not need it is done
        barrier_wait(s.barrier(SliceBarriers::kPrefix, group), prefix_parity);
        prefix_parity ^= 1;
        const std::uint64_t prefix = narrow_descriptor(s.base + At::kPrefixAt + group * At::kPrefix);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          multiply_narrow_rows(acc, q[step], prefix + step * kNextNarrowRows, true);
        }
      }
      warpgroup_begin();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_narrow_rows(acc, a[step], narrow_descriptor(values) + step * kNextNarrowRows, true);
      }
      warpgroup_commit();
      if (lane == 0) wait_boxes_read();  // the outputs before have left
      warpgroup_wait<0>();
      settle_sums(acc);
      if (unusual) {
        add_unusual_values(acc, a, stage + 2 * At::kPanel, warp * 16);
        warpgroup_barrier(1 + group);  // until then `outputs` is read as v
      }
      warp_arrive(s.barrier(SliceBarriers::kFree, turn.stage()));
      if (i > 0) warp_arrive(s.barrier(SliceBarriers::kPrefixFree, group));
      __syncwarp();
      const auto pair = [&](int j, int half) {
        return pack_bf16(acc[j][2 * half] * p.scale, acc[j][2 * half + 1] * p.scale);
      };
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        store_matrices(output_row ^ j * 16, pair(j, 0), pair(j, 1), pair(j + 1, 0), pair(j + 1, 1));
      }
      const int place = i * kSliceChunk + warp * 16;
      if (place + 16 <= item.length) {
        publish_shared();
        __syncwarp();
        if (lane == 0) store_box(p.out, own, item.column, item.head, item.first + place, item.batch);
      } else if (place < item.length) {
        __syncwarp();
        Bf16* const to =
            p.out_rows.at(item.batch, item.head) + (item.first + std::int64_t{place}) * p.out_rows.token + item.column;
        write_last_rows(own, to, p.out_rows.token, item.length - place);
      }
    }
    first_tile += item.chunks;
    leave_mix(p, s, k);
  }
  if (lane == 0) wait_boxes_written();
}

}  // namespace mhla::sm90
