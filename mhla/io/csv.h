// Tables of cells between commas (RFC 4180): a cell in quotes may hold commas, line breaks and doubled quotes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mhla {

std::vector<std::vector<std::string>> parse_csv(std::string_view text, const std::string& label);

}  // namespace mhla
