// Both kinds of waves of a phase, and rows on their way between them. Only phases_cuda.cu and its copies include this.
//   whole  M blocks of a sequence: what all processes have sent, mixed
//   local  the m blocks of this process: what its tokens read and write
#pragma once

#include "mhla/kernels/common/cuda/plan.h"

namespace mhla::cuda {

// to[h, s, b] = sum_g from[h, s, b, g] for rows of `columns` floats: strides in floats.
struct RowCopyJob {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t from_head = 0, from_sequence = 0, from_block = 0, from_member = 0;
  std::int64_t to_head = 0, to_sequence = 0, to_block = 0;
  std::int32_t heads = 0, sequences = 0, blocks = 0, members = 1, columns = 0;
};
void copy_rows(const RowCopyJob& job, void* stream);

// Token values of the causal form [heads][blocks][C], where place w of block i is token i C + w, as [B, n, H, 2] and
// back: scale / den and dden.
struct TermsJob {
  float *den = nullptr, *dden = nullptr;  // at the first head of the wave
  float* terms = nullptr;                 // at the first sequence and head of the wave
  std::int64_t head_stride = 0, sequence_stride = 0;
  std::int32_t heads = 0, sequences = 0, tokens = 0, all_heads = 0;
  float scale = 1;
  bool back = false;
};
void copy_terms(const TermsJob& job, void* stream);

}  // namespace mhla::cuda
