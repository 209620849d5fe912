// Barriers in shared memory (mbarrier): 8 bytes, which turn their parity when the arrivals and bytes they expect have
// come.
#pragma once

#include <cstdint>

namespace emulator {

void mbarrier_init(std::uint32_t address, int count);
void mbarrier_arrive(std::uint32_t address, std::int64_t expected_bytes = 0);
void mbarrier_bytes(std::uint32_t address, std::int64_t bytes);  // have come
void mbarrier_wait(std::uint32_t address, int parity);
bool mbarrier_test(std::uint32_t address, int parity);

}  // namespace emulator
