// Names as one text: "a, b, c".
#pragma once

#include <string>
#include <vector>

namespace mhla::apps {

inline std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace mhla::apps
