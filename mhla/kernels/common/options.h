// What the three forms of the operator share: feature maps, normalisers, how a call is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "mhla/core/threads.h"

namespace mhla {

// phi, applied to q, k, q_den and k_den alike, never to v.
enum class FeatureMap : std::uint8_t {
  kReluEps,   // relu(x) + 1e-6
  kRelu,      // relu(x); relu(NaN) is NaN
  kElu1,      // elu(x) + 1: x + 1 above 0, exp(x) below
  kIdentity,  // x
};

enum class Normalizer : std::uint8_t {
  kPaper,     // den_t = eps + q~_t . (mixed z of what t may see)
  kNone,      // out = scale * num
  kOfficial,  // of the published code: den(i,w) = eps + sum_b mix[i,b] (q~_{b,w} . z_b); bidirectional, equal blocks
};

inline constexpr double kReluEpsilon = 1e-6;  // of kReluEps, independent of the operator's eps

std::string_view name_of(FeatureMap map);         // "relu_eps", "relu", "elu1", "identity"
std::string_view name_of(Normalizer normalizer);  // "paper", "none", "official"
FeatureMap parse_feature_map(std::string_view name);
Normalizer parse_normalizer(std::string_view name);

// How to run a call: nothing here changes what is computed.
struct RunOptions {
  std::string_view candidate = {};      // by name ("cuda", "simd", "ref"); empty: the first of the list that fits
  Executor* maybe_executor = nullptr;   // the caller's threads; null: default_executor()
  std::span<std::byte> workspace = {};  // at least *_workspace() bytes, 64-byte aligned, in the memory that the
                                        // tensors are in; empty: allocated by the call
  void* stream = nullptr;               // cudaStream_t, for tensors in device memory; the call returns before it ran
};

}  // namespace mhla
