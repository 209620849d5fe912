// What a seed may be. CLI11 takes -1 for 2^64 - 1, and what is beyond that for the same.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace mhla::apps {

inline CLI::Validator is_seed() {
  return CLI::Validator(
      [](const std::string& text) {
        std::uint64_t value = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && stop == text.data() + text.size();
        return whole ? std::string() : "is " + text + ", expected a whole number from 0 to 18446744073709551615";
      },
      "");
}

}  // namespace mhla::apps
