// Sums of a tile on their way between the blocks of a cluster. Every block finishes some rows: fours of them, for all
// columns of the tile. Each thread writes its sums where they are finished, and the writes tell a barrier there when
// they have come. barrier.cluster with release is a fence of the whole card in the machine code (MEMBAR.ALL.GPU).
#pragma once

#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/sm90_clusters.cuh"
#include "mhla/kernels/linear/linear_rows.cuh"

namespace mhla::cuda {

class RowsExchange {
 public:
  // `fours` of a block; R rows of a tile of T columns, and with `squares` a number for each row.
  __device__ RowsExchange(std::byte* shared, const RowsPlaces& at, int R, int T, int slices, int rank, bool squares)
      : coming_(shared_address(shared + at.come)),
        squares_(shared_address(shared + at.squares)),
        barriers_(shared_address(shared + at.barriers)),
        fours_(at.fours),
        shift_(at.shift),
        tile_(T),
        rank_(rank),
        slices_(slices) {
    valid_ = max(min((R + 3) / 4 - rank * fours_, fours_), 0);
    if (threadIdx.x == 0) {
      const int rows = max(min(R - rank * fours_ * 4, fours_ * 4), 0);
      const int bytes = slices * (T * valid_ * 16 + (squares ? rows * 4 : 0));
      sm90::barrier_init<1>(barriers_);
      sm90::barrier_init(barriers_ + 8, slices);
      sm90::barriers_ready();
      sm90::barrier_expect(barriers_, bytes);
    }
    __syncwarp();
    sm90::cluster_arrive();
  }
  [[nodiscard]] __device__ int valid() const { return valid_; }  // fours of rows that this block finishes

  // All threads, before the others: every block has its barriers, long since.
  __device__ void open() const { sm90::cluster_wait(); }

  __device__ void send_square(int row, float sum) const {
    const int owner = row >> (shift_ + 2), own = row - (owner << (shift_ + 2));
    const std::uint32_t there = address_in_block(squares_ + (rank_ * fours_ * 4 + own) * 4, owner);
    sm90::send_to_block(there, sum, address_in_block(barriers_, owner));
  }

  // Sums arrive in the memory of the operands: after a barrier of the block, when all of these have been read.
  __device__ void expect_room() const {
    if (static_cast<int>(threadIdx.x) < slices_)
      sm90::arrive_in_block(address_in_block(barriers_ + 8, static_cast<int>(threadIdx.x)));
    sm90::barrier_wait(barriers_ + 8, 0);
  }

  // All lanes of a warp: sums of rows `row`, `row` + 1 (even) of one column, and of one that is eight further. Two
  // lanes have four rows of both; each writes them for one. Columns in [least, tile) are written, where `given`.
  __device__ void send(int row, int column, int least, bool given, const float (&x)[4]) const {
    const bool odd = row % 4 != 0;
    const float a = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[2], 1),
                b = __shfl_xor_sync(0xffffffffu, odd ? x[1] : x[3], 1);
    const int own_column = odd ? column + 8 : column, four = row / 4, owner = four >> shift_,
              own = four - (owner << shift_);
    if (!given || own_column < least || own_column >= tile_) return;
    const std::uint32_t there = address_in_block(coming_ + place(rank_, own_column, own), owner);
    sm90::send_to_block(there, odd ? a : x[0], odd ? b : x[1], odd ? x[2] : a, odd ? x[3] : b,
                        address_in_block(barriers_, owner));
  }

  __device__ void receive() const { sm90::barrier_wait(barriers_, 0); }

  // Four rows of a column, or their squares, from a slice.
  [[nodiscard]] __device__ float4 sums(int slice, int column, int own) const {
    return shared_floats(coming_ + place(slice, column, own));
  }
  [[nodiscard]] __device__ float4 squares(int slice, int own) const {
    return shared_floats(squares_ + (slice * fours_ + own) * 16);
  }

 private:
  // Fours of a column are swizzled, so that neither lanes that write nor lanes that read meet in a bank.
  [[nodiscard]] __device__ int place(int slice, int column, int own) const {
    const int turn = fours_ >= 8 ? column & 7 : (column * fours_ >> 3) & (fours_ - 1);
    return ((slice * tile_ + column) * fours_ + (own ^ turn)) * 16;
  }
  std::uint32_t coming_, squares_, barriers_;
  int fours_, shift_, tile_, rank_, slices_, valid_ = 0;
};

}  // namespace mhla::cuda
