#include "mhla/io/name_index.h"

#include <cstring>
#include <random>

namespace mhla {
namespace {
// A typedef: -Wpedantic knows the type by this spelling alone.
__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using)
}  // namespace

std::uint64_t keyed_hash(std::string_view text) {
  static const std::uint64_t key = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  const auto mix = [](std::uint64_t a, std::uint64_t b) {  // the folded 128-bit product: every bit of a counts
    const auto product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::uint64_t hash = key ^ text.size();
  for (std::size_t i = 0; i < text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, text.size() - i < 8 ? text.size() - i : 8);
    hash = mix(hash ^ word, 0x9e3779b97f4a7c15u ^ (key >> 1));
  }
  return mix(hash, 0xbf58476d1ce4e5b9u);
}

}  // namespace mhla
