// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "mhla/kernels/common/cuda/sm90_boxes.cuh"

namespace mhla::sm90 {

struct GridBoxes {
  emulator::TensorMap map;  // columns, tokens of a row, rows, heads, batch
  int head_step, batch_step;
};

template <class AnyView>
GridBoxes grid_boxes(const AnyView& x, std::int64_t width, int pitch, int across, int down, bool panels = false) {
  GridBoxes boxes{};
  const auto size = [&](std::size_t axis) { return x.shape[axis] > 1 && x.stride[axis] == 0 ? 1 : x.shape[axis]; };
  const auto bytes = [&](std::size_t axis) { return (size(axis) > 1 ? x.stride[axis] : x.shape[3]) * 2; };
  boxes.head_step = size(2) > 1 ? 1 : 0, boxes.batch_step = size(0) > 1 ? 1 : 0;
  boxes.map = {static_cast<char*>(const_cast<void*>(static_cast<const void*>(x.data))),
               {x.shape[3], width, x.shape[1] / width, size(2), size(0)},
               {2, bytes(1), bytes(1) * width, bytes(2), bytes(0)},
               {pitch / 2, across, down, 1, 1},
               panels ? 128 : 0};
  return boxes;
}

inline void copy_grid_box(std::uint32_t to, const GridBoxes& from, std::uint32_t barrier, int x, int y, int head,
                          int batch, int column = 0) {
  emulator::load_box(to, from.map, barrier, {column, x, y, head * from.head_step, batch * from.batch_step});
}
inline void expect_boxes(const GridBoxes& /*boxes*/) {}
inline void store_grid_box(const GridBoxes& to, std::uint32_t from, int x, int y, int head, int batch) {
  emulator::store_box(to.map, from, {0, x, y, head * to.head_step, batch * to.batch_step});
}
inline void store_bytes(void* to, std::uint32_t from, int bytes) { emulator::store_bytes(to, from, bytes); }

inline void commit_boxes() { emulator::commit_boxes(); }
template <int kPending>
inline void wait_boxes_read_but() {
  emulator::wait_boxes(kPending);
}
inline void publish_written() {}

}  // namespace mhla::sm90
