#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/phases/phases_cuda.h"

namespace mhla::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) row_copy_kernel(const __grid_constant__ RowCopyJob job) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t block = row % job.blocks, sequence = row / job.blocks, head = blockIdx.y;
  const float* const from = job.from + head * job.from_head + sequence * job.from_sequence + block * job.from_block;
  float* const to = job.to + head * job.to_head + sequence * job.to_sequence + block * job.to_block;
  for (int c = threadIdx.x; c < job.columns; c += kThreads) {
    float sum = from[c];
    for (int g = 1; g < job.members; ++g) sum += from[g * job.from_member + c];
    to[c] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) terms_kernel(const __grid_constant__ TermsJob job) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (place >= static_cast<std::int64_t>(job.sequences) * job.tokens) return;
  const std::int64_t sequence = place / job.tokens, token = place % job.tokens, head = blockIdx.y;
  const std::int64_t at = head * job.head_stride + sequence * job.sequence_stride + token;
  float* const pair = job.terms + (place * job.all_heads + head) * 2;
  if (job.back) {
    job.den[at] = job.scale / pair[0], job.dden[at] = pair[1];
  } else {
    pair[0] = job.scale / job.den[at], pair[1] = job.dden[at];
  }
}

}  // namespace

void copy_rows(const RowCopyJob& job, void* stream) {
  launch(row_copy_kernel, grid_of(static_cast<std::int64_t>(job.sequences) * job.blocks, job.heads), job, stream,
         "row_copy_kernel");
}

void copy_terms(const TermsJob& job, void* stream) {
  const std::int64_t places = static_cast<std::int64_t>(job.sequences) * job.tokens;
  launch(terms_kernel, grid_of((places + kThreads - 1) / kThreads, job.heads), job, stream, "terms_kernel");
}

}  // namespace mhla::cuda
