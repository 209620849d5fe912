// Steps work on a list of tokens. Fuse and ByteLevel make one text of them; what follows sees that text, and only Strip
// may follow: another step might change what has been shown already when more tokens come.
#include "mhla/io/text/pipeline/decoders.h"

#include <optional>

#include "mhla/io/text/byte_letters.h"
#include "mhla/io/text/json_part.h"
#include "mhla/io/text/pipeline/nesting.h"
#include "mhla/io/text/pipeline/pattern.h"
#include "mhla/io/text/unicode.h"
#include "mhla/io/utf8.h"

namespace mhla::pipeline {
namespace {

std::string replaced(std::string_view text, std::string_view what, std::string_view with) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(what, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += with;
    at = found + what.size();
  }
}

std::string character_of(const JsonPart& part, std::string_view key) {
  const std::string text = part.at(key).as_string();
  if (text.empty() || first_code(text).length != text.size())
    fail("decoder.", key, " is ", json_quote(text).substr(0, 80), ", expected one character");
  return text;
}

// The end of a word is a space, but for the last one.
class Suffix final : public DecodeStep {
 public:
  explicit Suffix(std::string suffix) : suffix_(std::move(suffix)) {
    if (suffix_.empty()) fail("decoder.suffix is empty, expected text");
  }
  void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& /*budget*/) const override {
    for (std::string& token : tokens)
      token = replaced(token, suffix_, ends.last && &token == &tokens.back() ? "" : " ");
  }

 private:
  std::string suffix_;
};

class Spaces final : public DecodeStep {
 public:
  void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& /*budget*/) const override {
    for (std::string& token : tokens)
      if (!(ends.last && &token == &tokens.back())) token += ' ';
  }
};

class MetaspaceMark final : public DecodeStep {
 public:
  explicit MetaspaceMark(const JsonPart& part) : mark_(character_of(part, "replacement")) {
    const JsonValue* scheme = part.find("prepend_scheme");
    const std::string name = scheme != nullptr ? scheme->as_string() : "always";
    if (name != "always" && name != "first" && name != "never")
      fail("decoder.prepend_scheme is ", json_quote(name).substr(0, 80), ", expected always, first or never");
    if (!part.flag("add_prefix_space", true) && name != "never")
      fail("decoder.add_prefix_space is false and its prepend_scheme ", name, ", expected never");
    prepends_ = name != "never";
  }
  void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& /*budget*/) const override {
    for (std::string& token : tokens)
      token = replaced(token, mark_, prepends_ && ends.first && &token == tokens.data() ? "" : " ");
  }

 private:
  std::string mark_;
  bool prepends_ = true;
};

class ReplaceText final : public DecodeStep {
 public:
  explicit ReplaceText(const JsonPart& part)
      : pattern_(part.at("pattern"), "decoder.pattern"), content_(part.at("content").as_string()) {}
  void apply(std::vector<std::string>& tokens, const DecodeEnds& /*ends*/, const RegexBudget& budget) const override {
    std::vector<Span> matches;
    for (std::string& token : tokens) {
      matches.clear();
      pattern_.find_all(token, budget, matches);
      std::string out;
      std::size_t at = 0;
      for (const Span& match : matches) {
        out.append(token, at, match.begin - at).append(content_);
        at = match.end;
      }
      token = out.append(token, at);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Up to so many of one character from both ends: of every token, or of the whole text.
class StripEnds final : public DecodeStep {
 public:
  StripEnds(const JsonPart& part, bool whole)
      : content_(character_of(part, "content")),
        start_(part.at("start").as_uint()),
        stop_(part.at("stop").as_uint()),
        whole_(whole) {
    if (whole && stop_ > 0) fail("decoder.stop is ", stop_, " for the end of the whole text, expected 0");
  }
  void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& /*budget*/) const override {
    if (whole_ && !ends.first) return;
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::uint64_t i = 0; i < start_ && rest.substr(0, content_.size()) == content_; ++i)
        rest.remove_prefix(content_.size());
      const auto ends_so = [&] {
        return rest.size() >= content_.size() && rest.substr(rest.size() - content_.size()) == content_;
      };
      for (std::uint64_t i = 0; i < stop_ && ends_so(); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  std::uint64_t start_, stop_;
  bool whole_;
};

// <0x41> is a byte; bytes that stand together are text.
class Bytes final : public DecodeStep {
 public:
  void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& /*budget*/) const override {
    std::vector<std::string> out;
    std::string run;
    const auto end_run = [&] {
      if (run.empty()) return;
      if (ends.bytes || is_utf8(run))
        out.push_back(run);
      else
        out.insert(out.end(), run.size(), std::string(kReplacementCharacter));
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        run += *byte;
        continue;
      }
      end_run();
      out.push_back(std::move(token));
    }
    end_run();
    tokens = std::move(out);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    return static_cast<char>(value);
  }
};

class Join final : public DecodeStep {
 public:
  explicit Join(bool letters) : letters_(letters) {}
  void apply(std::vector<std::string>& tokens, const DecodeEnds& /*ends*/,
             const RegexBudget& /*budget*/) const override {
    std::string all, bytes;
    for (const std::string& token : tokens) all += letters_ && from_letters(token, bytes) ? bytes : token;
    tokens.clear();
    tokens.push_back(std::move(all));
  }

 private:
  bool letters_;  // each token that is letters of bytes becomes these
};

void read_into(const JsonValue& value, int depth, bool& joined, std::vector<std::unique_ptr<const DecodeStep>>& steps) {
  const std::string type = type_of(value, "decoder"), name = "decoder " + type.substr(0, 40);
  const auto add = [&](auto step) { steps.push_back(std::move(step)); };
  const auto none = [&] { (void)JsonPart(value, name, {"type"}); };
  if (depth > kMaxDepth) fail("decoder is nested more than ", kMaxDepth, " deep");
  if (type == "Sequence") {
    for (const JsonValue& item : JsonPart(value, name, {"type", "decoders"}).at("decoders").items())
      read_into(item, depth + 1, joined, steps);
    return;
  }
  if (type == "Strip")
    return add(std::make_unique<StripEnds>(JsonPart(value, name, {"type", "content", "start", "stop"}), joined));
  if (joined) fail(name, " stands behind Fuse or ByteLevel, where expected is Strip alone");
  if (type == "BPEDecoder")
    return add(std::make_unique<Suffix>(JsonPart(value, name, {"type", "suffix"}).at("suffix").as_string()));
  if (type == "Metaspace")
    return add(std::make_unique<MetaspaceMark>(
        JsonPart(value, name, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"})));
  if (type == "Replace")
    return add(std::make_unique<ReplaceText>(JsonPart(value, name, {"type", "pattern", "content"})));
  if (type == "ByteFallback") return none(), add(std::make_unique<Bytes>());
  if (type == "Fuse") return none(), joined = true, add(std::make_unique<Join>(false));
  if (type == "ByteLevel") {
    (void)JsonPart(value, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return joined = true, add(std::make_unique<Join>(true));
  }
  fail("decoder is ", json_quote(type).substr(0, 80),
       ", expected ByteLevel, BPEDecoder, Metaspace, Replace, ByteFallback, Fuse, Strip or a Sequence");
}

}  // namespace

TokenDecoder::TokenDecoder(const JsonValue* maybe_value) {
  bool joined = false;
  if (maybe_value != nullptr)
    read_into(*maybe_value, 0, joined, steps_);
  else
    steps_.push_back(std::make_unique<Spaces>());
}

std::string TokenDecoder::decode(std::vector<std::string> tokens, const RegexBudget& budget,
                                 const DecodeEnds& ends) const {
  if (tokens.empty()) return {};
  for (const auto& step : steps_) step->apply(tokens, ends, budget);
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

}  // namespace mhla::pipeline
