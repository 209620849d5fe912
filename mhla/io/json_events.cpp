// The strict side of nlohmann-json's SAX interface. It skips a byte order mark, takes a zero byte for the end
// of the document and accepts any depth; each is refused here, before or while it runs. Reading through an
// iterator of our own tells where we are, which the interface does not.
#include "mhla/io/json_events.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

namespace mhla {
namespace {

struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* here;
  const char** furthest;

  const char& operator*() const { return *here; }
  Cursor& operator++() {
    *furthest = ++here;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.here == b.here; }
};

class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(std::string_view text, const std::string& label, int max_depth, JsonEvents& events)
      : furthest(text.data()), text_(text), label_(label), max_depth_(max_depth), events_(events) {}

  bool null() override {
    return report([&] { events_.null(); });
  }
  bool boolean(bool value) override {
    return report([&] { events_.boolean(value); });
  }
  bool number_integer(std::int64_t value) override {
    return report([&] { events_.integer(value); });
  }
  bool number_unsigned(std::uint64_t value) override {
    return report([&] { events_.natural(value); });
  }
  bool number_float(double value, const std::string& /*raw*/) override {
    return report([&] { events_.real(value); });
  }
  bool string(std::string& value) override {
    return report([&] { events_.string(value); });
  }
  bool key(std::string& value) override {
    return report([&] { events_.key(value); });
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }  // no JSON text has one
  bool start_object(std::size_t /*size*/) override {
    return deeper() && report([&] { events_.begin_object(); });
  }
  bool start_array(std::size_t /*size*/) override {
    return deeper() && report([&] { events_.begin_array(); });
  }
  bool end_object() override {
    return report([&] { --depth_, events_.end_object(); });
  }
  bool end_array() override {
    return report([&] { --depth_, events_.end_array(); });
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: reason; last read: ..."; the reason is
    // kept, the place is ours and the token, which may be long and hold any byte, is left out.
    std::string_view reason = error.what();
    if (const auto bracket = reason.find("] "); bracket != reason.npos) reason.remove_prefix(bracket + 2);
    if (reason.substr(0, 14) == "parse error at") {
      if (const auto colon = reason.find(": "); colon != reason.npos) reason.remove_prefix(colon + 2);
    }
    const auto token = reason.find("; last read: '");
    const auto expected = reason.rfind("'; expected ");
    std::string told(reason.substr(0, token));
    if (token != reason.npos && expected != reason.npos && expected > token) {
      const std::string_view suffix = reason.substr(expected + 1);  // words of the parser, unless the token mimics them
      if (std::all_of(suffix.begin(), suffix.end(), [](char c) { return c >= ' ' && c <= '~'; })) told += suffix;
    }
    if (token == reason.npos && told.substr(0, 15) == "number overflow")
      told = "number is beyond the range of a double";
    fail(json_place(text_, label_, offset() > 0 ? offset() - 1 : 0), told);
  }

  const char* furthest;

 private:
  template <class Call>
  bool report(const Call& call) {
    events_.at = offset();
    call();
    return true;
  }
  bool deeper() {
    if (++depth_ > max_depth_)
      fail(json_place(text_, label_, offset() - 1), "nested deeper than ", max_depth_, " levels");
    return true;
  }
  [[nodiscard]] std::size_t offset() const { return static_cast<std::size_t>(furthest - text_.data()); }

  std::string_view text_;
  const std::string& label_;
  int max_depth_;
  int depth_ = 0;
  JsonEvents& events_;
};

// The parser buffers a token twice while it grows, so its length is bounded before. Whatever lies between two
// quotes is at least as long as any token there.
void check_tokens(std::string_view text, const std::string& label, std::size_t max_token) {
  if (text.size() <= max_token) return;
  std::size_t last = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '\\') {
      ++i;
    } else if (i == text.size() || text[i] == '"') {
      if (i - last > max_token)
        fail(json_place(text, label, last), "a string or number of ", i - last, " bytes, expected at most ", max_token);
      last = i;
    }
  }
}

}  // namespace

void walk_json(std::string_view text, const std::string& label, const JsonLimits& limits, JsonEvents& events) {
  if (text.size() > limits.max_bytes)
    fail(label, ": JSON of ", text.size(), " bytes, expected at most ", limits.max_bytes);
  if (text.substr(0, 3) == "\xef\xbb\xbf") fail(label, ": starts with a byte order mark, expected plain UTF-8");
  if (const auto zero = text.find('\0'); zero != text.npos)
    fail(json_place(text, label, zero), "a zero byte, expected JSON text");
  check_tokens(text, label, limits.max_token);
  Adapter adapter(text, label, limits.max_depth, events);
  const char* const end = text.data() + text.size();
  nlohmann::json::sax_parse(Cursor{text.data(), &adapter.furthest}, Cursor{end, &adapter.furthest}, &adapter);
}

std::string json_place(std::string_view text, const std::string& label, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0: the first line
  return str(label, ": line ", line, ", column ", before.size() - line_start + 1, ": ");
}

std::string quoted_excerpt(std::string_view text) {
  constexpr std::size_t kShown = 80;
  if (text.size() <= kShown) return json_quote(text);
  std::size_t cut = kShown;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;  // not inside a character
  return json_quote(text.substr(0, cut)) + str("... (", text.size(), " bytes)");
}

}  // namespace mhla
