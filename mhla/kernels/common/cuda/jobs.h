// The arguments of one launch of a phase, and the phases themselves. A call runs in waves: a wave is a range of
// sequences and kv heads whose summaries fit the budget (plan.h). Buffers of a wave are indexed by its own heads and
// blocks:
//   summaries      [heads][blocks][stride]   S as [D][E], then z as [D]; stride is D E + D, rounded up to 4
//   token values   [heads][blocks][C]        one f32 per token, in block order: denominators and the like
// where heads are kv heads or query heads as the buffer says. Plain structs, passed to kernels by value.
#pragma once

#include <cstdint>

#include "mhla/core/view.h"
#include "mhla/kernels/common/cuda/layout.cuh"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::cuda {

// Which sequence a block belongs to, and where its tokens are. Without cu_seqlens: arithmetic. With them: tables in
// device memory, written by Call::make_tables.
struct DeviceSequences {
  std::int64_t N = 0;                               // tokens of a batch element
  FastDivisor M;                                    // and its blocks
  std::int64_t* maybe_start = nullptr;              // [S + 1] first token of a sequence
  std::int64_t* maybe_first_block = nullptr;        // [S + 1] blocks of all sequences before
  std::int32_t* maybe_sequence_of_block = nullptr;  // [blocks of the call]
};

// A wave of the call, as every kernel sees it.
struct Wave {
  DeviceLayout layout;
  DeviceSequences sequences;
  std::int64_t first_sequence = 0, first_block = 0;
  std::int32_t sequence_count = 0, blocks = 0;
  std::int32_t M = 0;  // blocks of the longest sequence of the call
  std::int32_t C = 0;  // token values per block
  std::int32_t D = 0, E = 0;
  std::int32_t group = 1;  // query heads per kv head
  std::int32_t first_kv_head = 0, kv_heads = 0;
  std::int64_t summary_stride = 0;  // floats
  FeatureMap feature_map = FeatureMap::kReluEps;
  bool low_tiles = false;  // tiles of 16 tokens rather than 64: by the size of blocks in the layout alone
};

// [B, N, heads, columns] in device memory; the element type is the problem's.
struct DeviceTensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  std::int32_t columns = 0;
  bool vector = false;  // rows begin at multiples of 16 bytes

  [[nodiscard]] MHLA_HOST_DEVICE bool given() const { return data != nullptr; }
};

struct DeviceMix {
  const float* data = nullptr;
  std::int64_t head_stride = 0, row_stride = 0, column_stride = 0;  // head_stride 0: one matrix for all heads
  std::int32_t L = 0;

  [[nodiscard]] MHLA_HOST_DEVICE float at(std::int64_t head, std::int64_t i, std::int64_t b) const {
    const MixIndex index = mix_index(i, b, L);
    return data[head * head_stride + index.row * row_stride + index.column * column_stride];
  }
};

// Rows of tokens as one side of a product: x, phi(x), or x * scale / den(token).
struct TokenSource {
  DeviceTensor tensor;
  bool mapped = false;
  const float* maybe_den = nullptr;  // token values of query heads
  float scale = 1;                   // 1 unless the rows are those of dout
  bool scaled = false;
};

// S = sum_t a_t b_t^T and z = sum_t factor_t x_t over the tokens of a block (x mapped).
struct SummaryJob {
  Wave wave;
  TokenSource a, b;                     // [D], [E] per token
  DeviceTensor maybe_x;                 // not given: no z
  const float* maybe_factor = nullptr;  // token values; null: 1
  bool of_queries = false;              // heads are query heads
  float* out = nullptr;                 // summaries
};

// out_x = add + sum_k coefficient(x, k) in_k over whole rows of summaries or token values, of one sequence and head.
enum class MixTerms : std::uint8_t { kAll, kBefore /* k < x */, kAfter /* k > x */ };
struct MixJob {
  Wave wave;
  DeviceMix mix;
  MixTerms terms = MixTerms::kAll;
  bool back = false;           // coefficients are mix[k,x], else mix[x,k]
  bool over_group = false;     // out has kv heads: the sum goes over their query heads, too
  const float* in = nullptr;   // of query heads with `over_group`
  bool in_of_queries = false;  // otherwise as this says
  float* out = nullptr;
  std::int64_t in_stride = 0, out_stride = 0;  // floats from block to block
  std::int32_t columns = 0;
  bool seeded = false;  // kBefore: rows x >= mix.L start from what stands in out
  float add = 0;
};

// z of a kv head = sum of z over its query heads.
struct SumHeadsJob {
  Wave wave;
  const float* in = nullptr;  // [query heads][blocks][summary_stride], D floats of each
  float* out = nullptr;       // [kv heads][blocks][summary_stride]
};

// BeyondMix::kExtend: row i >= L of out starts as mix[L-1,0] times the running sum of the blocks it shares that
// coefficient among, oldest first.
struct SeedJob {
  Wave wave;
  DeviceMix mix;
  const float* in = nullptr;  // summaries of kv heads
  float* out = nullptr;       // of query heads
  std::int32_t columns = 0;
};

// One row of output per token: rows a_t times the summary of its block, and in the causal form the tokens of its chunk:
//   value_t = a_t . S + m sum_o (a_t . y_o + bias) w_o       o <= t, or o >= t where `after`; m = mix[i,i]
//   out_t   = slope(x_t) * (scale * value_t / den_t + factor_t * z)
struct ReadOutJob {
  Wave wave;
  bool of_queries = true;  // rows and summaries have query heads, else kv heads
  TokenSource a;
  const float* summaries = nullptr;
  bool transposed = false;  // a_t . S^T: a has E columns, out D
  // Inside the chunk; y not given: bidirectional.
  TokenSource y, w;  // of kv heads where rows are queries, of the query heads of a kv head where they are not
  bool after = false;
  const float* maybe_bias = nullptr;  // token values of query heads: of the row, or of o where `after`
  DeviceMix mix;
  // Then
  const float* maybe_den = nullptr;  // token values of query heads
  float scale = 1;
  const float* maybe_z = nullptr;       // [heads][blocks][summary_stride], D floats of each
  bool z_of_keys = false;               // its heads are kv heads though rows are queries
  const float* maybe_factor = nullptr;  // token values of rows; null: 1
  DeviceTensor maybe_slope_of;          // x
  DeviceTensor out;
};

// dout . out, kept in two parts: over the prefix, and inside the chunk without mix[i,i].
//   before_t = g_t . (q~_t^T S)         inside_t = sum_{o<=t} (q~_t . k~_o) (g_t . v_o)
struct RowDotJob {
  Wave wave;
  TokenSource q, dout;
  const float* summaries = nullptr;  // of query heads
  TokenSource k, v;                  // not given: bidirectional
  float* maybe_before = nullptr;     // token values of query heads
  float* maybe_inside = nullptr;     // causal
};

// Token values q_t . z of query heads, plus `add`; z of query heads, or of kv heads.
struct DenominatorJob {
  Wave wave;
  DeviceTensor q;
  const float* z = nullptr;  // [heads][blocks][summary_stride]
  bool z_of_queries = true;
  float add = 0;
  float* out = nullptr;
};

// Causal: open_t = q_t . c_t with c_t the sum of k~ over the chunk up to t; den_t = eps + q_t . p_i + mix[i,i] open_t.
struct CausalDenominatorJob {
  Wave wave;
  DeviceTensor q, k;
  const float* z = nullptr;  // p_i, of query heads
  DeviceMix mix;
  float eps = 0;
  float* den = nullptr;
  float* maybe_open = nullptr;
};

// Gradient of denominators from the dots of RowDotJob, all token values of query heads:
//   dot = before + mix[i,i] inside      dden = -(scale dot / den) / den      (den given)
// and in the causal form what one chunk gives to the diagonal of dmix:
//   diagonal_i = sum_t (scale / den_t) inside_t + dden_t open_t
struct DotGradientJob {
  Wave wave;
  DeviceMix mix;
  const float* maybe_before = nullptr;  // given with den
  const float* maybe_inside = nullptr;
  const float* maybe_den = nullptr;
  const float* maybe_open = nullptr;
  float scale = 1;
  float* maybe_dden = nullptr;
  float* maybe_diagonal = nullptr;  // [query heads][blocks]
};

// Gradients of q_den and k_den where they are given:
//   out_t = slope(x_t) * (factor_t z + sum of the chunk)
// q_den: factor_t * mix[i,i] sum_{s<=t} phi(y_s);  k_den: sum over query heads of mix[i,i] sum_{o>=t} factor_o
// phi(y_o).
struct VectorGradientJob {
  Wave wave;
  bool of_queries = true;
  const float* z = nullptr;  // [heads][blocks][summary_stride]
  bool z_of_keys = false;
  const float* maybe_factor = nullptr;  // token values of query heads; not given: 1
  DeviceTensor maybe_y;                 // causal
  DeviceMix mix;
  DeviceTensor x;
  DeviceTensor out;
};

// parts[slice][query head][block i][M]: <a_i, b_j> over `columns` floats, cut into slices of kSlice.
inline constexpr std::int32_t kSlice = 4096;
struct MixProductJob {
  Wave wave;
  const float* a = nullptr;  // of query heads
  const float* b = nullptr;
  bool b_of_queries = false;
  std::int64_t a_stride = 0, b_stride = 0;
  std::int32_t columns = 0;
  bool of_tokens = false;  // rows are token values: those beyond the blocks of a sequence do not exist
  bool causal = false;     // only j < i is wanted
  float* parts = nullptr;  // of this product
};

// dmix += what the wave gives, over its sequences and the heads that share a matrix, in a fixed order.
struct MixReduceJob {
  Wave wave;
  const float* parts = nullptr;
  std::int32_t slices = 0;
  const float* maybe_diagonal = nullptr;  // causal: (i, i) is here
  bool causal = false;
  float* dmix = nullptr;
  std::int64_t head_stride = 0, row_stride = 0, column_stride = 0;
  std::int32_t L = 0;
  bool per_head = false;
};

void block_summaries(DType dtype, const SummaryJob& job, void* stream);
void mix_blocks(DType arithmetic, const MixJob& job, void* stream);  // kF32: full f32, else TF32
void sum_heads(const SumHeadsJob& job, void* stream);
void seed_prefixes(const SeedJob& job, void* stream);
void read_out(DType dtype, const ReadOutJob& job, void* stream);
void row_dots(DType dtype, const RowDotJob& job, void* stream);
void denominators(DType dtype, const DenominatorJob& job, void* stream);
void causal_denominators(DType dtype, const CausalDenominatorJob& job, void* stream);
void dot_gradients(const DotGradientJob& job, void* stream);
void vector_gradients(DType dtype, const VectorGradientJob& job, void* stream);
void mix_products(DType arithmetic, const MixProductJob& job, void* stream);
void clear_mix_gradient(const MixReduceJob& job, std::int64_t matrices, void* stream);
void reduce_mix_gradient(const MixReduceJob& job, void* stream);

}  // namespace mhla::cuda
