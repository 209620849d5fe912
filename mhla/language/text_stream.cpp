#include "mhla/language/text_stream.h"

#include <algorithm>
#include <cstdlib>

#include "mhla/core/error.h"
#include "mhla/io/utf8.h"

namespace mhla {

int character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return -1;
  const int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte rules out overlong forms, surrogates and what lies above U+10FFFF.
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at == text.size()) return 0;
    if (byte(at) < (i == 1 ? low : 0x80) || byte(at) > (i == 1 ? high : 0xbf)) return -i;
  }
  return length;
}

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) fail("stop: a stop string is empty, expected text");
}

std::string TextStream::put(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  std::size_t first = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i)
    if (const std::size_t at = held_.find(stops_[i]); at < first) first = at, which_ = i;
  if (first != std::string::npos) {
    stopped_ = true;
    std::string text = show(first, true);
    held_.erase(0, stops_[which_].size());
    return text;
  }
  std::size_t kept = 0;  // the longest end that a stop string begins with
  for (const std::string& stop : stops_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) kept = n;
  return show(held_.size() - kept, false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  std::string text = show(held_.size(), true);
  held_.clear();
  return text;
}

// The first `bytes` of what is held as text; half a character at their end stays held unless they are the last.
std::string TextStream::show(std::size_t bytes, bool last) {
  std::string text;
  std::size_t at = 0;
  while (at < bytes) {
    const int length = character_length(std::string_view(held_).substr(at, bytes - at));
    if (length == 0 && !last) break;
    if (length > 0) text.append(held_, at, static_cast<std::size_t>(length));
    if (length <= 0) text += kReplacementCharacter;
    at = length == 0 ? bytes : at + static_cast<std::size_t>(std::abs(length));
  }
  held_.erase(0, at);
  return text;
}

}  // namespace mhla
