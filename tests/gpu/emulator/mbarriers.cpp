#include "tests/gpu/emulator/mbarriers.h"

#include <cstring>

#include "tests/gpu/emulator/fibers.h"
#include "tests/gpu/emulator/shared.h"

namespace emulator {

namespace {

// What the 8 bytes hold here. Memory that nobody initialised is all ones, whose count is none.
struct Words {
  std::int32_t bytes;  // expected, less those that came
  std::uint16_t pending;
  std::uint16_t count : 15, parity : 1;
};
static_assert(sizeof(Words) == 8);
constexpr int kMostCount = 1 << 14;

Words* at(std::uint32_t address, const char* what) {
  auto* const words = reinterpret_cast<Words*>(place_of(address, 8, 8, what));
  if (words->count == 0 || words->count > kMostCount || words->pending > words->count)
    wrong("%s: there is no barrier at %u", what, own_address(address) - kSharedBase);
  return words;
}

void turn_if_complete(Words* words, std::uint32_t address) {
  if (words->pending > 0 || words->bytes != 0) return;
  words->pending = words->count;
  words->parity ^= 1;
  wake(Wait::kMbarrier, cluster_address(address));
}

}  // namespace

void mbarrier_init(std::uint32_t address, int count) {
  if (count < 1 || count > kMostCount) wrong("mbarrier.init: a count of %d", count);
  auto* const words = reinterpret_cast<Words*>(place_of(address, 8, 8, "mbarrier.init"));
  *words = {0, static_cast<std::uint16_t>(count), static_cast<std::uint16_t>(count), 0};
}

void mbarrier_arrive(std::uint32_t address, std::int64_t expected_bytes) {
  Words* const words = at(address, "mbarrier.arrive");
  if (words->pending == 0)
    wrong("mbarrier.arrive: more arrivals than %d at %u", words->count, own_address(address) - kSharedBase);
  words->bytes += static_cast<std::int32_t>(expected_bytes);
  --words->pending;
  turn_if_complete(words, address);
}

void mbarrier_bytes(std::uint32_t address, std::int64_t bytes) {
  Words* const words = at(address, "complete_tx");
  words->bytes -= static_cast<std::int32_t>(bytes);
  turn_if_complete(words, address);
}

bool mbarrier_test(std::uint32_t address, int parity) {
  if (parity != 0 && parity != 1) wrong("mbarrier.try_wait: a parity of %d", parity);
  return at(address, "mbarrier.try_wait")->parity != parity;
}

void mbarrier_wait(std::uint32_t address, int parity) {
  while (!mbarrier_test(address, parity)) wait_for(Wait::kMbarrier, cluster_address(address), parity);
}

BarrierState mbarrier_state(std::uint32_t address) {
  const auto* const words = reinterpret_cast<const Words*>(place_of(address, 8, 8, "mbarrier"));
  return {true, words->pending, words->count, words->parity, words->bytes};
}

}  // namespace emulator
