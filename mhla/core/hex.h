// Whole numbers as hexadecimal digits: all that the type has, in small letters.
#pragma once

#include <concepts>
#include <string>

namespace mhla {

template <std::unsigned_integral Whole>
std::string hex(Whole value) {
  std::string digits(2 * sizeof(Whole), '0');
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, value = static_cast<Whole>(value >> 4))
    *digit = "0123456789abcdef"[value & 15];
  return digits;
}

}  // namespace mhla
