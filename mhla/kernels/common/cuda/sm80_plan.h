// Tiles and shared memory of the kernels of `sm80` and `sm90`, as pure functions of the shape and of the shared memory
// that a block of threads may have.
#pragma once

#include <cstdint>

namespace mhla::sm80 {

inline constexpr std::int64_t kMaxBlocks = 1024;  // a strip of all summaries is mixed in shared memory
// On Hopper, mix and strips of all summaries fit shared memory as panels; with few blocks these are mostly empty.
inline constexpr int kFewestPanelBlocks = 65, kMostPanelBlocks = 256;
constexpr bool mixed_on_panels(std::int64_t M) { return M >= kFewestPanelBlocks && M <= kMostPanelBlocks; }
constexpr int mix_squares(std::int64_t M) { return M <= 128 ? 2 : 4; }  // of 64 blocks, on panels
// A packed matrix of mix in units of 16 bytes: panels, or fragments of 16 x 16.
constexpr std::int64_t packed_mix_units(std::int64_t mix_rows, std::int64_t M) {
  const std::int64_t panels = mix_squares(mix_rows), tiles = (M + 15) / 16;
  return mixed_on_panels(mix_rows) ? panels * panels * 512 : tiles * tiles * 32;
}

// D and E as the kernels take them, rows of whole 16-byte units: others are copied (sm80_padding.h).
constexpr std::int64_t padded_size(std::int64_t X) { return (X + 7) / 8 * 8; }
// E beyond 128 is worked on in two equal parts.
constexpr std::int64_t padded_columns(std::int64_t E) { return E <= 128 ? padded_size(E) : (E + 15) / 16 * 16; }

// Tiles of a head: D rows in rows * 16, E columns in columns * 8.
struct Tiles {
  int rows = 0, columns = 0;
};
inline constexpr Tiles kTiles[] = {{2, 4}, {4, 8}, {5, 9}, {8, 16}};

constexpr Tiles tiles_of(std::int64_t D, std::int64_t E) {
  for (const Tiles& t : kTiles) {
    if (D <= t.columns * 8 && E <= t.columns * 8) return t;
  }
  return {};
}

// D and E that fill the tiles.
constexpr int exact_size(Tiles t) { return t.columns * 8; }

// Bytes from one row to the next in shared memory: an odd number of 16-byte units, so that the eight rows of an 8 x 8
// matrix lie in different banks.
constexpr int pitch_of(Tiles t) { return t.columns % 2 == 1 ? t.columns * 16 : t.columns * 16 + 16; }

// A summary in shared memory: D rows of S, then z, padded to 16. Read-out takes rows 8 c + r, 8 (c + 1) + r, ...
// together (Queries in bidirectional_sm80.cuh): 32 bytes between every eight rows put these into different banks too.
constexpr int summary_row(int d, int pitch) { return d * pitch + d / 8 * 32; }
constexpr int summary_bytes(int D, Tiles t) {
  const int bytes = summary_row(D, pitch_of(t)) + (D + 15) / 16 * 32;
  return bytes % 32 == 0 ? bytes + 16 : bytes;  // so do the rows of the next block
}

inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block of threads on Hopper
inline constexpr int kAllSharedBytes = 228 * 1024;  // of a multiprocessor, 1 KiB of it lost to every block
inline constexpr int kItemQueueBytes = 48;          // of a block of threads that takes items (sm90_items.cuh)
// 163 KiB on sm_80, 99 on sm_86, sm_89 and sm_120: every kernel has a plan for these.
inline constexpr int kLeastSharedBytes = 99 * 1024;
constexpr int all_shared_bytes(int most) { return most + 1024; }     // of a multiprocessor whose blocks may have `most`
inline constexpr int kPhaseTokens = 64;                              // of one pipeline stage of the phases
constexpr int phase_stages(Tiles t) { return t.rows >= 8 ? 2 : 3; }  // two blocks of threads a multiprocessor
constexpr int summary_stage_bytes(Tiles t) { return phase_stages(t) * kPhaseTokens * 2 * pitch_of(t); }

// Mixing in strips of columns: all M rows of a strip in shared memory, beside them the fragments of mix of every warp,
// `ahead` of them on their way. A warp makes 16 `per` rows at a time.
struct MixPlan {
  int strip, ahead, per, warps, bytes;
};
constexpr int mix_ahead(int strip) { return strip == 64 ? 6 : 2; }
constexpr int strip_pitch(int strip) { return strip * 2 + 16; }  // an odd number of 16-byte units
constexpr MixPlan mix_plan(std::int64_t M, int most) {
  const int tiles = static_cast<int>((M + 15) / 16), per = tiles <= 8 ? 1 : 2, needed = (tiles + per - 1) / per;
  MixPlan p{64, 0, per, needed < 8 ? needed : 8, 0};
  for (;; p.strip = 32) {
    p.ahead = mix_ahead(p.strip);
    p.bytes = tiles * 16 * strip_pitch(p.strip) + p.warps * p.ahead * per * 512;
    if (p.bytes <= most || p.strip == 32) return p;
  }
}

// Tiles of the backward pass over blocks of queries (sm80_backward.cuh). For dS~ a warp takes 16 rows, or part of their
// columns where warps are left; for dq it takes 16 tokens, or a share of their columns with 128 rows, as registers
// allow. One buffer of tokens and S~, or two where they fit: the next ones travel meanwhile.
inline constexpr int kGradientTokens = 64;
constexpr int gradient_warps(Tiles t) { return t.rows >= 8 ? 16 : t.rows < 4 ? 4 : t.rows; }
constexpr int gradient_shares(Tiles t) { return t.rows >= 8 ? 4 : 1; }
constexpr int gradient_shared_bytes(int D, Tiles t, int buffers) {
  return buffers * (2 * kGradientTokens * pitch_of(t) + summary_bytes(D, t)) +
         kGradientTokens * 8 * (1 + gradient_shares(t));
}
constexpr int gradient_buffers(int D, Tiles t, int most) { return gradient_shared_bytes(D, t, 2) <= most ? 2 : 1; }

// Heads whose summaries pass between the phases together, in rounds of equal size. Few rounds count for more than
// summaries that stay in the second-level cache (50 MiB): the backward pass of lm_2048 took 1.35 ms with 44 MiB, 1.03
// with 160 and 0.93 with 300, that of wan_480p 0.70 with 44 and 0.62 with 100.
inline constexpr std::int64_t kRoundBytes = std::int64_t{320} << 20;
constexpr std::int64_t units_at_once(std::int64_t units, std::int64_t unit_bytes) {
  const std::int64_t most = kRoundBytes / unit_bytes > 1 ? kRoundBytes / unit_bytes : 1;
  const std::int64_t rounds = (units + most - 1) / most;
  return (units + rounds - 1) / rounds;
}

constexpr std::int64_t rounds_of(std::int64_t units, std::int64_t at_once) {
  return units > 0 ? (units + at_once - 1) / at_once : 0;
}

// Tokens of a packed sequence: [start, start + length) of the only batch element.
struct TokenRange {
  std::int64_t start, length;
};

// Parts of dmix: enough blocks of threads for the largest card four times, each with at least 16 pieces of 64 columns.
constexpr std::int64_t mix_splits(std::int64_t tiles, std::int64_t units, std::int64_t columns) {
  const std::int64_t wanted = 4 * 132 / (tiles > 0 ? tiles : 1), pieces = units * ((columns + 63) / 64) / 16;
  const std::int64_t splits = wanted < pieces ? wanted : pieces;
  return splits > 1 ? splits : 1;
}

}  // namespace mhla::sm80
