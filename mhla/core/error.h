// The one exception type of the library, and the helper that builds its message.
// A message names the entry point, the argument, what came and what was expected:
//   chunkwise_forward: mix has shape [1, 15, 15], expected at least [1, 16, 16] (N = 1024, C = 64)
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace mhla {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Concatenates its arguments with operator<<.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

}  // namespace mhla
