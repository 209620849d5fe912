// What the three forms of the operator share: feature maps (feature_map.h), normalisers, how a call is run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "mhla/core/executor.h"
#include "mhla/kernels/common/feature_map.h"

namespace mhla {

enum class Normalizer : std::uint8_t {
  kPaper,     // den_t = eps + q~_t . (mixed z of what t may see)
  kNone,      // out = scale * num
  kOfficial,  // of the published code: den(i,w) = eps + sum_b mix[i,b] (q~_{b,w} . z_b); bidirectional, equal blocks
};

std::string_view name_of(Normalizer normalizer);  // "paper", "none", "official"
Normalizer parse_normalizer(std::string_view name);

// How to run a call: nothing here changes what is computed.
struct RunOptions {
  std::string_view candidate = {};      // by name ("cuda", "simd", "ref"); empty: the first of the list that fits
  Executor* maybe_executor = nullptr;   // the caller's threads; null: default_executor()
  std::span<std::byte> workspace = {};  // at least *_workspace() bytes, 64-byte aligned, in the memory that the
                                        // tensors are in; empty: allocated by the call
  void* stream = nullptr;               // cudaStream_t, for tensors in device memory; the call returns before it ran
  // What forward makes on its way and backward would make again: as many bytes as *_kept() says, aligned like the
  // workspace and where it is, written by forward, read by backward of the same inputs and candidate. Empty: nothing.
  std::span<std::byte> kept = {};
};

// Whether callers that run both passes give `kept` its memory: unless MHLA_KEEP=0 is in the environment.
bool keeps_summaries();

}  // namespace mhla
