// One problem of the operator as data: sizes, options, memory layout, seed. The same case feeds tests,
// gradient checks and benchmarks, and has a text form that brings it back (parse_case), so a failure
// can name the line that runs it alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/common/problem.h"
#include "mhla/testing/tensor.h"

namespace mhla {

enum class Form : std::uint8_t { kBidirectional, kCausal };

struct Case {
  Form form = Form::kBidirectional;
  DType dtype = DType::kF32;
  std::int64_t B = 1, N = 0, H = 1, Hkv = 1, D = 8, E = 8;
  Layout layout = Layout::line(16);  // causal: line(chunk)
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;
  double eps = 1e-6;
  std::optional<double> scale = {};
  bool den = false;        // with q_den and k_den
  bool per_head = false;   // mix is [H, L, L]
  std::int64_t rows = 0;   // L; 0: as many as the blocks of the longest sequence
  bool extend = false;     // causal: BeyondMix::kExtend
  bool fused = false;      // q, k, v and dq, dk, dv are slices of one tensor; out is [B, H, N, E] in memory
  bool broadcast = false;  // k, v and dout are one batch element seen B times: stride 0
  std::vector<std::int64_t> cu_seqlens;  // empty: not packed
  std::uint64_t seed = 1;

  [[nodiscard]] std::vector<Sequence> sequences() const;  // batch elements, or the intervals of cu_seqlens
  [[nodiscard]] std::int64_t blocks() const;              // M of the longest sequence
  [[nodiscard]] std::int64_t mix_rows() const;            // L
  [[nodiscard]] std::string name() const;  // "causal bf16 B=2 N=65 H=4 Hkv=2 D=8 E=16 layout=1d:16 norm=none ..."
};

Case parse_case(std::string_view name);  // inverse of name(); throws mhla::Error naming the word it does not know

// Random inputs of a case, its memory and the views into it. Entries of mix that must not be read are NaN, and so
// are the gaps between strided rows.
struct CaseInputs {
  explicit CaseInputs(const Case& c);
  [[nodiscard]] CaseInputs to(DType dtype) const;  // the same values, contiguous; mix in f64 for f64, else f32

  // Element `index` of a contiguous input, for tests that want special values.
  static double get(const ConstView& view, std::int64_t index) { return load_f64(view.data, view.dtype, index); }
  static void set(const ConstView& view, std::int64_t index, double value) {
    store_f64(const_cast<void*>(view.data), view.dtype, index, value);
  }
  [[nodiscard]] CaseInputs alias() const;  // the same views, memory stays here

  ConstView q, k, v, dout;
  ConstView maybe_q_den, maybe_k_den;
  ConstView mix;
  ConstView maybe_cu_seqlens;

  std::vector<Tensor> memory;
  std::vector<std::int64_t> cu_memory;

 private:
  CaseInputs() = default;
};

BidirectionalParams bidirectional_params(const Case& c, const CaseInputs& inputs);
ChunkwiseParams chunkwise_params(const Case& c, const CaseInputs& inputs);

// Shapes people forget: no token, one token, around the block size, ragged grids, odd D and E, GQA, strides, packing.
// The environment variable MHLA_CASE replaces the list by the one case it names.
std::vector<Case> forgotten_shapes(Form form);
// Every combination of options that changes the arithmetic, on small ragged shapes.
std::vector<Case> option_combinations(Form form);
// Head and block sizes of models, whole and ragged, with one thing at a time out of the ordinary: what kernels made
// for a few sizes take.
std::vector<Case> fast_path_shapes(Form form);

}  // namespace mhla
