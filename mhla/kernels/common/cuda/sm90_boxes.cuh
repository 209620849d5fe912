// Boxes of tokens between memory and shared memory, moved by the copy engine of Hopper: one thread asks, addresses are
// a tensor map's. A box is some columns of some tokens of one head; tokens that do not exist are read as zeros and not
// written. Pieces of 16 bytes lie swizzled over the bytes of a row, 64 or 128 (warpgroup.cuh).
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "mhla/core/cuda_check.h"
#include "mhla/core/view.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/sm90_bytes.cuh"

namespace mhla::sm90 {

// [B, N, heads, X] in bf16 as boxes. A stride of 0 is a size of 1: its coordinate is always 0.
struct TokenBoxes {
  CUtensorMap map;  // columns, heads, tokens, batch
  int head_step, batch_step;
};

inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "cuTensorMapEncodeTiled");
#else
    cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found),
               "cuTensorMapEncodeTiled");
#endif
    if (found != cudaDriverEntryPointSuccess || entry == nullptr)
      cuda_failed(cudaErrorNotSupported, "sm90: cuTensorMapEncodeTiled of the driver");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return encoder;
}

// `columns` of `tokens` tokens of a view that boxes_take().
template <class AnyView>
TokenBoxes token_boxes(const AnyView& x, int columns, int tokens) {
  TokenBoxes boxes{};
  const auto size = [&](std::size_t axis) { return x.shape[axis] > 1 && x.stride[axis] == 0 ? 1 : x.shape[axis]; };
  boxes.head_step = size(2) > 1 ? 1 : 0, boxes.batch_step = size(0) > 1 ? 1 : 0;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.shape[3]), static_cast<cuuint64_t>(size(2)),
                              static_cast<cuuint64_t>(size(1)), static_cast<cuuint64_t>(size(0))};
  const auto bytes = [&](std::size_t axis) {
    return static_cast<cuuint64_t>((size(axis) > 1 ? x.stride[axis] : x.shape[3]) * 2);
  };
  const cuuint64_t strides[] = {bytes(2), bytes(1), bytes(0)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), 1, static_cast<cuuint32_t>(tokens), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(&boxes.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                                               const_cast<void*>(static_cast<const void*>(x.data)), sizes, strides, box,
                                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) sm80::refuse_boxes(static_cast<int>(status), x, columns, tokens);
  return boxes;
}

// [summaries][D, E] in bf16, `step` values from one summary to the next, as boxes of 64 columns and `rows` rows. What
// lies past D and E is read as zeros.
struct SummaryBoxes {
  CUtensorMap map;  // columns, rows, summaries
};
inline SummaryBoxes summary_boxes(const void* data, std::int64_t count, std::int64_t step, int D, int E, int rows) {
  SummaryBoxes boxes{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(E), static_cast<cuuint64_t>(D), static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(E) * 2, static_cast<cuuint64_t>(step) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1}, steps[] = {1, 1, 1};
  const CUresult status =
      tensor_map_encoder()(&boxes.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides,
                           box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) sm80::refuse_summary_boxes(static_cast<int>(status), count, step, D, E);
  return boxes;
}

// A box to shared memory, which arrives at `barrier`.
__device__ inline void copy_box(std::uint32_t to, const TokenBoxes& from, std::uint32_t barrier, int column, int head,
                                int token, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&from.map), "r"(barrier), "r"(column), "r"(head * from.head_step), "r"(token), "r"(batch * from.batch_step)
      : "memory");
}

// Rows of 64 columns of a summary to shared memory, which arrive at `barrier`.
__device__ inline void copy_summary_box(std::uint32_t to, const SummaryBoxes& from, std::uint32_t barrier, int column,
                                        int summary) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&from.map), "r"(barrier), "r"(column), "r"(0), "r"(summary)
      : "memory");
}

// A box from shared memory, behind publish_shared(): this thread's next wait_boxes_read() waits until it was read.
__device__ inline void store_box(const TokenBoxes& to, std::uint32_t from, int column, int head, int token, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&to.map),
      "r"(from), "r"(column), "r"(head * to.head_step), "r"(token), "r"(batch * to.batch_step)
      : "memory");
}
__device__ inline void wait_boxes_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void wait_boxes_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace mhla::sm90
