// What a streaming state holds, and the implementations behind it. Only this folder and its tests include this;
// callers use streaming.h.
//
// Tokens of a chunk are folded into its summary kFoldStep at a time, and the prefix of the next chunk is mixed a few
// columns at a time, so that the last token of a chunk has little left to do (README.md, "No latency cliff").
#pragma once

#include <cstddef>
#include <string>

#include "mhla/core/cuda.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/chunkwise/summary_layout.h"
#include "mhla/kernels/streaming/streaming.h"

namespace mhla {

struct StreamingCandidate;

// Where a state stands. Everything here follows from the calls made, the same for all heads.
struct StreamingCounters {
  std::int64_t position = 0;  // tokens seen
  std::int64_t furthest = 0;  // the largest position so far: rollback counts from here
  std::int64_t base = 0;      // with kExtend: blocks before this one are only in `sum`
  std::int64_t folded = 0;    // tokens of the open chunk that are in its summary
  std::int64_t mixed = 0;     // columns of the next prefix that hold all finished blocks
  int open = 0;               // which of the two prefix buffers belongs to the open chunk
  bool stale = false;         // on a device: the prefix of the open chunk is still to be mixed, by the next call
};

struct StreamingState::Impl {
  StreamingConfig config;  // with Hkv, scale and rollback filled in
  const StreamingCandidate* candidate = nullptr;
  DType element = DType::kF32;    // of summaries, prefixes and sums: f32, or f64 for `ref`
  DType key_dtype = DType::kF32;  // of the key rings
  FeatureMap key_map{};           // still to be applied to what the key rings hold
  std::int64_t Hm = 0, L = 0;     // mix is [Hm, L, L]
  std::int64_t ring = 0;          // C + R tokens
  std::int64_t back = 0;          // chunks that rollback may reach back
  std::int64_t slots = 0;         // summaries kept, the open chunk's included
  SummaryLayout layout;
  StreamingCounters at;
  StreamingCounters next;  // written by one head during a call, taken over at its end

  // On a device: the call that last used the state, by number, and its stream; 0: none since the device was waited for.
  std::uint64_t last_call = 0;
  void* last_stream = nullptr;
  // The StreamingRecord, by number, that last found this state to be of its configuration, which never changes.
  mutable std::uint64_t fits_record = 0;

  AlignedBuffer memory;                   // of a state on the CPU
  DeviceBuffer device_memory;             // of one on a device
  mutable std::vector<std::byte> staged;  // what views() of a device state point into
  std::byte* mix = nullptr;               // [Hm][L][L]                 f32, f64 for f64
  std::byte* summaries = nullptr;         // [slots][Hkv][stride]       element; block b in slot b % slots
  std::byte* sum = nullptr;               // [Hkv][stride]              element; with kExtend
  std::byte* prefix[2] = {};              // [prefixes][stride]         element, or as the candidate keeps them
  std::byte* part = nullptr;   // [Hkv][stride]              element; long chunks: tokens on their way into a summary
  std::byte* ksum = nullptr;   // [Hkv][ksum_stride]         element; normalised: features summed over the open chunk
  std::byte* k = nullptr;      // [ring][Hkv][D]             key_dtype; token t in row t % ring
  std::byte* v = nullptr;      // [ring][Hkv][E]             config.dtype
  std::byte* k_den = nullptr;  // [ring][Hkv][D]             key_dtype; with den_features

  // Sizes and memory for a configuration that has been checked; counters at 0.
  Impl(const StreamingConfig& config, const StreamingCandidate& candidate, std::int64_t Hm, std::int64_t L);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void copy_from(const Impl& other);  // same sizes: contents and counters
  void clear();                       // counters at 0, sums of nothing

  [[nodiscard]] bool on_device() const { return config.device != kCpu; }
  [[nodiscard]] std::span<std::byte> bytes() const { return on_device() ? device_memory.bytes() : memory.bytes(); }

  [[nodiscard]] bool extend() const { return config.beyond_mix == BeyondMix::kExtend; }
  [[nodiscard]] bool normalized() const { return config.normalizer != Normalizer::kNone; }
  [[nodiscard]] std::int64_t group() const { return config.H / config.Hkv; }
  [[nodiscard]] std::int64_t prefixes() const { return Hm > 1 ? config.H : config.Hkv; }
  [[nodiscard]] bool has_row(std::int64_t chunk) const { return extend() || chunk < L; }
  // Vectors: whole subtotals, then the open one.
  [[nodiscard]] std::int64_t ksum_stride() const { return 2 * ((config.D + 15) / 16 * 16); }
  [[nodiscard]] std::int64_t blocks_kept() const;  // finished blocks in slots [0, blocks_kept)

  template <class T>
  static T* as(std::byte* data) {
    return reinterpret_cast<T*>(data);
  }
};

// Tokens folded into the summary at a time: at 8 tokens a fold costs about two decode steps.
inline constexpr std::int64_t kFoldStep = 8;
// Every kMixStep-th token mixes its share of the next prefix; the median token does not.
inline constexpr std::int64_t kMixStep = 4;

constexpr std::int64_t fold_target(std::int64_t tokens) { return tokens / kFoldStep * kFoldStep; }

// Columns of the next prefix, of `size`, that should be mixed when the open chunk of C tokens holds `tokens` < C.
constexpr std::int64_t mix_target(std::int64_t tokens, std::int64_t C, std::int64_t size) {
  const std::int64_t steps = (C + 1) / kMixStep, done = (tokens + 2) / kMixStep;  // at tokens 2, 6, 10, ...
  if (steps == 0 || done >= steps) return steps == 0 ? 0 : size;
  const std::int64_t share = (size + steps - 1) / steps;
  const std::int64_t columns = (share + 127) / 128 * 128 * done;  // whole cache lines, whole wide steps
  return columns < size ? columns : size;
}

// A checked call.
struct StreamingAppend {
  std::span<StreamingState* const> states;
  ConstView q, k, v, maybe_q_den, maybe_k_den;
  View out;
  std::int64_t B = 0, T = 0;
  void* stream = nullptr;  // of a call on a device
  [[nodiscard]] StreamingState::Impl& state(std::int64_t b) const {
    return states[static_cast<std::size_t>(b)]->impl();
  }
};

StreamingAppend checked_append(const StreamingParams& params, const RunOptions& run);  // throws (streaming.cpp)
// Throws where T more tokens of state number `number` pass the rows of mix.
void expect_room(const StreamingState& state, std::int64_t T, std::int64_t number);

struct StreamingCandidate {
  const char* name;
  bool on_device;                              // works on the memory of a CUDA device
  std::string (*fit)(const StreamingConfig&);  // empty, or the reason it steps aside
  DType element;                               // of summaries and prefixes
  bool keeps_features;                         // key rings of costly maps hold features in f32 instead of raw keys
  std::int64_t extra_slots;                    // with kExtend: summaries kept beyond what decode needs
  std::int64_t (*lanes)();                     // of its SummaryLayout; 0: plain rows
  std::string (*instruction_set)();            // what bits are promised for
  void (*append)(const StreamingAppend&, Workspace&, Executor&);  // moves the states; over a counting workspace: sizes
  // Prefix, running sums and the summary of the open chunk again, from the rings and the finished summaries.
  // same_chunk: the prefixes are still right.
  void (*rebuild)(StreamingState::Impl&, bool same_chunk);
  std::int64_t (*prefix_bytes)(const StreamingState::Impl&) = nullptr;  // of one prefix; null: those of a summary
};

extern const StreamingCandidate kStreamingCuda;
extern const StreamingCandidate kStreamingSimd;
extern const StreamingCandidate kStreamingRef;
std::span<const StreamingCandidate* const> streaming_candidates();  // fastest first, ref last

// The parts of kStreamingSimd that have files of their own.
void streaming_append_bf16_simd(const StreamingAppend& append, Workspace& workspace, Executor& executor);
void streaming_append_f16_simd(const StreamingAppend& append, Workspace& workspace, Executor& executor);
void streaming_rebuild_bf16_simd(StreamingState::Impl& state, bool same_chunk);
void streaming_rebuild_f16_simd(StreamingState::Impl& state, bool same_chunk);

}  // namespace mhla
