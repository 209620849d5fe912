// What a call throws, for tests of messages. Included by tests only.
#pragma once

#include <exception>
#include <string>

namespace mhla {

// The message of the exception that `call` throws, or that it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace mhla
