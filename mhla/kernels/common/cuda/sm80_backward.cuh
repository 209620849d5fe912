// Backward through summaries (bidirectional/README.md, eq. 6 to 10), bf16 between the phases:
//   S, S~ as in forward
//   query_gradient_kernel  per block of queries: w = scale / den, c = -(num . dout) / den, dq~ = w (dout S~^T + c z~),
//                          dS~ = (w q~)^T dout and dz~ = (w q~)^T c, which take the place of S~
//   mix_product_kernel     dmix = dS~ S^T in parts
//   mix_kernel             dS = mix^T dS~, in place
//   key_gradient_kernel    per block of keys: dk~ = v dS^T + dz, dv = k~ dS
#pragma once

#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"

namespace mhla::sm80 {

// Blocks of threads on a multiprocessor: of query_gradient_kernel, of key_gradient_kernel.
constexpr int gradient_blocks(Tiles t) { return t.rows >= 8 ? 1 : t.rows >= 5 ? 3 : 4; }
constexpr int key_blocks(Tiles t) { return t.rows >= 8 ? 2 : t.rows >= 5 ? 3 : 4; }

// A summary from memory to shared memory, as summary_row() says.
template <class S>
__device__ inline void copy_summary(const Arguments& p, const Bf16* from, char* to) {
  const int D = S::D(p), E = S::E(p);
  for (int i = threadIdx.x; i < D * (E / 8); i += blockDim.x) {
    copy16(shared_address(to + summary_row(i / (E / 8), S::kPitch) + i % (E / 8) * 16), from + i * 8, true);
  }
  for (int i = threadIdx.x; i < D / 8; i += blockDim.x) {
    copy16(shared_address(to + summary_row(D, S::kPitch) + i * 16), from + D * E + i * 8, true);
  }
}

// kTokens rows of q and dout of a block to shared memory, zeros behind its end.
template <class S, int kTokens>
__device__ inline void copy_pair_rows(const Arguments& p, const Bf16* x, std::int64_t x_stride, const Bf16* y,
                                      std::int64_t y_stride, const BlockTokens& block, int first, char* to) {
  for (int row = threadIdx.x / 8; row < kTokens; row += blockDim.x / 8) {
    const bool valid = first + row < static_cast<int>(block.size);
    const std::int64_t token = valid ? block.token(first + row) : 0;
    const Bf16 *x_row = x + token * x_stride, *y_row = y + token * y_stride;
    const std::uint32_t x_to = shared_address(to + row * S::kPitch), y_to = x_to + kTokens * S::kPitch;
#pragma unroll
    for (int c = threadIdx.x % 8; c < S::D(p) / 8; c += 8) copy16(x_to + c * 16, x_row + c * 8, valid);
#pragma unroll
    for (int c = threadIdx.x % 8; c < S::E(p) / 8; c += 8) copy16(y_to + c * 16, y_row + c * 8, valid);
  }
}

// acc += a S^T for 16 rows of E values: columns are the rows of the summary from d0 on. fragment(step, a) gives the 16
// rows in order.
template <class S, int kTiles, class F>
__device__ inline void multiply_by_rows(const Arguments& p, float (&acc)[kTiles][4], const F& fragment,
                                        const char* summary, int d0) {
  const int lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const std::uint32_t rows = shared_address(summary);
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= E) break;
    std::uint32_t a[4];
    fragment(step, a);
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      if (d0 + j * 8 >= D) break;
      std::uint32_t b[4];
      load_matrices(b, rows + summary_row(min(d0 + j * 8 + lane % 8 + lane / 16 * 8, D - 1), S::kPitch) + step * 32 +
                           lane / 8 % 2 * second_half(step, E));
      if (step * 16 + 8 >= E) a[2] = a[3] = b[1] = b[3] = 0;  // what lies there may be NaN
      multiply_add(acc[j], a, b[0], b[1]);
      if (j + 1 < kTiles) multiply_add(acc[j + 1], a, b[2], b[3]);
    }
  }
}

// dq of 16 tokens, whose q and dout lie in shared memory: kTiles * 8 columns from d0 on.
template <class S, int kTiles>
struct QueryGradient {
  float acc[kTiles][4] = {};       // dout S~^T
  float den[2] = {}, dot[2] = {};  // q~ z~ and num . dout of the two rows of this lane, of these columns

  __device__ void compute(const Arguments& p, const char* q, const char* dout, const char* summary, int d0) {
    const int lane = threadIdx.x % 32;
    const std::uint32_t left = shared_address(dout) + lane % 16 * S::kPitch;
    multiply_by_rows<S>(
        p, acc,
        [&](int step, std::uint32_t(&a)[4]) {
          load_matrices(a, left + step * 32 + lane / 16 * second_half(step, S::E(p)));
        },
        summary, d0);
    const auto* rows = reinterpret_cast<const Bf16*>(q + lane / 4 * S::kPitch) + d0 + lane % 4 * 2;
    each_z(p, summary, d0, [&](int j, float2 z) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto raw = *reinterpret_cast<const std::uint32_t*>(rows + half * 8 * (S::kPitch / 2) + j * 8);
        const float2 x = unpack_bf16(feature_pair(S::map(p), raw));
        den[half] = fmaf(x.x, z.x, fmaf(x.y, z.y, den[half]));
        dot[half] = fmaf(x.x, acc[j][2 * half], fmaf(x.y, acc[j][2 * half + 1], dot[half]));
      }
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) den[half] = quad_sum(den[half]), dot[half] = quad_sum(dot[half]);
  }

  // With den and dot of all columns; w and c to `weights`. kDen: den of the tokens of the head is in memory, and its
  // gradient w c goes there instead.
  template <bool kDen = false>
  __device__ void finish(const Arguments& p, const Gradients& g, const char* q, const char* summary,
                         const BlockTokens& block, int first, Bf16* maybe_dq, float2* weights, int d0,
                         const float* all_den = nullptr, float* all_dden = nullptr) {
    const int lane = threadIdx.x % 32, place = first + lane / 4, last = static_cast<int>(block.size) - 1;
    float w[2], c[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool valid = place + half * 8 <= last;
      if constexpr (kDen) {
        const std::int64_t token = block.token(min(place + half * 8, last));
        const float total = __ldcg(all_den + token);
        w[half] = valid ? p.scale / total : 0.0f, c[half] = 0.0f;
        if (valid && lane % 4 == 0 && d0 == 0) all_dden[token] = -w[half] * (dot[half] / total);
      } else {
        const float total = p.eps + den[half];
        w[half] = !valid ? 0.0f : p.normalized ? p.scale / total : p.scale;
        c[half] = valid && p.normalized ? -dot[half] / total : 0.0f;
      }
      if (lane % 4 == 0 && d0 == 0) weights[lane / 4 + half * 8] = {w[half], c[half]};
    }
    if (maybe_dq == nullptr) return;
    if constexpr (!kDen) {
      each_z(p, summary, d0, [&](int j, float2 z) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          acc[j][2 * half] = fmaf(c[half], z.x, acc[j][2 * half]);
          acc[j][2 * half + 1] = fmaf(c[half], z.y, acc[j][2 * half + 1]);
        }
      });
    }
    const int X = min(kTiles * 8, S::D(p) - d0);
    const auto* x = reinterpret_cast<const Bf16*>(q + lane / 4 * S::kPitch) + d0;
    Bf16 *upper = maybe_dq + block.token(min(place, last)) * g.dq.token + d0,
         *lower = maybe_dq + block.token(min(place + 8, last)) * g.dq.token + d0;
    write_row<0, true>(acc, w[0], place <= last, upper, X, S::map(p), x);
    write_row<1, true>(acc, w[1], place + 8 <= last, lower, X, S::map(p), x + 8 * (S::kPitch / 2));
  }

 private:
  // f(j, z~) for the pairs of columns of this lane.
  template <class F>
  __device__ static void each_z(const Arguments& p, const char* summary, int d0, const F& f) {
    const auto* z = reinterpret_cast<const Bf16*>(summary + summary_row(S::D(p), S::kPitch)) + d0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (d0 + j * 8 >= S::D(p)) break;
      f(j, unpack_bf16(*reinterpret_cast<const std::uint32_t*>(z + j * 8 + threadIdx.x % 4 * 2)));
    }
  }
};

// One warp's share of dS~: 16 rows from `row`, kTiles times 8 columns from `column`.
template <class S, int kTiles>
struct SummaryGradient {
  float acc[kTiles][4] = {};
  float z[4] = {};  // column 0 counts

  // += (w q~)^T [dout c] over 16 tokens.
  __device__ void add(const Arguments& p, const char* q, const char* dout, const float2* weights, int row, int column) {
    const int lane = threadIdx.x % 32, t = lane % 4 * 2;
    const float4 low = *reinterpret_cast<const float4*>(weights + t),
                 high = *reinterpret_cast<const float4*>(weights + t + 8);
    const float w[4] = {low.x, low.z, high.x, high.z};
    std::uint32_t a[4];
    load_matrices_transposed(a,
                             shared_address(q) + (lane % 8 + lane / 16 * 8) * S::kPitch + (row + lane / 8 % 2 * 8) * 2);
    feature_fragment(S::map(p), a);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack_bf16(a[i]);
      a[i] = pack_bf16(x.x * w[i / 2 * 2], x.y * w[i / 2 * 2 + 1]);
    }
    multiply_rows<kTiles>(acc, a, shared_address(dout) + lane % 16 * S::kPitch + column * 2);
    const bool first = lane < 4;
    multiply_add(z, a, first ? pack_bf16(low.y, low.w) : 0u, first ? pack_bf16(high.y, high.w) : 0u);
  }

  // To a summary in memory, through shared memory of this warp's own, so that 16-byte stores fill whole lines. `rows`:
  // D rows of it in shared memory.
  __device__ void write(const Arguments& p, char* rows, Bf16* to, int row, int column) const {
    const int lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
    if (row >= D) return;
    char* own = rows + row * S::kPitch;
    if (D - row >= 16) {
      store_tile<kTiles>(acc, shared_address(own + lane % 16 * S::kPitch + column * 2));
    } else {  // D ends inside
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        *reinterpret_cast<std::uint32_t*>(own + lane / 4 * S::kPitch + (column + j * 8 + lane % 4 * 2) * 2) =
            pack_bf16(acc[j][0], acc[j][1]);
      }
    }
    __syncwarp();
    const int chunks = min(kTiles, E / 8 - column / 8), count = min(16, D - row);
    for (int i = lane; i < count * chunks; i += 32) {
      const int y = i / chunks, c = i % chunks;
      *reinterpret_cast<uint4*>(to + (row + y) * E + column + c * 8) =
          *reinterpret_cast<const uint4*>(own + y * S::kPitch + (column + c * 8) * 2);
    }
    if (column == 0 && lane % 4 == 0) {
      if (row + lane / 4 < D) to[D * E + row + lane / 4] = __float2bfloat16_rn(z[0]);
      if (row + lane / 4 + 8 < D) to[D * E + row + lane / 4 + 8] = __float2bfloat16_rn(z[2]);
    }
  }
};

// Blocks of queries in turn, tiles of tokens; with two buffers the next one and its S~ are on their way.
template <class S, bool kDen = false>
__global__ void __launch_bounds__(gradient_warps(S::kTiles) * 32, gradient_blocks(S::kTiles))
    query_gradient_kernel(Arguments p, Gradients g, int buffers) {
  after_previous();
  constexpr int kSplit = gradient_warps(S::kTiles) / S::kRows, kTiles = S::kColumns / kSplit;
  constexpr int kTokens = kGradientTokens, kTileBytes = kTokens * S::kPitch;
  constexpr int kShares = gradient_shares(S::kTiles), kOwn = S::kColumns / kShares;
  extern __shared__ __align__(16) char shared[];  // [buffers] q, dout; [buffers] S~; weights; sums
  const int summary_size = summary_bytes(S::D(p), S::kTiles);
  const int flip = buffers - 1;  // to the other buffer, if there is one
  char* summaries = shared + buffers * 2 * kTileBytes;
  auto* weights = reinterpret_cast<float2*>(summaries + buffers * summary_size);
  float2* sums = weights + kTokens;  // [kShares][kTokens]
  const int items = p.units * p.M, warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const int row = warp % S::kRows * 16, column = warp / S::kRows * kTiles * 8;                        // of dS~
  const int tile = warp % (kTokens / 16) * 16, share = warp / (kTokens / 16), d0 = share * kOwn * 8;  // of dq
  int next = blockIdx.x, next_head = 0, next_first = 0, slot = 0, parity = 0, next_slot = 0, next_parity = 0;
  Item coming(p, min(next, items - 1));
  const auto fetch = [&] {
    if (next < items) {
      char* to = shared + next_slot * 2 * kTileBytes;
      const int head = coming.u.head * p.group + next_head;
      if (next_head == 0 && next_first == 0) {
        copy_summary<S>(p, p.query_sums + static_cast<std::int64_t>(next) * (D * E + D),
                        summaries + next_parity * summary_size);
        next_parity ^= flip;
      }
      copy_pair_rows<S, kTokens>(p, p.q.at(coming.u.batch, head), p.q.token, g.dout.at(coming.u.batch, head),
                                 g.dout.token, coming.block, next_first, to);
      next_first += kTokens;
      if (next_first >= static_cast<int>(coming.block.size)) {
        next_first = 0;
        if (++next_head == p.group) {
          next += gridDim.x, next_head = 0;
          if (next < items) coming = Item(p, next);
        }
      }
    }
    next_slot ^= flip;
    copy_commit();
  };
  fetch();
  for (int at = blockIdx.x; at < items; at += gridDim.x, parity ^= flip) {
    const Item item(p, at);
    const int size = static_cast<int>(item.block.size);
    char* summary = summaries + parity * summary_size;
    SummaryGradient<S, kTiles> gradient;
    for (int h = 0; h < p.group; ++h) {
      const int head = item.u.head * p.group + h;
      Bf16* maybe_dq = g.dq.data == nullptr ? nullptr : g.dq.at(item.u.batch, head);
      for (int first = 0; first < size; first += kTokens, slot ^= flip) {
        const char *q = shared + slot * 2 * kTileBytes, *dout = q + kTileBytes;
        copy_wait<0>();
        __syncthreads();  // this tile is there, and all are done with the one before
        if (flip) fetch();
        const bool active = share < kShares && first + tile < size;
        QueryGradient<S, kOwn> mine;
        if (active) mine.compute(p, q + tile * S::kPitch, dout + tile * S::kPitch, summary, d0);
        if constexpr (kShares > 1) {  // the sums of the other columns
          if (active && lane % 4 == 0) {
            sums[share * kTokens + tile + lane / 4] = {mine.den[0], mine.dot[0]};
            sums[share * kTokens + tile + lane / 4 + 8] = {mine.den[1], mine.dot[1]};
          }
          __syncthreads();
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mine.den[i] = mine.dot[i] = 0;
#pragma unroll
            for (int other = 0; other < kShares; ++other) {
              const float2 sum = sums[other * kTokens + tile + lane / 4 + i * 8];
              mine.den[i] += sum.x, mine.dot[i] += sum.y;
            }
          }
        }
        if constexpr (kDen) {
          if (active) {
            mine.template finish<true>(p, g, q + tile * S::kPitch, summary, item.block, first + tile, maybe_dq,
                                       weights + tile, d0, p.den_row(item.u.batch, head),
                                       g.dden_row(p, item.u.batch, head));
          }
        } else if (active) {
          mine.finish(p, g, q + tile * S::kPitch, summary, item.block, first + tile, maybe_dq, weights + tile, d0);
        }
        __syncthreads();  // w and c are there
        for (int step = 0; step < kTokens / 16 && first + step * 16 < size; ++step) {
          gradient.add(p, q + step * 16 * S::kPitch, dout + step * 16 * S::kPitch, weights + step * 16, row, column);
        }
        if (flip == 0 && (h + 1 < p.group || first + kTokens < size)) {  // the tile gives way to the next one
          __syncthreads();
          fetch();
        }
      }
    }
    // Nobody reads S~ of this block any more: dS~ goes through its shared memory.
    gradient.write(p, summary, p.mixed + static_cast<std::int64_t>(at) * (D * E + D), row, column);
    if (flip == 0) {
      __syncthreads();
      fetch();
    }
  }
  copy_wait<0>();
}

// Blocks of keys in turn, dS in shared memory, that of the next block on its way; warps take 16 tokens at a time.
template <class S>
__global__ void __launch_bounds__(128, key_blocks(S::kTiles)) key_gradient_kernel(Arguments p, Gradients g) {
  after_previous();
  extern __shared__ __align__(16) char shared[];  // [2] dS, dz
  const int items = p.units * p.M, warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const int summary_size = summary_bytes(D, S::kTiles);
  const auto fetch = [&](int at, int buffer) {
    if (at < items) {
      copy_summary<S>(p, p.mixed + static_cast<std::int64_t>(at) * (D * E + D), shared + buffer * summary_size);
    }
    copy_commit();
  };
  fetch(blockIdx.x, 0);
  int buffer = 0;
  for (int at = blockIdx.x; at < items; at += gridDim.x, buffer ^= 1) {
    copy_wait<0>();
    __syncthreads();  // dS is there, and all are done with the one before
    fetch(at + gridDim.x, buffer ^ 1);
    const Item item(p, at);
    const char* summary = shared + buffer * summary_size;
    const auto* z = reinterpret_cast<const Bf16*>(summary + summary_row(D, S::kPitch)) + lane % 4 * 2;
    const int size = static_cast<int>(item.block.size);
    const Bf16 *k_base = item.u.k(p), *v_base = item.u.v(p);
    for (int first = warp * 16; first < size; first += 64) {
      std::int64_t token[2];
      bool valid[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = first + lane / 4 + half * 8;
        valid[half] = place < size, token[half] = item.block.token(min(place, size - 1));
      }
      const Bf16* k_rows[2] = {k_base + token[0] * p.k.token, k_base + token[1] * p.k.token};
      const Bf16* v_rows[2] = {v_base + token[0] * p.v.token, v_base + token[1] * p.v.token};
      Queries<S> k;
      std::uint32_t v[S::kRows][4];
      load_rows<S::kRows>(v, v_rows, valid, E);
      put_in_order<S::kRows>(v, E);
      load_rows<S::kRows>(k.a, k_rows, valid, D);
      if (g.dk.data != nullptr) {
        float acc[S::kColumns][4];
#pragma unroll
        for (int j = 0; j < S::kColumns; ++j) {
          const float2 zz =
              p.normalized && j * 8 < D ? unpack_bf16(*reinterpret_cast<const std::uint32_t*>(z + j * 8)) : float2{};
          acc[j][0] = acc[j][2] = zz.x, acc[j][1] = acc[j][3] = zz.y;
        }
        const auto fragment = [&](int step, std::uint32_t(&a)[4]) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = v[step][i];
        };
        multiply_by_rows<S>(p, acc, fragment, summary, 0);
        Bf16* dk = g.dk.at(item.u.batch, item.u.head);
        write_row<0, true>(acc, 1.0f, valid[0], dk + token[0] * g.dk.token, D, S::map(p), k_rows[0]);
        write_row<1, true>(acc, 1.0f, valid[1], dk + token[1] * g.dk.token, D, S::map(p), k_rows[1]);
      }
      if (g.dv.data != nullptr) {
        const Readout<S> x(p, k, summary);
        Bf16* dv = g.dv.at(item.u.batch, item.u.head);
        write_row<0, false>(x.acc, 1.0f, valid[0], dv + token[0] * g.dv.token, E);
        write_row<1, false>(x.acc, 1.0f, valid[1], dv + token[1] * g.dv.token, E);
      }
    }
  }
  copy_wait<0>();
}

// Blocks of threads that take the blocks of all units in turn.
template <class Kernel, class... A>
void launch_persistent(Kernel kernel, int threads, int bytes, const Arguments& a, cudaStream_t stream, const char* name,
                       const A&... more) {
  const unsigned blocks = blocks_for(kernel, threads, bytes, std::int64_t{a.units} * a.M);
  launch_next(name, kernel, blocks, threads, bytes, stream, a, more...);
}

// dq and dS~ of the units of `a`.
template <class S, bool kDen = false>
void launch_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  const int buffers = gradient_buffers(a.D, S::kTiles, a.most_shared);
  launch_persistent(query_gradient_kernel<S, kDen>, gradient_warps(S::kTiles) * 32,
                    gradient_shared_bytes(a.D, S::kTiles, buffers), a, stream, "query_gradient_kernel", g, buffers);
}

}  // namespace mhla::sm80
