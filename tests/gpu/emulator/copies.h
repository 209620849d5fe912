// Copies that take their time. Late ones arrive when somebody waits for them: at cp.async.wait_group for a thread's
// own, at an mbarrier when nobody else can go on. Their place is NaN from the moment they were asked for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// cp.async: `bytes` from `global`, or zeros.
void copy_async(std::uint32_t to, const void* global, std::size_t bytes, bool valid);
void copy_commit();
void copy_wait(int pending);
void copy_arrive(std::uint32_t barrier);  // when everything that this thread copied has arrived

// st.async: `bytes` that arrive in the memory of a block of the cluster and at a barrier there. Their place is NaN
// until then, too; all of a barrier arrive when nobody else can go on.
void send(std::uint32_t to, const void* data, std::size_t bytes, std::uint32_t barrier);

// A tensor of up to 5 axes in memory, the first one dense, and boxes of it.
struct TensorMap {
  char* data;
  std::int64_t size[5], stride[5];  // elements; bytes, of which the first is that of an element
  int box[5];
  int swizzle;  // bytes of a row: 128, 64 or 32; 0: none
};
void load_box(std::uint32_t to, const TensorMap& map, std::uint32_t barrier, const int (&at)[5]);
void load_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier);  // the same, without a map
void store_box(const TensorMap& map, std::uint32_t from, const int (&at)[5]);
void store_bytes(void* to, std::uint32_t from, int bytes);          // the same, without a map
void check_bytes(const char* what, const void* global, int bytes);  // pieces of 16 bytes, or it is wrong
void commit_boxes();               // what this thread stored since it did so last is a group
void wait_boxes(int pending = 0);  // all of this thread's groups but the last so many

// 16-byte pieces of rows of 128, 64 or 32 bytes lie swizzled.
constexpr std::uint32_t swizzled(std::uint32_t address, int row_bytes) {
  const std::uint32_t pieces = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : row_bytes == 32 ? 1 : 0;
  return address ^ ((address >> 7 & pieces) << 4);
}

}  // namespace emulator
