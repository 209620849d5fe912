// Plans of the gradients of the causal form on Hopper: what lies in shared memory, and how warpgroups share registers.
// Panels are 64 rows of 64 values (warpgroup.cuh); a head is `panels` of keys and `parts * panels` of values wide.
#pragma once

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla::sm90 {

inline constexpr int kGradientPanel = 8192, kGradientRows = 64;  // bytes of a panel; tokens of a tile

// Whether the kernels take a problem: tiles of D and of a part of E that fill panels, chunks that fill a tile.
constexpr bool gradients_on_panels(std::int64_t D, std::int64_t E, std::int64_t C) {
  const int rows = sm80::tiles_of(D, E).rows;
  return (rows == 4 || rows == 8) && C >= kGradientRows;
}

// dk and dv of a tile of keys, by two warpgroups that share tiles of queries and gradients of outputs: one makes dk
// with its values in registers, the other one dv with its keys. Per tile of 64 queries both multiply alike, D = E / 2:
// 64 x 64 x (E + D) and 64 x 64 x (D + E), and 64 x D x E each with dS, which comes 64 columns at a time.
struct KeyGradientPlan {
  int panels, parts;
  static constexpr int kStages = 2, kKeyStages = 2;  // of queries; of keys, which dk needs to the end of a tile
  static constexpr int kThreads = 3 * 128, kCopyRegisters = 56, kKeyRegisters = 208, kValueRegisters = 240;
  static constexpr int kVoteBytes = 80;  // Vote

  constexpr int columns() const { return parts * panels; }                  // panels of v
  constexpr int key_bytes() const { return panels * kGradientPanel; }       // of a tile of q or k
  constexpr int value_bytes() const { return columns() * kGradientPanel; }  // of v or dout
  constexpr int stage_bytes() const { return key_bytes() + value_bytes(); }
  constexpr int keys_at() const { return kStages * stage_bytes(); }
  constexpr int values_at() const { return keys_at() + kKeyStages * key_bytes(); }
  constexpr int summary_at() const { return values_at() + value_bytes(); }
  constexpr int z_at() const { return summary_at() + panels * value_bytes(); }
  constexpr int weights_at() const { return z_at() + panels * 128; }
  constexpr int sums_at() const { return weights_at() + kStages * kGradientRows * 8; }
  constexpr int vote_at() const { return sums_at() + 16; }
  constexpr int rings_at() const { return vote_at() + kVoteBytes; }
  constexpr int bytes() const { return rings_at() + 16 * (kStages + kKeyStages + 1 + columns()); }
};

// dq: `readers` warpgroups, a tile of 64 queries each, gradients of outputs in registers. P,
// values and keys come through one ring of equal slots: 64 columns of P, the values of a part, or keys. Two readers
// share them where a chunk has more than one tile; else two blocks of threads share a multiprocessor.
struct QueryGradientPlan {
  int panels, parts, readers;

  constexpr int columns() const { return parts * panels; }
  constexpr int slot_bytes() const { return panels * kGradientPanel; }
  constexpr int own_bytes() const { return columns() * kGradientPanel; }  // gradients of outputs of a tile
  constexpr int slots() const { return readers == 2 ? 10 : panels == 2 ? 5 : 8; }
  constexpr int blocks() const { return readers == 2 ? 1 : 2; }  // on a multiprocessor
  constexpr int threads() const { return (1 + readers) * 128; }
  static constexpr int kCopyRegisters = 40;
  constexpr int reader_registers() const { return readers == 2 ? 232 : 216; }
  constexpr int own_at() const { return slots() * slot_bytes(); }
  constexpr int rings_at() const { return own_at() + readers * own_bytes(); }
  constexpr int bytes() const { return rings_at() + 16 * (slots() + 1); }
};

// Mixing forward and back at once, with dmix: tiles of 64 rows, S and dP of up to 32 chunks, in a ring. One warpgroup
// copies, one multiplies; two blocks of threads share a multiprocessor.
inline constexpr int kMostMixedAtOnce = 32;
struct MixBothPlan {
  static constexpr int kStages = 6, kPanels = 2, kThreads = 2 * 128;
  static constexpr int kCopyRegisters = 56, kReaderRegisters = 200;
  static constexpr int blocks() { return 2; }  // on a multiprocessor
  constexpr int columns() const { return 64 * kPanels; }
  constexpr int stage_bytes() const { return kPanels * kGradientPanel; }
  constexpr int ring_at() const { return kStages * stage_bytes(); }
  constexpr int bytes() const { return ring_at() + 16 * kStages; }
};
// The same for 65 to 128 chunks: mix and its transpose stay in shared memory, tiles have 64 columns.
struct MixSquaresPlan {
  static constexpr int kStages = 5, kThreads = 3 * 128, kCopyRegisters = 56, kReaderRegisters = 224;
  constexpr int mix_bytes() const { return 4 * kGradientPanel; }
  constexpr int half_bytes() const { return 2 * kGradientPanel; }  // of S, and of dP
  constexpr int stage_bytes() const { return 2 * half_bytes(); }
  constexpr int stages_at() const { return 2 * mix_bytes(); }
  constexpr int ring_at() const { return stages_at() + kStages * stage_bytes(); }
  constexpr int bytes() const { return ring_at() + 16 * kStages; }
};
// Whether these kernels take a pass: by the rows of mix, as a longer sequence may not change bits.
constexpr bool mixes_both_at_once(std::int64_t mix_rows, bool normalized) {
  const bool squares = sm80::mixed_on_panels(mix_rows) && sm80::mix_squares(mix_rows) == 2;
  return !normalized && (mix_rows <= kMostMixedAtOnce || squares);
}

}  // namespace mhla::sm90
