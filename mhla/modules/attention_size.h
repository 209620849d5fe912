// How large an attention is, by formula, before anything of it is allocated. Numbers are doubles: exact up to 2^53,
// and beyond that still large.
#pragma once

#include <cstdint>

namespace mhla {

struct MhlaAttentionOptions;

struct AttentionSize {
  double weights = 0;  // parameters but those of mix
  double mix = 0;      // mhla, linear: rows of mix squared, for every head that has its own
  double kept = 0;     // numbers that a token leaves for the backward pass, at least: inputs of products and operators
  [[nodiscard]] double parameters() const { return weights + mix; }
};

AttentionSize size_of(const MhlaAttentionOptions& options);

// Numbers of a linear layer.
inline double linear_size(double in, double out, bool bias) { return in * out + (bias ? out : 0.0); }
// Numbers of a depth-wise convolution with a bias; `taps` of one channel.
inline double channel_conv_size(double channels, double taps) { return channels * (taps + 1.0); }

}  // namespace mhla
