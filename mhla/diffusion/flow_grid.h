// The times at which a flow is asked for its velocity. Published code has several grids for "N steps, shift k", which
// differ at the ends; s = k a / (1 + (k - 1) a) for evenly spaced a, T the times of training
// (docs/generation-images.md):
//   wan-unipc         a = 1 - 1/T to 0, N + 1 of them without the last, and the network is fed the whole part of T s
//   wan-dpm           a = 1 to 0, likewise
//   diffusers-unipc   a = 1 to 1/T, likewise, the first s less 1e-6
//   mhla-dpm          as wan-unipc, but the network is fed T s
//   diffusers-euler   a = 1 to the shifted 1/T, N of them, so that the end is shifted twice; T s
//   linear            a = 1 - i / N; T s
#pragma once

#include "mhla/diffusion/flow.h"

namespace mhla {

struct FlowGrid {
  std::vector<double> sigmas;  // N + 1, rounded to f32, the last 0
  std::vector<double> times;   // N: what the network is fed
};

std::vector<std::string> flow_grid_names();
// Errors name the option, its value and what was expected.
FlowGrid flow_grid(const FlowOptions& process, std::int64_t steps, const std::string& name);

}  // namespace mhla
