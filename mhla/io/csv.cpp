#include "mhla/io/csv.h"

#include "mhla/core/error.h"

namespace mhla {

std::vector<std::vector<std::string>> parse_csv(std::string_view text, const std::string& label) {
  std::vector<std::vector<std::string>> rows;
  std::size_t at = 0;
  while (at < text.size()) {
    std::vector<std::string>& row = rows.emplace_back();
    for (bool more = true; more;) {
      std::string cell;
      if (at < text.size() && text[at] == '"') {
        for (++at;; ++at) {
          if (at == text.size()) fail(label, ": row ", rows.size(), ": a quote is not closed");
          if (text[at] == '"' && (at + 1 == text.size() || text[at + 1] != '"')) break;
          if (text[at] == '"') ++at;
          cell += text[at];
        }
        ++at;
      } else {
        while (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r') cell += text[at++];
      }
      row.push_back(std::move(cell));
      more = at < text.size() && text[at] == ',';
      if (more) ++at;
    }
    if (at < text.size() && text[at] == '\r') ++at;
    if (at < text.size()) {
      if (text[at] != '\n') fail(label, ": row ", rows.size(), ": text behind a closing quote");
      ++at;
    }
    if (row.size() == 1 && row[0].empty()) rows.pop_back();  // an empty line
  }
  return rows;
}

}  // namespace mhla
