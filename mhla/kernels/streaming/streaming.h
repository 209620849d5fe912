// The streaming form: the causal operator, a few tokens at a time, bit for bit what one chunkwise pass
// gives. A state holds one sequence (all heads): the summaries of finished chunks, the mixed prefix of
// the open chunk, and the raw k and v of the open chunk and of the R tokens before it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/support.h"

namespace mhla {

struct StreamingConfig {
  std::int64_t H = 0, Hkv = 0, D = 0, E = 0;  // Hkv 0: as H
  std::int64_t chunk = 64;                    // C
  DType dtype = DType::kF32;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kNone;  // kNone or kPaper
  double eps = 1e-6;
  std::optional<double> scale = {};  // default: D^-1/2 with kNone, 1 with kPaper
  BeyondMix beyond_mix = BeyondMix::kError;
  bool den_features = false;                  // tokens come with q_den and k_den
  std::optional<std::int64_t> rollback = {};  // R, tokens that can be taken back; default one chunk
  int device = kCpu;                          // whose memory holds the state: kCpu, or the ordinal of a CUDA device
};

// Calls on a device state run on the stream they are given and return before they ran; using a state on two streams is
// up to the caller to order. Whatever else touches its memory (a copy, views, the end of its life) waits for the device
// first; rollback and reset only move counters, and the next call does what they left.
class StreamingState {
 public:
  // `mix` is [L, L] or [H, L, L], in host memory or on the device of the state, and is copied. `candidate` as in
  // RunOptions; the state stays with it.
  StreamingState(const StreamingConfig& config, ConstView mix, std::string_view candidate = {});
  StreamingState(const StreamingState& other);             // a fork: the two go on independently
  StreamingState& operator=(const StreamingState& other);  // restore a snapshot
  StreamingState(StreamingState&&) noexcept;
  StreamingState& operator=(StreamingState&&) noexcept;
  ~StreamingState();

  [[nodiscard]] const StreamingConfig& config() const;
  [[nodiscard]] std::string_view candidate() const;
  [[nodiscard]] std::int64_t position() const;  // tokens seen
  [[nodiscard]] std::int64_t capacity() const;  // tokens mix has rows for; INT64_MAX with kExtend
  [[nodiscard]] std::int64_t bytes() const;     // memory held
  // Tokens that can be taken back now: R, counted from the furthest position reached, or down to the beginning.
  [[nodiscard]] std::int64_t rollback_limit() const;
  void rollback(std::int64_t tokens);  // further is an error naming R; the state goes on as if they had never come
  void reset();                        // as new

  // Everything needed to go on elsewhere: named tensors in host memory and text, for io/ to write and read. Views point
  // into the state, or for a device state into a copy that it keeps until the next views(). A state loaded on the
  // instruction set that saved it goes on with the same bits; on another it goes on too, with that one's rounding.
  // `device`: where a state of a CUDA candidate goes; states of the CPU stay there.
  [[nodiscard]] std::vector<NamedView> views() const;
  [[nodiscard]] std::map<std::string, std::string> metadata() const;
  static StreamingState load(const std::vector<NamedView>& views, const std::map<std::string, std::string>& metadata,
                             int device = 0);

  struct Impl;  // streaming_state.h
  [[nodiscard]] Impl& impl() { return *impl_; }
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// T more tokens for each of B states, which may stand at different positions. Prefill, append and decode are
// this one call: T is whatever comes, and the bits are those of one chunkwise pass over everything a state has seen.
// On an error no state has moved and out is untouched. Different states may be used from different threads. Tensors are
// where the states are.
struct StreamingParams {
  std::span<StreamingState* const> states;  // B distinct states of one configuration and candidate
  ConstView q;                              // [B, T, H, D]
  ConstView k;                              // [B, T, Hkv, D]
  ConstView v;                              // [B, T, Hkv, E]
  ConstView maybe_q_den;                    // [B, T, H, D]   with config.den_features
  ConstView maybe_k_den;                    // [B, T, Hkv, D]
  View out;                                 // [B, T, H, E]
};

void streaming_append(const StreamingParams& params, const RunOptions& run = {});
std::int64_t streaming_append_workspace(const StreamingParams& params, const RunOptions& run = {});

// Who can keep a state of this configuration, fastest first, each with its reason where it cannot.
std::vector<Support> streaming_support(const StreamingConfig& config);

}  // namespace mhla
