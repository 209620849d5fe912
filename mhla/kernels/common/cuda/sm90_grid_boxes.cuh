// Boxes of tokens of a block between memory and shared memory, as sm90_boxes.cuh moves boxes of consecutive ones: some
// tokens along a row of a grid times some rows, one head. Rows of a box lie `pitch` bytes apart in shared memory. What
// a row has not is read as zeros and not written, so an odd number of 16-byte pieces is a pitch whose 8 x 8 matrices
// lie in different banks without swizzling.
#pragma once

#include "mhla/kernels/common/cuda/sm90_boxes.cuh"

namespace mhla::sm90 {

struct GridBoxes {
  CUtensorMap map;  // columns, tokens of a row, rows, heads, batch
  int head_step, batch_step;
};

// Boxes of `across` tokens of `down` rows of a grid with `width` tokens a row, of a view that boxes_take(). `panels`:
// swizzled as rows of a panel (warpgroup.cuh), with a pitch of 128 bytes.
template <class AnyView>
GridBoxes grid_boxes(const AnyView& x, std::int64_t width, int pitch, int across, int down, bool panels = false) {
  GridBoxes boxes{};
  const auto size = [&](std::size_t axis) { return x.shape[axis] > 1 && x.stride[axis] == 0 ? 1 : x.shape[axis]; };
  boxes.head_step = size(2) > 1 ? 1 : 0, boxes.batch_step = size(0) > 1 ? 1 : 0;
  const auto bytes = [&](std::size_t axis) {
    return static_cast<cuuint64_t>((size(axis) > 1 ? x.stride[axis] : x.shape[3]) * 2);
  };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.shape[3]), static_cast<cuuint64_t>(width),
                              static_cast<cuuint64_t>(x.shape[1] / width), static_cast<cuuint64_t>(size(2)),
                              static_cast<cuuint64_t>(size(0))};
  const cuuint64_t strides[] = {bytes(1), bytes(1) * static_cast<cuuint64_t>(width), bytes(2), bytes(0)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(pitch / 2), static_cast<cuuint32_t>(across),
                            static_cast<cuuint32_t>(down), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(&boxes.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5,
                                               const_cast<void*>(static_cast<const void*>(x.data)), sizes, strides, box,
                                               steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               panels ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) sm80::refuse_boxes(static_cast<int>(status), x, across, down);
  return boxes;
}

// A box to shared memory, which arrives at `barrier`: from token x of row y of a head on.
__device__ inline void copy_grid_box(std::uint32_t to, const GridBoxes& from, std::uint32_t barrier, int x, int y,
                                     int head, int batch, int column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(&from.map), "r"(barrier), "r"(column), "r"(x), "r"(y), "r"(head * from.head_step),
      "r"(batch * from.batch_step)
      : "memory");
}

// Has a map brought near, before it is used.
__device__ inline void expect_boxes(const GridBoxes& boxes) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&boxes.map) : "memory");
}

// A box from shared memory, behind publish_shared(): part of what commit_boxes() ends.
__device__ inline void store_grid_box(const GridBoxes& to, std::uint32_t from, int x, int y, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&to.map),
               "r"(from), "r"(0), "r"(x), "r"(y), "r"(head * to.head_step), "r"(batch * to.batch_step)
               : "memory");
}

// Bytes of shared memory to memory, multiples of 16; the same.
__device__ inline void store_bytes(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void commit_boxes() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>  // until all that this thread committed was read, but for the last so many
__device__ inline void wait_boxes_read_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// What the copy engine has written to memory is there for what it is asked for next, behind a barrier too.
__device__ inline void publish_written() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace mhla::sm90
