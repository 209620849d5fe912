#include "mhla/io/text/pipeline/normalize.h"

#include <algorithm>

#include "mhla/io/text/json_part.h"
#include "mhla/io/text/pipeline/icu.h"
#include "mhla/io/text/pipeline/nesting.h"
#include "mhla/io/text/pipeline/pattern.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

// Every character through `put(code, bytes, out)`.
template <class Put>
void each_character(StepText& text, const Put& put) {
  std::string out;
  out.reserve(text.text.size());
  std::size_t head = 0;
  for (std::size_t at = 0; at < text.text.size();) {
    const std::string_view rest = std::string_view(text.text).substr(at);
    const Code code = first_code(rest);
    put(code.code, rest.substr(0, code.length), out);
    at += code.length;
    if (at <= text.head) head = out.size();
  }
  text.text = std::move(out);
  text.head = head;
}

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(StepText& text, const RegexBudget& /*budget*/) const override {
    text.head = normalized(form_, std::string_view(text.text).substr(0, text.head)).size();
    text.text = normalized(form_, text.text);
    text.head = std::min(text.head, text.text.size());
  }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(StepText& text, const RegexBudget& /*budget*/) const override {
    text.head = lower_case(std::string_view(text.text).substr(0, text.head)).size();
    text.text = lower_case(text.text);
  }
};

class StripAccents final : public Normalizer {
 public:
  void apply(StepText& text, const RegexBudget& /*budget*/) const override {
    each_character(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
      if (code < 0x80 || !is_combining(code)) out += bytes;
    });
  }
};

class Bert final : public Normalizer {
 public:
  explicit Bert(const JsonPart& part)
      : clean_(part.at("clean_text").as_bool()),
        chinese_(part.at("handle_chinese_chars").as_bool()),
        lower_(part.at("lowercase").as_bool()),
        accents_(part.flag("strip_accents", lower_)) {}
  void apply(StepText& text, const RegexBudget& budget) const override {
    if (clean_)
      each_character(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
        if (code == '\t' || code == '\n' || code == '\r')
          out += ' ';
        else if (code != 0xfffd && !is_control(code))
          out += class_of(code) == CharClass::kSpace ? " " : bytes;
      });
    if (chinese_)
      each_character(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
        is_chinese(code) ? out.append(" ").append(bytes).append(" ") : out.append(bytes);
      });
    if (accents_) {
      Form(NormalForm::kNfd).apply(text, budget);
      each_character(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
        if (!is_nonspacing(code)) out += bytes;
      });
    }
    if (lower_) Lowercase().apply(text, budget);
  }

 private:
  static bool is_chinese(std::uint32_t code) {  // the blocks of tokenizers 0.23, with its gap before U+2B920
    return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
           (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b81f) ||
           (code >= 0x2b920 && code <= 0x2ceaf) || (code >= 0xf900 && code <= 0xfaff) ||
           (code >= 0x2f800 && code <= 0x2fa1f);
  }
  bool clean_, chinese_, lower_, accents_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const JsonPart& part)
      : pattern_(part.at("pattern"), "normalizer.pattern"), content_(part.at("content").as_string()) {}
  void apply(StepText& text, const RegexBudget& budget) const override {
    std::vector<Span> matches;
    pattern_.find_all(text.text, budget, matches);
    if (matches.empty()) return;
    std::string out;
    std::size_t at = 0, head = 0;
    const auto keep = [&](std::size_t end) {
      head += std::min(std::max(text.head, at), end) - at;
      out.append(text.text, at, end - at);
    };
    for (const Span& match : matches) {
      keep(match.begin);
      // What is put in stands for the last character of what it replaces.
      if (text.head > 0 && match.end <= text.head) head += content_.size();
      out += content_;
      at = match.end;
    }
    keep(text.text.size());
    text.text = std::move(out);
    text.head = head;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : prepended_(std::move(text)) {}
  void apply(StepText& text, const RegexBudget& /*budget*/) const override {
    if (text.text.empty() || text.goes_on) return;
    text.text.insert(0, prepended_);
    if (text.head > 0) text.head += prepended_.size();
  }

 private:
  std::string prepended_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(StepText& text, const RegexBudget& /*budget*/) const override {
    const std::string_view all = text.text;
    std::size_t begin = 0, end = 0;  // of what is left
    bool seen = false;
    for (std::size_t at = 0; at < all.size();) {
      const Character c = first_character(all.substr(at));
      at += c.length;
      if (c.kind != CharClass::kSpace) {
        if (!seen) begin = at - c.length;
        seen = true;
        end = at;
      }
    }
    if (!seen) begin = end = left_ || right_ ? 0 : all.size();
    if (!left_) begin = 0;
    if (!right_ && seen) end = all.size();
    text.head = text.head > begin ? std::min(text.head, end) - begin : 0;
    text.text = std::string(all.substr(begin, end - begin));
  }

 private:
  bool left_, right_;
};

void read_into(const JsonValue& value, int depth, Normalizers& steps) {
  const std::string type = type_of(value, "normalizer");
  const auto none = [&] { (void)JsonPart(value, "normalizer", {"type"}); };
  const auto add = [&](auto step) { steps.push_back(std::move(step)); };
  if (depth > kMaxDepth) fail("normalizer is nested more than ", kMaxDepth, " deep");
  if (type == "Sequence") {
    for (const JsonValue& item : JsonPart(value, "normalizer", {"type", "normalizers"}).at("normalizers").items())
      read_into(item, depth + 1, steps);
    return;
  }
  if (type == "Replace")
    return add(std::make_unique<Replace>(JsonPart(value, "normalizer", {"type", "pattern", "content"})));
  if (type == "Prepend")
    return add(std::make_unique<Prepend>(JsonPart(value, "normalizer", {"type", "prepend"}).at("prepend").as_string()));
  if (type == "Strip") {
    const JsonPart part(value, "normalizer", {"type", "strip_left", "strip_right"});
    return add(std::make_unique<Strip>(part.at("strip_left").as_bool(), part.at("strip_right").as_bool()));
  }
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {
      {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : kForms)
    if (type == name) return none(), need_icu("normalizer " + type), add(std::make_unique<Form>(form));
  if (type == "Lowercase") return none(), need_icu("normalizer " + type), add(std::make_unique<Lowercase>());
  if (type == "StripAccents") return none(), need_icu("normalizer " + type), add(std::make_unique<StripAccents>());
  if (type == "BertNormalizer") {
    const JsonPart part(value, "normalizer",
                        {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    need_icu("normalizer " + type);
    return add(std::make_unique<Bert>(part));
  }
  fail("normalizer is ", json_quote(type).substr(0, 80),
       ", expected NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, BertNormalizer, Replace, Prepend, Strip or a "
       "Sequence");
}

}  // namespace

Normalizers read_normalizers(const JsonValue& value) {
  Normalizers steps;
  read_into(value, 0, steps);
  return steps;
}

}  // namespace mhla::pipeline
