// How a call is cut into pieces: every token once, in order, and a chunk is complete where its last token is.
#include <gtest/gtest.h>

#include <vector>

#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {
namespace {

TEST(StreamPieces, CoverEveryChunkOnce) {
  for (const std::int64_t C : {1, 5, 64}) {
    for (std::int64_t start = 0; start < 3 * C; ++start) {
      for (std::int64_t T = 1; T < 4 * C + 2; ++T) {
        for (const std::int64_t piece : {1, 2, 3, 100}) {
          std::int64_t chunk = start / C, closed = 0, pieces = 0;
          for (; pieces * piece < chunks_of(start, T, C); ++pieces) {
            const PieceRange range = piece_range(start, T, C, piece, pieces);
            ASSERT_EQ(range.first, chunk);
            ASSERT_GE(range.chunks, 1);
            ASSERT_LE(range.chunks, piece);
            ASSERT_GE(range.closed, range.chunks - 1) << "only the last chunk of a call may stay open";
            chunk += range.chunks, closed += range.closed;
          }
          ASSERT_EQ(chunk - 1, (start + T - 1) / C) << "start " << start << " T " << T << " C " << C;
          ASSERT_EQ(closed, (start + T) / C - start / C);
          const PieceRange beyond = piece_range(start, T, C, piece, pieces);
          ASSERT_EQ(beyond.chunks, 0);
          ASSERT_EQ(beyond.closed, 0);
        }
      }
    }
  }
}

TEST(StreamPieces, AreNoLargerThanTheirMemory) {
  EXPECT_EQ(piece_size(3, 1000, false), 3);
  EXPECT_EQ(piece_size(100, kPieceBytes / 10, false), 10);
  EXPECT_EQ(piece_size(100, 2 * kPieceBytes, false), 1);
  EXPECT_EQ(piece_size(100, 1000, true), kExtendPiece);
  EXPECT_EQ(piece_size(std::int64_t{1} << 40, 1000, false), kMaxPiece);
}

// Every element of a prefix has a place of its own, inside its bytes, and so has z.
TEST(PrefixPanels, HoldEveryElementOnce) {
  for (const std::int32_t D : {1, 5, 16, 128}) {
    for (const std::int32_t E : {1, 63, 64, 70, 256}) {
      const PrefixLayout layout = PrefixLayout::of(DType::kBF16, D, E, true, 0);
      std::vector<bool> taken(static_cast<std::size_t>(layout.z / 2));
      for (std::int32_t d = 0; d < D; ++d) {
        for (std::int32_t e = 0; e < E; ++e) {
          const auto at = static_cast<std::size_t>(PrefixLayout::index(d, e, D));
          ASSERT_LT(at, taken.size());
          ASSERT_FALSE(taken[at]) << d << " " << e;
          taken[at] = true;
          ASSERT_EQ(PrefixLayout::index(d, e / 8 * 8, D) + e % 8, PrefixLayout::index(d, e, D)) << "a piece in a row";
        }
      }
      EXPECT_GE(layout.stride, layout.z + 4 * D);
      EXPECT_EQ(layout.stride % 64, 0);
    }
  }
  EXPECT_FALSE(PrefixLayout::of(DType::kF16, 3, 5, false, 16).panels);
}

}  // namespace
}  // namespace mhla::cuda
