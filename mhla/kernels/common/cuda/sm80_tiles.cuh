// Device code that the kernels of `sm80` and `sm90` share, bf16: products on tensor cores, tokens gathered from
// raster order. S is kept in bf16 between the phases, every sum is f32.
//   z is one more column of S: k~^T 1, with a fragment of ones, and q~ z~ comes out of the product beside q~ S~
#pragma once

#include "mhla/kernels/common/cuda/layout.cuh"
#include "mhla/kernels/common/cuda/sm80_plan.h"
#include "mhla/kernels/common/cuda/tensor_core.cuh"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

using namespace mhla::cuda;  // NOLINT(google-build-using-namespace): the building blocks of all device code
using Bf16 = __nv_bfloat16;

template <class T>
struct Strided {  // [B, N, heads, X]
  T* data;
  std::int64_t batch, token, head;
  __device__ T* at(std::int64_t b, std::int64_t h) const { return data + b * batch + h * head; }
};

struct Arguments {
  Strided<const Bf16> q, k, v;
  Strided<Bf16> out;
  DeviceLayout layout;
  std::int64_t N;
  // Packed sequences: where those of these units lie. Not given: one a batch element, N tokens each.
  const TokenRange* maybe_ranges;
  int M, D, E, Hkv, group;  // E: of a part
  int parts;                // of the columns of v and out, each a unit of its own
  bool causal;              // S~_i of the blocks before i
  bool hopper;              // candidate sm90: its own kernels too
  int most_shared;          // bytes that a block of threads may have
  bool long_blocks;         // of more tokens than a tile of 64
  int L;                    // rows of mix: less than M with `extend`
  int mix_rows;             // what the way of mixing follows from: causal, those of mix, whatever the sequence has
  FeatureMap map;
  bool normalized;
  float eps, scale;
  const float* mix;                            // [Hm, L, L]
  std::int64_t mix_head, mix_row, mix_column;  // strides; mix_head is 0 when shared
  uint4* packed_mix;                           // [Hm][packed_mix_units()], the three phases only
  Bf16* summaries;                             // [units][M][D E + D], S then z; the three phases only
  Bf16* mixed;                                 // S~, in place of S where S is not needed any more; its gradient
  const Bf16* query_sums;                      // S~ as backward reads it: `mixed`, in place of S, or kept by forward
  int first_unit, units;                       // of this launch
  bool first_of_pass;                          // the first launch of a pass: its inputs may still be on their way
  std::uint32_t* maybe_taken;                  // what this launch has taken of its items (sm90_items.cuh)
  int taken_count;                             // packing mix clears so many of these from there on
  float* maybe_den;  // [B, H, N]: denominators with eps, made of q_den and k_den; then `normalized` is false

  __device__ BlockTokens block(int index) const { return layout.tokens(index, N); }
  // How block `from` counts for block `to` of a causal sequence, which may have more blocks than mix has rows.
  __device__ float causal_mix(int mix_of, int to, int from) const {
    const MixIndex at = mix_index(to, from, L);
    return mix[mix_of * mix_head + at.row * mix_row + at.column * mix_column];
  }
  __device__ float* den_row(int batch, int head) const {  // of a query head
    return maybe_den + (static_cast<std::int64_t>(batch) * Hkv * group + head) * N;
  }
  __device__ float diagonal(int head, int index) const {  // causal: mix[i,i] of a query head
    return mix[(mix_head ? head : 0) * mix_head + min(index, L - 1) * (mix_row + mix_column)];
  }
};

// What the compiler knows of a problem beside its tiles: nothing, or that the sizes fill them, and the map.
enum class Known { kNothing, kReluEps, kIdentity };

// Tiles of a kernel.
template <int kRows_, int kColumns_, Known kKnown>
struct Spec {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kFast = kKnown != Known::kNothing;
  static constexpr Tiles kTiles = {kRows, kColumns};
  static constexpr int kPitch = pitch_of(kTiles);  // of k, v and S
  __device__ static int D(const Arguments& p) { return kFast ? exact_size(kTiles) : p.D; }
  __device__ static int E(const Arguments& p) { return kFast ? exact_size(kTiles) : p.E; }
  __device__ static FeatureMap map(const Arguments& p) {
    return !kFast ? p.map : kKnown == Known::kReluEps ? FeatureMap::kReluEps : FeatureMap::kIdentity;
  }
};

struct Unit {  // one kv head of one sequence, or one part of its columns
  int sequence, batch, head, part;
  __device__ Unit(const Arguments& p, int unit) {
    const int row = p.parts == 1 ? unit : unit / p.parts;  // a division takes twenty instructions
    part = p.parts == 1 ? 0 : unit % p.parts;
    sequence = row / p.Hkv, head = row - sequence * p.Hkv;
    batch = p.maybe_ranges == nullptr ? sequence : 0;
  }
  // Block `index` of its sequence. Packed sequences share launches: the shorter ones end in blocks without tokens.
  __device__ BlockTokens block(const Arguments& p, int index) const {
    if (p.maybe_ranges == nullptr) return p.block(index);
    const longlong2 range = __ldcg(reinterpret_cast<const longlong2*>(p.maybe_ranges + sequence));  // start, length
    const std::int64_t from = index * p.layout.step[2];
    BlockTokens at = p.layout.tokens(index, range.y > from ? range.y : from);
    at.origin += range.x;
    return at;
  }
  __device__ const Bf16* k(const Arguments& p) const { return p.k.at(batch, head); }
  __device__ const Bf16* v(const Arguments& p) const { return p.v.at(batch, head) + part * p.E; }
  __device__ Bf16* out(const Arguments& p, int query_head) const { return p.out.at(batch, query_head) + part * p.E; }
};

__device__ inline std::uint32_t feature_pair(FeatureMap map, std::uint32_t pair) {
  __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&pair);
  const __nv_bfloat162 zero = __float2bfloat162_rn(0.0f);
  switch (map) {
    case FeatureMap::kReluEps:
      x = __hadd2(__hmax2_nan(x, zero), __float2bfloat162_rn(static_cast<float>(kReluEpsilon)));
      break;
    case FeatureMap::kRelu: x = __hmax2_nan(x, zero); break;
    case FeatureMap::kElu1: {
      const float2 f = __bfloat1622float2(x);
      x = __floats2bfloat162_rn(f.x <= 0 ? expf(f.x) : f.x + 1.0f, f.y <= 0 ? expf(f.y) : f.y + 1.0f);
      break;
    }
    case FeatureMap::kIdentity: break;
  }
  return *reinterpret_cast<std::uint32_t*>(&x);
}

__device__ inline void feature_fragment(FeatureMap map, std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = feature_pair(map, a[i]);
}

// What lane `lane` holds of tile (i, b) of mix, or of its transpose, in bf16, as A of a product. kExtended: p.L may be
// less than p.M.
template <bool kExtended = false>
__device__ inline uint4 mix_fragment(const Arguments& p, int head, int i, int b, int lane, bool back = false) {
  const int i0 = i * 16 + lane / 4, b0 = b * 16 + lane % 4 * 2;
  const auto pair = [&](int row, int column) {
    const auto value = [&](int other) {
      const int to = back ? other : row, from = back ? row : other;
      const bool used = to < p.M && (p.causal ? from < to : from < p.M);
      if constexpr (kExtended) {
        return used ? p.causal_mix(head, to, from) : 0.0f;
      } else {
        return used ? p.mix[head * p.mix_head + to * p.mix_row + from * p.mix_column] : 0.0f;
      }
    };
    return pack_bf16(value(column), value(column + 1));
  };
  return {pair(i0, b0), pair(i0 + 8, b0), pair(i0, b0 + 8), pair(i0 + 8, b0 + 8)};
}

// k and v of kTokens tokens of a block to shared memory, zeros behind its end. k, v: the head's first token.
template <class S, int kTokens, int kThreads>
__device__ inline void copy_keys(const Arguments& p, const Bf16* k, const Bf16* v, const BlockTokens& block, int first,
                                 std::uint32_t keys, std::uint32_t values, int thread) {
  constexpr int kPerRow = kThreads / kTokens >= 4 ? kThreads / kTokens : 4;
  for (int row = thread / kPerRow; row < kTokens; row += kThreads / kPerRow) {
    const bool valid = first + row < static_cast<int>(block.size);
    const std::int64_t token = valid ? block.token(first + row) : 0;
    const Bf16 *k_row = k + token * p.k.token, *v_row = v + token * p.v.token;
    const std::uint32_t k_to = keys + row * S::kPitch, v_to = values + row * S::kPitch;
#pragma unroll
    for (int c = thread % kPerRow; c < S::D(p) / 8; c += kPerRow) copy16(k_to + c * 16, k_row + c * 8, valid);
#pragma unroll
    for (int c = thread % kPerRow; c < S::E(p) / 8; c += kPerRow) copy16(v_to + c * 16, v_row + c * 8, valid);
  }
}

// 16 rows of a summary in the registers of a warp.
template <class S>
struct Summary {
  float acc[S::kColumns][4] = {};
  float z[4] = {};  // column 0 counts

  // += k~^T [v 1] over 16 tokens, of which the first `tokens` exist; rows of S from `row`.
  __device__ void add(const Arguments& p, std::uint32_t keys, std::uint32_t values, int tokens, int row) {
    const int lane = threadIdx.x % 32;
    std::uint32_t a[4];
    load_matrices_transposed(a, keys + (lane % 8 + lane / 16 * 8) * S::kPitch + (row + lane / 8 % 2 * 8) * 2);
    feature_fragment(S::map(p), a);
    multiply_rows<S::kColumns>(acc, a, values + lane % 16 * S::kPitch);
    const auto ones = [&](int t) {  // rows t and t + 1 of a column of ones
      return lane >= 4 ? 0u : (t < tokens ? 0x3f80u : 0u) | (t + 1 < tokens ? 0x3f800000u : 0u);
    };
    multiply_add(z, a, ones(lane * 2), ones(lane * 2 + 8));
  }
  // z of the rows this lane holds, if any: f(d, value).
  template <class F>
  __device__ void each_z(const Arguments& p, int row, const F& f) const {
    const int lane = threadIdx.x % 32, d = row + lane / 4;
    if (lane % 4 == 0 && d < S::D(p)) f(d, __float2bfloat16_rn(z[0]));
    if (lane % 4 == 0 && d + 8 < S::D(p)) f(d + 8, __float2bfloat16_rn(z[2]));
  }
};

// Bytes from the first to the second 8 columns of a step of 16, of X: where X ends between them the first again, as
// what lies behind a row may be on its way.
__device__ inline int second_half(int step, int X) { return step * 16 + 8 < X ? 16 : 0; }

// Stores a tile of 16 rows and kTiles * 8 columns in bf16 to shared memory: `row` is the address of the row of the tile
// that this lane provides (lane % 16), column 0. Cards before sm_90 have no stmatrix: lanes store what they hold.
template <int kTiles>
__device__ inline void store_tile(const float (&acc)[kTiles][4], std::uint32_t row) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
#pragma unroll
  for (int j = 0; j + 1 < kTiles; j += 2) {
    store_matrices(row + (j + lane / 16) * 16, pack_bf16(acc[j][0], acc[j][1]), pack_bf16(acc[j][2], acc[j][3]),
                   pack_bf16(acc[j + 1][0], acc[j + 1][1]), pack_bf16(acc[j + 1][2], acc[j + 1][3]));
  }
  if constexpr (kTiles % 2 == 1) {
    constexpr int j = kTiles - 1;
    store_two_matrices(row + j * 16, pack_bf16(acc[j][0], acc[j][1]), pack_bf16(acc[j][2], acc[j][3]));
  }
#else
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t to = __shfl_sync(0xffffffffu, row, lane / 4 + half * 8) + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + j * 16), "r"(pack_bf16(acc[j][2 * half], acc[j][2 * half + 1]))
                   : "memory");
    }
  }
#endif
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Four lanes hold four values each, x[j] of lane q being part q of row j: afterwards x[j] is part j of row q.
__device__ inline void transpose_quad(std::uint32_t (&x)[4]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int away = 1; away < 4; away *= 2) {
    const bool upper = q & away;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & away) continue;
      const std::uint32_t sent = upper ? x[j] : x[j + away];
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, sent, away);
      (upper ? x[j] : x[j + away]) = got;
    }
  }
}

// 16 rows of X values as fragments, straight from memory: this lane's are rows[0] = row lane / 4 and rows[1], 8 below.
// A product over X may take it in any order: in every 32 columns lane q of a row takes eight neighbours, 16 bytes, as
// its share of two steps. Step s has columns 8 q + 4 s + {0, 1, 2, 3}. What is left of 32 comes in order.
template <int kSteps>
__device__ inline void load_rows(std::uint32_t (&a)[kSteps][4], const Bf16* const (&rows)[2], const bool (&valid)[2],
                                 int X) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int x0 = step * 16;
    if (x0 / 32 * 32 + 32 <= X) {
      if (step % 2 == 1) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x = valid[half] ? *reinterpret_cast<const uint4*>(rows[half] + x0 + q * 8) : uint4{};
        a[step][half] = x.x, a[step][half + 2] = x.y;
        if (step + 1 < kSteps) a[step + 1][half] = x.z, a[step + 1][half + 2] = x.w;
      }
    } else {
#pragma unroll
      for (int half = 0; half < 4; ++half) {
        const int c = x0 + half / 2 * 8 + q * 2;
        a[step][half] = valid[half % 2] && c < X ? *reinterpret_cast<const std::uint32_t*>(rows[half % 2] + c) : 0u;
      }
    }
  }
}

// What load_rows() gives, with the columns of every step in order, as ldmatrix gives the other side of a product.
template <int kSteps>
__device__ inline void put_in_order(std::uint32_t (&a)[kSteps][4], int X) {
#pragma unroll
  for (int step = 0; step + 1 < kSteps; step += 2) {
    if (step * 16 + 32 > X) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t x[4] = {a[step][half], a[step][half + 2], a[step + 1][half], a[step + 1][half + 2]};
      transpose_quad(x);
      a[step][half] = x[0], a[step][half + 2] = x[1], a[step + 1][half] = x[2], a[step + 1][half + 2] = x[3];
    }
  }
}

// q of 16 tokens of a block.
template <class S>
struct Queries {
  std::uint32_t a[S::kRows][4];

  __device__ void load(const Arguments& p, const Bf16* base, const BlockTokens& block, int first) {
    const Bf16* rows[2];
    bool valid[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = first + threadIdx.x % 32 / 4 + half * 8;
      valid[half] = place < static_cast<int>(block.size);
      rows[half] = base + (valid[half] ? block.token(place) * p.q.token : 0);
    }
    load_rows<S::kRows>(a, rows, valid, S::D(p));
  }
};

// q~ S~ and q~ z~ of 16 tokens in the registers of a warp.
template <class S>
struct Readout {
  float acc[S::kColumns][4] = {};
  float den[4] = {};  // column 0 counts

  __device__ Readout() {}
  // `summary`: shared memory, as summary_row() says.
  __device__ Readout(const Arguments& p, Queries<S>& queries, const char* summary) {
    const int D = S::D(p), lane = threadIdx.x % 32, r = lane % 8, half = lane / 8 % 2;
    const std::uint32_t rows = shared_address(summary);
    const auto* z = reinterpret_cast<const Bf16*>(summary + summary_row(D, S::kPitch));
#pragma unroll
    for (int step = 0; step < S::kRows; ++step) {
      if (step * 16 >= D) break;
      const bool shuffled = step / 2 * 32 + 32 <= D;
      const int d = shuffled ? step / 2 * 32 + r / 2 * 8 + step % 2 * 4 + half * 2 + r % 2 : step * 16 + half * 8 + r;
      std::uint32_t(&a)[4] = queries.a[step];
      feature_fragment(S::map(p), a);
      const bool whole = step * 16 + 8 < D;  // D is a multiple of 8
      if (!whole) a[2] = a[3] = 0;
      multiply_rows<S::kColumns>(acc, a, rows + summary_row(min(d, D - 1), S::kPitch));
      std::uint32_t b0 = 0, b1 = 0;
      if (lane < 4) {
        const int at = shuffled ? step / 2 * 32 + lane * 8 + step % 2 * 4 : step * 16 + lane * 2;
        b0 = *reinterpret_cast<const std::uint32_t*>(z + at);
        b1 = whole ? *reinterpret_cast<const std::uint32_t*>(z + at + (shuffled ? 2 : 8)) : 0u;
      }
      multiply_add(den, a, b0, b1);
    }
  }
};

// The gradient of x from that of phi(x), both bf16. NaN passes.
__device__ inline std::uint32_t through_slope(FeatureMap map, std::uint32_t x, std::uint32_t gradient) {
  if (map == FeatureMap::kIdentity) return gradient;
  if (map != FeatureMap::kElu1) {
    return gradient & ~__hle2_mask(*reinterpret_cast<__nv_bfloat162*>(&x), __float2bfloat162_rn(0.0f));
  }
  const float2 f = unpack_bf16(x), g = unpack_bf16(gradient);
  const auto slope = [](float x) { return x <= 0 ? expf(x) : 1.0f; };
  return pack_bf16(slope(f.x) == 0 ? 0.0f : g.x * slope(f.x), slope(f.y) == 0 ? 0.0f : g.y * slope(f.y));
}

// One row of the 16, X values: factor * acc[j][2 * kHalf] and the next, and with kGradient through the slope of the map
// at `x`. All lanes call, rows that do not exist are not written.
template <int kHalf, bool kGradient, int kTiles>
__device__ inline void write_row(const float (&acc)[kTiles][4], float factor, bool valid, Bf16* to, int X,
                                 FeatureMap map = FeatureMap::kIdentity, const Bf16* x = nullptr) {
  const int q = threadIdx.x % 4;
  const auto pair = [&](const float(&c)[4]) { return pack_bf16(c[2 * kHalf] * factor, c[2 * kHalf + 1] * factor); };
#pragma unroll
  for (int j = 0; j + 3 < kTiles; j += 4) {
    if (j * 8 + 32 > X) break;
    std::uint32_t y[4] = {pair(acc[j]), pair(acc[j + 1]), pair(acc[j + 2]), pair(acc[j + 3])};
    transpose_quad(y);
    if (!valid) continue;
    if constexpr (kGradient) {
      const uint4 at = *reinterpret_cast<const uint4*>(x + j * 8 + q * 8);
      y[0] = through_slope(map, at.x, y[0]), y[1] = through_slope(map, at.y, y[1]);
      y[2] = through_slope(map, at.z, y[2]), y[3] = through_slope(map, at.w, y[3]);
    }
    *reinterpret_cast<uint4*>(to + j * 8 + q * 8) = {y[0], y[1], y[2], y[3]};
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if (!valid || j / 4 * 32 + 32 <= X || j * 8 >= X) continue;
    std::uint32_t y = pair(acc[j]);
    if constexpr (kGradient) y = through_slope(map, *reinterpret_cast<const std::uint32_t*>(x + j * 8 + q * 2), y);
    *reinterpret_cast<std::uint32_t*>(to + j * 8 + q * 2) = y;
  }
}

// scale / den of a row, whose first lane holds q~ z~.
__device__ inline float output_factor(const Arguments& p, float den) {
  const float total = __shfl_sync(0xffffffffu, den, threadIdx.x % 32 & ~3);
  return p.normalized ? p.scale / (p.eps + total) : p.scale;
}

// out = scale * num / den of 16 tokens. kDen: den of the tokens is in memory.
template <class S, bool kDen = false>
__device__ inline void write_outputs(const Arguments& p, const Readout<S>& x, Bf16* base, const BlockTokens& block,
                                     int first, const float* den = nullptr) {
  const int lane = threadIdx.x % 32, place = first + lane / 4, last = static_cast<int>(block.size) - 1;
  float factors[2];
  if constexpr (kDen) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factors[half] = p.scale / __ldcg(den + block.token(min(place + half * 8, last)));
  } else {
    factors[0] = output_factor(p, x.den[0]), factors[1] = output_factor(p, x.den[2]);
  }
  Bf16 *upper = base + block.token(min(place, last)) * p.out.token,
       *lower = base + block.token(min(place + 8, last)) * p.out.token;
  write_row<0, false>(x.acc, factors[0], place <= last, upper, S::E(p));
  write_row<1, false>(x.acc, factors[1], place + 8 <= last, lower, S::E(p));
}

}  // namespace mhla::sm80
