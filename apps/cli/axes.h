// Sizes by axis, spelled alike in every command: 4x4, 21x30x50, or one number for all axes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mhla::apps {

// One to three positive numbers joined by x. `option` opens errors: "bench op: --blocks".
std::vector<std::int64_t> parse_axes(const std::string& text, const std::string& option);
// Rows and columns; one number is both.
std::array<std::int64_t, 2> parse_plane(const std::string& text, const std::string& option);
// The side of a square, as N or NxN.
std::int64_t parse_square(const std::string& text, const std::string& option);

}  // namespace mhla::apps
