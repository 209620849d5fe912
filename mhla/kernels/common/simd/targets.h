// The instruction sets of the vector kernels: which are compiled in and run on this CPU, and a way to hold the
// kernels to one of them. Bits are promised per instruction set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mhla {

std::vector<std::string> simd_targets();  // "AVX3", "AVX2", "SSE4", ...: compiled in and supported here, best first
std::string simd_target();                // the one in use

// Holds the kernels to one instruction set from now on; an empty name gives back the choice of the best. Process-wide
// and not to be called while kernels run: for tests, benchmarks and for comparing bits between machines.
void use_simd_target(std::string_view name);

}  // namespace mhla
