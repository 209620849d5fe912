// The sizes that flags and files may ask for. One table: check() of every configuration, the flags of the program and
// docs/limits.md have the same numbers. They are far above what anybody trains and far below what overflows; what a
// machine can hold is asked of the estimate (memory.h).
#pragma once

#include <cstdint>

#include "mhla/core/error.h"

namespace mhla {

struct Limit {
  const char* name;
  std::int64_t least, most;
  const char* what;
};

namespace limits {

// Models
inline constexpr Limit kLayers{"layers", 1, 4096, "blocks of a model or a stage (layers, depths)"};
inline constexpr Limit kDim{"dim", 1, 1 << 16, "channels (dim, dims)"};
inline constexpr Limit kHeads{"heads", 1, 4096, "attention heads (heads, kv_heads)"};
inline constexpr Limit kHeadSize{"head size", 1, 1 << 16, "channels of a head (expand_k, expand_v, --d, --e)"};
inline constexpr Limit kMlp{"mlp", 1, 1 << 20, "width of an MLP (mlp, mlp_ratio times dims)"};
inline constexpr Limit kVocab{"vocab", 2, 1 << 24, "tokens of a vocabulary (vocab, train:SIZE)"};
inline constexpr Limit kContext{"context", 1, 1 << 24, "tokens of a sequence (--context, --piece)"};
inline constexpr Limit kChunk{"chunk", 1, 1 << 24, "tokens of a chunk"};
inline constexpr Limit kTaps{"taps", 0, 255, "side of a convolution's kernel (cpe, lepe, short_conv)"};
inline constexpr Limit kImage{"image", 1, 1 << 14, "pixels of a side (--image, pad, --size)"};
inline constexpr Limit kPatch{"patch", 1, 1024, "pixels of a patch's side"};
inline constexpr Limit kChannels{"channels", 1, 256, "channels of an image"};
inline constexpr Limit kClasses{"classes", 1, 1 << 20, "classes"};
inline constexpr Limit kBlocks{"blocks", 1, 1024, "blocks of MHLA along an axis"};
// Work
inline constexpr Limit kBatch{"batch", 1, 1 << 20, "samples at a time (--batch)"};
inline constexpr Limit kAccumulate{"accumulate", 1, 1 << 20, "batches of a step"};
inline constexpr Limit kTokens{"tokens", 1, 1 << 30, "tokens of one operator call, or to generate (--n, --max-tokens)"};
inline constexpr Limit kThreads{"threads", 0, 1024, "threads; 0 for all cores"};

inline constexpr Limit kAll[] = {kLayers,  kDim,    kHeads, kHeadSize,   kMlp,    kVocab,
                                 kContext, kChunk,  kTaps,  kImage,      kPatch,  kChannels,
                                 kClasses, kBlocks, kBatch, kAccumulate, kTokens, kThreads};

}  // namespace limits

// "config: layers is 1000000000, expected 1 to 4096". `least` replaces the table's where a field may be 0.
template <class Value>
void expect_within(const char* entry, const char* field, Value value, const Limit& limit, std::int64_t least) {
  if (!(value >= static_cast<Value>(least) && value <= static_cast<Value>(limit.most)))
    fail(entry, ": ", field, " is ", value, ", expected ", least, " to ", limit.most);
}
template <class Value>
void expect_within(const char* entry, const char* field, Value value, const Limit& limit) {
  expect_within(entry, field, value, limit, limit.least);
}

}  // namespace mhla
