// Flags whose numbers have a limit of the table (core/limits.h): "--batch: is 0, expected 1 to 1048576".
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

#include "mhla/core/limits.h"

namespace mhla::apps {

// `least` replaces the table's where 0 has a meaning.
inline CLI::Validator within(const Limit& limit, std::int64_t least) {
  return CLI::Validator(
      [most = limit.most, least](const std::string& text) {
        std::int64_t value = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && stop == text.data() + text.size();
        return whole && value >= least && value <= most ? std::string()
                                                        : str("is ", text, ", expected ", least, " to ", most);
      },
      "");
}
inline CLI::Validator within(const Limit& limit) { return within(limit, limit.least); }

}  // namespace mhla::apps
