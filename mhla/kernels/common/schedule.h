// How the work of one call is cut into tasks, as pure functions of the shape. Bits never depend on any of it:
// every value is computed by the same instructions in the same order whatever task it falls into.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mhla {

// Summaries up to this size are worked on by one thread from beginning to end: they stay in its second-level cache
// (1 MiB and more on the CPUs of the last five years). Larger ones are shared by all threads, phase after phase.
inline constexpr std::int64_t kOnChipBytes = std::int64_t{1} << 20;

inline constexpr std::int64_t kMaxSimdHeadSize = 256;  // D and E that the CPU vector kernels take

enum class Schedule : std::uint8_t {
  kUnit,    // one task per unit: summaries, mixing and output of a head (or a few heads) by one thread
  kPhases,  // unit after unit, each phase cut into tasks over blocks or columns
};

constexpr Schedule schedule_of(std::int64_t unit_bytes, std::int64_t units, int workers) {
  if (workers == 1) return Schedule::kUnit;
  return unit_bytes <= kOnChipBytes && units >= workers ? Schedule::kUnit : Schedule::kPhases;
}

// Summaries of a visit that all threads share: in the third-level cache, or little else than it holds.
inline constexpr std::int64_t kSharedBytes = std::int64_t{32} << 20;

// Heads visited together, block by block. The rows of one head lie between those of the others: a visit of one head
// alone touches every page of k and v, and the processor walks the page tables once per head. On a Zen 4 virtual
// machine with small pages wan_480p rose from 0.60 to 0.88 of GEMM with four heads a visit, dit_s_4096 from 0.55 to
// 0.87 with six.
// Very long sequences still get three heads a visit, up to three times the memory.
constexpr std::int64_t heads_per_visit(std::int64_t heads, std::int64_t head_bytes) {
  const std::int64_t bytes = std::max<std::int64_t>(head_bytes, 1);
  const std::int64_t shared = std::max(kSharedBytes / bytes, std::min<std::int64_t>(3, 3 * kSharedBytes / bytes));
  const std::int64_t most = std::clamp<std::int64_t>(bytes <= kOnChipBytes ? kOnChipBytes / bytes : shared, 1, 16);
  const std::int64_t visits = (heads + most - 1) / most;
  return (heads + visits - 1) / visits;
}

// The same for a pass whose bits do not depend on it: where there are few visits, as many as the workers can share
// evenly, so that none waits for the last one.
constexpr std::int64_t heads_per_even_visit(std::int64_t heads, std::int64_t head_bytes, std::int64_t sequences,
                                            int workers) {
  const std::int64_t visit = heads_per_visit(heads, head_bytes);
  std::int64_t visits = (heads + visit - 1) / visit;
  if (head_bytes > kOnChipBytes || sequences * visits >= 4 * workers) return visit;
  while (visits < heads && sequences * visits % workers != 0) ++visits;
  return (heads + visits - 1) / visits;
}

// An output this large is not in any cache when it is read next: whole lines are written past the caches, which saves
// reading them first.
inline constexpr std::int64_t kStreamedBytes = std::int64_t{16} << 20;

}  // namespace mhla
