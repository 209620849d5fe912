// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "mhla/core/view.h"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/sm90_bytes.cuh"

namespace mhla::sm90 {

struct TokenBoxes {
  emulator::TensorMap map;  // columns, heads, tokens, batch
  int head_step, batch_step;
};

template <class AnyView>
TokenBoxes token_boxes(const AnyView& x, int columns, int tokens) {
  TokenBoxes boxes{};
  const auto size = [&](std::size_t axis) { return x.shape[axis] > 1 && x.stride[axis] == 0 ? 1 : x.shape[axis]; };
  const auto bytes = [&](std::size_t axis) { return (size(axis) > 1 ? x.stride[axis] : x.shape[3]) * 2; };
  boxes.head_step = size(2) > 1 ? 1 : 0, boxes.batch_step = size(0) > 1 ? 1 : 0;
  boxes.map = {static_cast<char*>(const_cast<void*>(static_cast<const void*>(x.data))),
               {x.shape[3], size(2), size(1), size(0), 1},
               {2, bytes(2), bytes(1), bytes(0), 0},
               {columns, 1, tokens, 1, 1},
               columns * 2};
  return boxes;
}

struct SummaryBoxes {
  emulator::TensorMap map;  // columns, rows, summaries
};
inline SummaryBoxes summary_boxes(const void* data, std::int64_t count, std::int64_t step, int D, int E, int rows) {
  return {{static_cast<char*>(const_cast<void*>(data)),
           {E, D, count, 1, 1},
           {2, E * 2, step * 2, 0, 0},
           {64, rows, 1, 1, 1},
           128}};
}

inline void copy_box(std::uint32_t to, const TokenBoxes& from, std::uint32_t barrier, int column, int head, int token,
                     int batch) {
  emulator::load_box(to, from.map, barrier, {column, head * from.head_step, token, batch * from.batch_step, 0});
}
inline void copy_summary_box(std::uint32_t to, const SummaryBoxes& from, std::uint32_t barrier, int column,
                             int summary) {
  emulator::load_box(to, from.map, barrier, {column, 0, summary, 0, 0});
}
inline void store_box(const TokenBoxes& to, std::uint32_t from, int column, int head, int token, int batch) {
  emulator::store_box(to.map, from, {column, head * to.head_step, token, batch * to.batch_step, 0});
  emulator::commit_boxes();
}
inline void wait_boxes_read() { emulator::wait_boxes(); }
inline void wait_boxes_written() { emulator::wait_boxes(); }

}  // namespace mhla::sm90
