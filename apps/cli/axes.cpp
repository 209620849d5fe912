#include "apps/cli/axes.h"

#include <charconv>

#include "mhla/core/limits.h"

namespace mhla::apps {

std::vector<std::int64_t> parse_axes(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> axes;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    const bool more = stop != end && *stop == 'x';
    if (error != std::errc() || value < 1 || value > limits::kTokens.most || (stop != end && !more) || axes.size() == 3)
      fail(option, " is '", text, "', expected numbers from 1 to ", limits::kTokens.most,
           " joined by x, such as 4, 4x4 or 21x30x50");
    axes.push_back(value);
    if (!more) return axes;
    at = stop + 1;
  }
}

std::array<std::int64_t, 2> parse_plane(const std::string& text, const std::string& option) {
  const std::vector<std::int64_t> axes = parse_axes(text, option);
  if (axes.size() > 2) fail(option, " is '", text, "', expected rows and columns, such as 4x4, or 4 for both");
  return {axes.front(), axes.back()};
}

std::int64_t parse_square(const std::string& text, const std::string& option) {
  const auto [rows, columns] = parse_plane(text, option);
  if (rows != columns) fail(option, " is '", text, "', expected a square, such as 224 or 224x224");
  return rows;
}

}  // namespace mhla::apps
