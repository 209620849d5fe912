// Finds names in a table that someone else holds: a hash table of 32-bit positions, 5 to 11 bytes a name.
// The hash has a random key per process, so a file cannot be made to collide.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mhla {

std::uint64_t keyed_hash(std::string_view text);

class NameIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  // `name_at(i)` is the name of entry i. Entries are added in the order 0, 1, 2, ...; an entry whose name is
  // there already is not added and the position of the earlier one is returned, otherwise kNone.
  template <class NameAt>
  std::uint32_t add(std::string_view name, const NameAt& name_at) {
    if ((count_ + 1) * 4 > slots_.size() * 3) grow(name_at);
    std::uint32_t& slot = slots_[probe(name, name_at)];
    if (slot != 0) return slot - 1;
    slot = ++count_;
    return kNone;
  }

  template <class NameAt>
  std::uint32_t find(std::string_view name, const NameAt& name_at) const {
    return slots_.empty() ? kNone : slots_[probe(name, name_at)] - 1;  // an empty slot is 0: kNone
  }

 private:
  template <class NameAt>
  std::size_t probe(std::string_view name, const NameAt& name_at) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = keyed_hash(name) & mask;
    while (slots_[at] != 0 && name_at(slots_[at] - 1) != name) at = (at + 1) & mask;
    return at;
  }
  template <class NameAt>
  void grow(const NameAt& name_at) {
    std::vector<std::uint32_t> bigger(slots_.empty() ? 16 : slots_.size() * 2);
    for (const std::uint32_t slot : slots_) {
      if (slot == 0) continue;
      std::size_t at = keyed_hash(name_at(slot - 1)) & (bigger.size() - 1);
      while (bigger[at] != 0) at = (at + 1) & (bigger.size() - 1);
      bigger[at] = slot;
    }
    slots_.swap(bigger);
  }

  std::vector<std::uint32_t> slots_;  // position + 1, or 0; a power of two, at most three quarters full
  std::uint32_t count_ = 0;
};

}  // namespace mhla
