// For readers of files whose parts do not know where a value came from: the error says it all the same.
//   classes.json: JSON value is an integer, expected a string
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "mhla/core/error.h"

namespace mhla {

// Calls `read`. An Error that it throws opens with `label`, put there unless it does already.
template <class Read>
decltype(auto) labelled(const std::string& label, Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(label)) throw;
    fail(label, ": ", error.what());
  }
}

}  // namespace mhla
