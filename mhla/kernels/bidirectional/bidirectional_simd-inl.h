// What forward and backward of the bidirectional form share on CPU vectors: the row of memory that holds a block's
// summary, the walk over token tiles, and where the rows of a tile lie.
#include "mhla/kernels/common/simd/mix-inl.h"
#include "mhla/kernels/common/simd/plain-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_SIMD_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_SIMD_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_SIMD_INL_H_
#endif

#include "mhla/kernels/common/block_table.h"
#include "mhla/kernels/common/problem.h"
#include "mhla/kernels/common/schedule.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// One block in memory: [summary in panels | tail]. The tail is mixed with the same coefficients: the normaliser z
// (kPaper), or, for kOfficial, q~.z of every query head of the group and every position. `stride` is an odd number
// of cache lines, so that a column of all blocks spreads over the cache's sets.
struct BlockRow {
  std::int64_t rows = 0, columns = 0;  // of the summary
  std::int64_t tail = 0;               // offset of the tail
  std::int64_t position_stride = 0;    // kOfficial: from one query head to the next in the tail
  std::int64_t used = 0;               // floats that are mixed, a multiple of kLanes
  std::int64_t stride = 0;

  BlockRow(const Problem& p, std::int64_t rows_, std::int64_t columns_) : rows(rows_), columns(columns_) {
    tail = round_up(rows * padded_columns(columns), kLanes);
    position_stride = round_up(p.C, kLanes);
    std::int64_t extra = 0;
    if (p.normalizer == Normalizer::kPaper) extra = round_up(p.D, kLanes);
    if (p.normalizer == Normalizer::kOfficial) extra = p.group() * position_stride;
    used = tail + extra;
    stride = round_up(used, 16);
    if (stride / 16 % 2 == 0) stride += 16;
  }

  // The same row between processes; `transposed`: it holds S^T.
  [[nodiscard]] PanelRow plain(const Problem& p, bool transposed) const {
    return {rows, columns, tail, p.normalized() ? p.D : 0, used, transposed};
  }
};

// A tile of at most kTokens tokens of one block, for one head.
struct TokenTile {
  std::int64_t block = 0, first = 0, count = 0;  // first: place in block order
  std::int64_t head = 0;
  [[nodiscard]] bool given() const { return count > 0; }
};

// Walks the tiles of blocks [block, end): block by block, head by head in [head, head_end), then tile by tile.
class TileWalk {
 public:
  TileWalk(const BlockTable& table, std::int64_t block, std::int64_t end, std::int64_t head, std::int64_t head_end)
      : table_(table), block_(block), end_(end), head_(head), head_begin_(head), head_end_(head_end) {
    if (block_ < end_) first_ = table_.begin(block_);
  }
  TokenTile next() {
    while (block_ < end_) {
      const std::int64_t left = table_.begin(block_ + 1) - first_;
      if (left > 0) {
        const TokenTile tile{block_, first_, HWY_MIN(left, kTokens), head_};
        first_ += tile.count;
        return tile;
      }
      if (++head_ == head_end_) head_ = head_begin_, ++block_;
      if (block_ < end_) first_ = table_.begin(block_);
    }
    return {};
  }

 private:
  const BlockTable& table_;
  std::int64_t block_, end_, first_ = 0, head_, head_begin_, head_end_;
};

// The rows of one tensor [B, N, H, X] in a sequence.
template <class T>
struct Rows {
  T* base = nullptr;                 // of the sequence's first token, head 0
  std::int64_t token = 0, head = 0;  // strides

  template <class V>
  static Rows of(const V& view, const Sequence& s) {
    return {static_cast<T*>(view.data) + s.batch * view.stride[0] + s.start * view.stride[1], view.stride[1],
            view.stride[2]};
  }
  void find(const BlockTable& table, const TokenTile& tile, std::int64_t head_index, T** rows) const {
    T* first = base + head_index * head;
    for (std::int64_t t = 0; t < tile.count; ++t) rows[t] = first + table.token(tile.first + t) * token;
  }
};

// Walks the tiles of two tensors and knows what comes next, so that it can be prefetched while this tile computes.
// When blocks fit one tile and several heads are visited, the heads of the next block are fetched together, token by
// token: a run of consecutive memory, which the hardware's own prefetchers then follow.
template <class T>
class Ahead {
 public:
  struct Tensor {
    Rows<const T> rows;
    std::int64_t size;  // of a row
  };
  struct Range {
    std::int64_t block, block_end, head, head_end;
  };

  // `calls`: how often the prefetch will be called while one tile of kTokens tokens computes.
  Ahead(const BlockTable& table, const Range& range, const Tensor& first, const Tensor& second, std::int64_t calls)
      : table_(table),
        walk_(table, range.block, range.block_end, range.head, range.head_end),
        range_(range),
        tensors_{first, second},
        calls_(HWY_MAX(calls, std::int64_t{1})) {
    together_ = range.head_end - range.head > 1 && first.rows.head == first.size &&
                (second.size == 0 || second.rows.head == second.size);
    for (std::int64_t b = range.block; b < range.block_end && together_; ++b) together_ = table.size(b) <= kTokens;
    look(1);
    look(2);
  }
  TokenTile next() {
    turn_ = (turn_ + 1) % 3;
    const TokenTile tile = upcoming_[0];
    upcoming_[0] = upcoming_[1];
    look(2);
    if (!together_) {
      plan(upcoming_[1], 1, calls_ * tile.count / kTokens, (turn_ + 2) % 3);
    } else if (tile.given() && tile.head == range_.head) {
      const std::int64_t heads = range_.head_end - range_.head, b = tile.block + 1;
      TokenTile block;
      if (b < range_.block_end) block = {b, table_.begin(b), table_.size(b), range_.head};
      for (int i = 0; i < 2; ++i) tensors_[i].rows.find(table_, block, block.head, rows_[3][i]);
      plan(block, heads, heads * calls_ * tile.count / kTokens, 3);
    }
    return tile;
  }
  [[nodiscard]] const T* const* first() const { return rows_[turn_][0]; }
  [[nodiscard]] const T* const* second() const { return rows_[turn_][1]; }

  TilePrefetch& prefetch() { return prefetch_; }

 private:
  // Finds the tile that comes `distance` after the current one.
  void look(int distance) {
    TokenTile& tile = upcoming_[distance - 1];
    tile = walk_.next();
    for (int i = 0; i < 2; ++i) tensors_[i].rows.find(table_, tile, tile.head, rows_[(turn_ + distance) % 3][i]);
  }
  void plan(const TokenTile& tile, std::int64_t heads, std::int64_t calls, int from) {
    const std::int64_t sizes = tensors_[0].size + tensors_[1].size;
    const auto part = [&](int i) HWY_ATTR {
      const std::int64_t size = tensors_[i].size;
      return RowPrefetch(rows_[from][i], tile.count, heads * size, HWY_MAX(calls * size / sizes, std::int64_t{1}));
    };
    prefetch_ = {part(0), part(1)};
  }

  const BlockTable& table_;
  TileWalk walk_;
  Range range_;
  Tensor tensors_[2];
  std::int64_t calls_;
  bool together_ = false;
  TokenTile upcoming_[2];  // prefetched two tiles ahead: the last lines of a tile need a whole memory latency
  int turn_ = 0;
  TilePrefetch prefetch_;
  const T* rows_[4][2][kTokens];  // a ring of three tiles, and the next block in the fourth place
};

// How often a product of kTokens x b x c calls `between`: once per four steps of a tile of 4 x 2 vectors, never in
// the half vector at the end.
constexpr std::int64_t between_calls(std::int64_t b, std::int64_t c) {
  return kTokens * b * (c / kLanes * kLanes) / (32 * kLanes);
}

// kOfficial: q~_{b,w} . z_b for every query head of the group of kv head `head` and every position of the block.
template <class T>
HWY_INLINE void query_products(const Problem& p, const BlockTable& table, const Sequence& s, std::int64_t block,
                               std::int64_t head, const float* z, std::int64_t position_stride, float* tail,
                               float* packed) {
  const auto q = Rows<const T>::of(p.has_den() ? p.maybe_q_den : p.q, s);
  const T* rows[kTokens];
  TileWalk walk(table, block, block + 1, head * p.group(), (head + 1) * p.group());
  for (TokenTile tile = walk.next(); tile.given(); tile = walk.next()) {
    q.find(table, tile, tile.head, rows);
    pack_features(p.feature_map, rows, tile.count, p.D, packed);
    float* to = tail + tile.head % p.group() * position_stride + tile.first - table.begin(block);
    for (std::int64_t t = 0; t < tile.count; ++t) to[t] = dot(packed + t * kRow, z, p.D);
  }
}

// The table that all sequences share: in one dimension there is none.
HWY_INLINE BlockTable shared_table(const Problem& p, Workspace& ws) {
  if (p.layout.rank == 1) return {};
  return p.part.given() ? BlockTable(p.layout, p.part, p.N, ws) : BlockTable(p.layout, p.N, ws);
}

// The blocks of one sequence: the shared table, or in one dimension a table without memory.
HWY_INLINE BlockTable table_of(const Problem& p, const BlockTable& shared, const Sequence& s) {
  Workspace none;
  return p.layout.rank > 1 ? shared : BlockTable(p.layout, s.length, none);
}

// Coefficients of all heads, packed for the longest sequence; transposed for the backward pass. Of a part only the rows
// of the local blocks, which become rows 0, 1, ...
HWY_INLINE void pack_mixes(const Problem& p, bool transposed, float* to) {
  const std::int64_t row = p.mix.stride[transposed ? 2 : 1], column = p.mix.stride[transposed ? 1 : 2];
  const std::int64_t rows = p.part.given() ? p.part.blocks : p.M;
  for (std::int64_t h = 0; h < p.Hm; ++h) {
    const float* mix = data_as<float>(p.mix) + h * p.mix.stride[0] + p.part.first * row;
    pack_mix(
        rows, p.M, [&](std::int64_t i, std::int64_t b) HWY_ATTR { return mix[i * row + b * column]; },
        to + h * packed_mix_size(p.M));
  }
}

inline constexpr std::int64_t kTaskTokens = 512;   // tokens of a task when threads share a phase
inline constexpr std::int64_t kTaskColumns = 512;  // columns of a task of the mixing

// Whether stores past the caches fit the rows of `out`: large, and every row whole cache lines.
template <class T>
bool may_stream(const View& out) {
  if (!std::is_same_v<T, float> || out.numel() * std::int64_t{sizeof(float)} < kStreamedBytes) return false;
  bool lines = reinterpret_cast<std::uintptr_t>(out.data) % 64 == 0 && out.shape[3] % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) lines = lines && out.stride[static_cast<std::size_t>(axis)] % 16 == 0;
  return lines;
}

// A unit is one visit: a few kv heads of one sequence.
struct Units {
  std::int64_t visit = 1, visits = 1, count = 0;
  bool own_mix = false;  // each query head of a group mixes the shared summaries anew
  Schedule schedule = Schedule::kUnit;
  std::int64_t buffers = 1;  // units in flight
  std::int64_t head_floats = 0;

  // `copies` of a head's summaries are alive at once. `even`: the visits may depend on the number of workers.
  Units(const Problem& p, const BlockRow& row, int workers, std::int64_t copies, bool even) {
    head_floats = p.M * row.stride;
    own_mix = p.Hm > 1 && p.group() > 1;
    const std::int64_t bytes = head_floats * 4 * (copies + (own_mix ? 1 : 0));
    const auto sequences = static_cast<std::int64_t>(p.sequences.size());
    if (p.group() == 1) {
      visit = even ? heads_per_even_visit(p.Hkv, bytes, sequences, workers) : heads_per_visit(p.Hkv, bytes);
    }
    visits = (p.Hkv + visit - 1) / visit;
    count = sequences * visits;
    schedule = schedule_of(visit * bytes, count, workers);
    if (schedule == Schedule::kUnit) buffers = HWY_MIN(count, std::int64_t{workers});
  }
  [[nodiscard]] std::int64_t floats() const { return visit * head_floats; }
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
