// One operator call as `bench op` times it: inputs, outputs and workspace, allocated once. Several sets of inputs
// are visited in turn so that nothing is found in the inner caches only because the call before left it there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/shape.h"
#include "mhla/core/memory.h"
#include "mhla/core/threads.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/testing/tensor.h"

namespace mhla::apps {

const char* name_of(Pass pass);              // "fwd", "bwd", "fwd+bwd"
Pass parse_pass(const std::string& name);    // throws mhla::Error
DType parse_dtype(const std::string& name);  // f32, bf16, f16; throws mhla::Error

// Tensors of one call. q and k are normal, v is normal, mix is positive and falls off with the distance of blocks.
struct OpTensors {
  Tensor q, k, v, mix, dout;
  Tensor out, dq, dk, dv, dmix;
};

// Where the tensors of a call lie, on the host or on a device; not given where there is none.
struct OpViews {
  ConstView q, k, v, mix, dout;
  View out, dq, dk, dv, dmix;
};
OpViews views_of(OpTensors& tensors);

OpTensors make_tensors(const OpShape& shape, DType dtype, Pass pass, std::uint64_t seed);
std::int64_t tensor_bytes(const OpShape& shape, DType dtype, Pass pass);  // of one set
// What timing it needs at least: tensors, mixing matrices and what the check computes in f64; of decode
// B states.
MemoryEstimate op_memory(const OpShape& shape, DType dtype, Pass pass, int sets);

// Runs `pass` over one set.
void run_pass(const OpShape& shape, Pass pass, const OpViews& views, const RunOptions& run);
std::int64_t workspace_bytes(const OpShape& shape, Pass pass, const OpViews& views, const RunOptions& run);
std::int64_t kept_bytes(const OpShape& shape, const OpViews& views, const RunOptions& run);  // RunOptions::kept

class BenchProblem {
 public:
  // `sets` 0: as many as fill the second-level caches four times, at most 8.
  BenchProblem(const OpShape& shape, DType dtype, Pass pass, const std::string& backend, Executor& executor, int sets);

  BenchProblem(const BenchProblem&) = delete;
  BenchProblem& operator=(const BenchProblem&) = delete;

  void run(int call);     // over set call % sets
  void run_allocating();  // over the first set, with memory that the call allocates itself
  [[nodiscard]] int sets() const { return static_cast<int>(sets_.size()); }
  [[nodiscard]] OpTensors& set(int index) { return sets_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const RunOptions& options() const { return run_; }
  [[nodiscard]] std::int64_t workspace() const { return workspace_bytes_; }

 private:
  OpShape shape_;
  Pass pass_;
  std::string backend_;
  RunOptions run_;
  std::vector<OpTensors> sets_;
  std::int64_t workspace_bytes_ = 0;
  AlignedBuffer workspace_;
};

}  // namespace mhla::apps
