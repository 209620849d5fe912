// Tools for the mixing matrix: mix[i,b] is the weight that query block i gives to key block b.
// Initial values by distance between blocks, the constraint kept during training, resampling of a trained
// matrix to another block grid, and what to do when a causal sequence outgrows its matrix. README.md has the
// formulas. Matrices are views [M, M] or [Hm, M, M], f32 or f64, any strides; arithmetic is f64, rounded once.
// Every function checks first and writes last: after an error its output is untouched.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "mhla/core/view.h"
#include "mhla/kernels/common/layout.h"

namespace mhla {

// Blocks per axis, right-aligned like Layout: [frame, row, column]. Block index: (f * rows + i) * columns + j.
struct BlockGrid {
  std::array<std::int64_t, 3> blocks{1, 1, 1};

  static BlockGrid line(std::int64_t blocks) { return {{1, 1, blocks}}; }
  static BlockGrid grid2d(std::int64_t rows, std::int64_t columns) { return {{1, rows, columns}}; }
  static BlockGrid grid3d(std::int64_t frames, std::int64_t rows, std::int64_t columns) {
    return {{frames, rows, columns}};
  }
  static BlockGrid of(const Layout& layout, std::int64_t N);  // the grid of N tokens: 1D has ceil(N / C) blocks

  [[nodiscard]] std::int64_t count() const;  // M; throws when a size is below 1 or the product overflows
  bool operator==(const BlockGrid&) const = default;
};

std::string describe(const BlockGrid& grid);  // "32", "4x4", "3x5x10"

// ---- Initial values, bidirectional (README.md, eq. 1 to 3)

// Weight before normalisation, d the Euclidean distance of two blocks in block units, dmax its largest value.
enum class MixTransform : std::uint8_t {
  kLinear,    // 1 - d / dmax; the paper takes dmax over the row
  kCos,       // cos(pi/4 * d / dmax)
  kExp,       // exp(-d / exp_sigma)
  kGaussian,  // exp(-d^2 / (2 sigma^2)), sigma = dmax / 3
  kLocal,     // 1 within local_threshold, 0 beyond
  kUniform,   // 1 / M
};

std::string_view name_of(MixTransform transform);  // "linear", "cos", "exp", "gaussian", "local", "uniform"
MixTransform parse_mix_transform(std::string_view name);

struct MixInit {
  MixTransform transform = MixTransform::kLinear;
  bool official = false;         // columns sum to 1, global dmax, gaussian as it is; else rows sum to 1
  double exp_sigma = 3.0;        // of kExp, > 0
  double local_threshold = 1.5;  // of kLocal, >= 0; 1.5 includes diagonal neighbours
};

// One block gives [[1]]. A per-head view gets the same matrix for every head.
void init_mix(const MixInit& init, const BlockGrid& grid, View mix /* [M, M] or [Hm, M, M] */);

// ---- Initial values, causal (README.md, eq. 4 to 6)

// Row i is over chunks b <= i and sums to 1, entries above the diagonal are 0. Row i does not depend on the
// number of rows, so the leading part of a larger matrix is the smaller matrix.
enum class CausalInit : std::uint8_t {
  kPrefix,  // 1 / (i + 1): uniform over the prefix, what the published language model starts from
  kLinear,  // (b + 1) / (1 + 2 + ... + (i + 1)): falls linearly with distance, the oldest chunk keeps a share
  kExp,     // exp(-(i - b) / sigma), normalised: a memory of about sigma chunks
};

std::string_view name_of(CausalInit init);  // "prefix", "linear", "exp"
CausalInit parse_causal_init(std::string_view name);

void init_causal_mix(CausalInit init, View mix /* [L, L] or [Hm, L, L] */, double exp_sigma = 3.0);

// ---- Constraint, applied in place after an optimiser step

struct MixConstraint {
  double lo = 0.0;
  double hi = 1.0;
  bool renormalize_rows = false;  // after clipping, scale every row to sum 1; needs lo >= 0
  bool causal = false;            // hold entries above the diagonal at 0, whatever stood there

  // The published language model clips to [1e-5, 1] before every forward and does not mask.
  static MixConstraint official_causal() { return {.lo = 1e-5}; }
};

// Returns how many entries were clipped. NaN and infinity are an error naming the first such entry: a diverged
// matrix must not turn into a legal one. So is a row of zeros that should be renormalised.
std::int64_t constrain_mix(const MixConstraint& constraint, View mix);

// ---- Resampling to another block grid (README.md, eq. 7 to 10)

// Interpolates linearly between block centres, on the query axis and on the key axis, along every axis of the
// grid; then each row is scaled to the interpolated sum of the source rows. The same grid returns the same bits.
// `causal` (1D grids): interpolates among entries on and below the diagonal only and leaves 0 above it.
// Negative entries are allowed. `out` has M_to rows and as many heads as `mix`; it may be the same memory.
void resample_mix(ConstView mix, const BlockGrid& from, View out, const BlockGrid& to, bool causal = false);

// ---- Causal sequences longer than the matrix (README.md, "Lengths")

enum class LengthPolicy : std::uint8_t {
  kError,         // refuse
  kTruncateLeft,  // keep the last L * C tokens
  kRechunk,       // larger chunks: ceil(T / L) tokens
  kExtend,        // more rows: see extend_mix
};

std::string_view name_of(LengthPolicy policy);  // "error", "truncate_left", "rechunk", "extend"
LengthPolicy parse_length_policy(std::string_view name);

// These two must know the whole length before the first token: one pass only, never in streaming.
constexpr bool needs_whole_length(LengthPolicy policy) {
  return policy == LengthPolicy::kTruncateLeft || policy == LengthPolicy::kRechunk;
}

struct LengthPlan {
  LengthPolicy policy = LengthPolicy::kError;  // the policy asked for
  bool applied = false;                        // whether the length made it act; false: the sequence fits as it is
  std::int64_t first = 0;                      // first token kept
  std::int64_t tokens = 0;                     // tokens kept: [first, first + tokens)
  std::int64_t chunk = 0;                      // chunk size to use
  std::int64_t rows = 0;                       // ceil(tokens / chunk): rows of mix in use, above L only with extend
  bool operator==(const LengthPlan&) const = default;
};

// A sequence of `tokens` tokens, a matrix of `stored_rows` rows, chunks of `chunk` tokens.
LengthPlan plan_length(std::int64_t stored_rows, std::int64_t chunk, std::int64_t tokens, LengthPolicy policy);
std::string describe(const LengthPlan& plan);  // "truncate_left: tokens 952 to 2999, 32 chunks of 64"

// The matrix that `extend` stands for: row i >= L is mix[L-1, L-1-(i-b)] for i-b < L and mix[L-1, 0] beyond.
// Fewer rows than L give the leading part. Entries above the diagonal become 0. The causal operator computes
// the same without this matrix (BeyondMix::kExtend); here it can be looked at, resampled or saved.
void extend_mix(ConstView mix /* [L, L] or [Hm, L, L] */, View out /* [rows, rows] or [Hm, rows, rows] */);

}  // namespace mhla
