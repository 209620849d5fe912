// Gradients against finite differences, in f64. The loss is sum(dout * out); along a random direction u of
// one input its slope, (loss(x + h u) - loss(x - h u)) / 2h, must be <dx, u>. A direction moves every element
// at once, so one wrong element of a gradient shows.
#pragma once

#include <string>
#include <string_view>

#include "mhla/testing/run_case.h"

namespace mhla {

// Empty, or which gradient is off, both values, the tolerance and the case. The dtype of `c` is taken as f64.
std::string check_gradients(Case c, std::string_view candidate = "ref");

}  // namespace mhla
