#include "mhla/io/text/pipeline/pretokenize.h"

#include <functional>

#include "mhla/io/text/byte_letters.h"
#include "mhla/io/text/json_part.h"
#include "mhla/io/text/pipeline/icu.h"
#include "mhla/io/text/pipeline/nesting.h"
#include "mhla/io/text/pipeline/pattern.h"
#include "mhla/io/text/pipeline/split.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

// A step that cuts each piece by itself and leaves the text as it is.
class Cutting : public PreTokenizer {
 public:
  void apply(Pieces& pieces, const RegexBudget& budget) const final {
    std::vector<Span> spans;
    spans.reserve(pieces.spans.size());
    std::vector<SplitPart> parts;
    for (const Span& span : pieces.spans) {
      parts.clear();
      const SplitBehavior behavior =
          cut(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), budget, parts);
      put_pieces(parts, behavior, span.begin, spans);
    }
    pieces.spans = std::move(spans);
  }

 private:
  virtual SplitBehavior cut(std::string_view piece, const RegexBudget& budget, std::vector<SplitPart>& parts) const = 0;
};

class Split final : public Cutting {
 public:
  explicit Split(const JsonPart& part)
      : pattern_(part.at("pattern"), "pattern"),
        behavior_(split_behavior(part.at("behavior").as_string())),
        invert_(part.at("invert").as_bool()) {}

 private:
  SplitBehavior cut(std::string_view piece, const RegexBudget& budget, std::vector<SplitPart>& parts) const override {
    std::vector<Span> matches;
    pattern_.find_all(piece, budget, matches);
    parts_of(matches, piece.size(), parts);
    if (invert_)
      for (SplitPart& part : parts) part.is_match = !part.is_match;
    return behavior_;
  }
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// Characters of one kind, each a match.
class ByCharacter final : public Cutting {
 public:
  using Test = bool (*)(std::uint32_t code);
  ByCharacter(Test test, SplitBehavior behavior) : test_(test), behavior_(behavior) {}

 private:
  SplitBehavior cut(std::string_view piece, const RegexBudget& /*budget*/,
                    std::vector<SplitPart>& parts) const override {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < piece.size();) {
      const Code code = first_code(piece.substr(at));
      if (test_(code.code)) {
        if (begin < at) parts.push_back({{begin, at}, false});
        begin = at + code.length;
        parts.push_back({{at, begin}, true});
      }
      at += code.length;
    }
    if (begin < piece.size()) parts.push_back({{begin, piece.size()}, false});
    return behavior_;
  }
  Test test_;
  SplitBehavior behavior_;
};

// Runs of word characters, and runs of what is neither word nor space.
class Whitespace final : public Cutting {
 private:
  SplitBehavior cut(std::string_view piece, const RegexBudget& /*budget*/,
                    std::vector<SplitPart>& parts) const override {
    enum Kind : std::uint8_t { kNothing, kSpace, kWord, kOther };
    Kind before = kNothing;
    for (std::size_t at = 0; at < piece.size();) {
      const Code code = first_code(piece.substr(at));
      const Kind kind = is_word(code.code) ? kWord : class_of(code.code) == CharClass::kSpace ? kSpace : kOther;
      if (kind == before)
        parts.back().span.end = at + code.length;
      else
        parts.push_back({{at, at + code.length}, kind == kSpace});
      before = kind;
      at += code.length;
    }
    return SplitBehavior::kRemoved;
  }
};

// A step that writes the text anew, piece by piece.
class Writing : public PreTokenizer {
 public:
  void apply(Pieces& pieces, const RegexBudget& /*budget*/) const final {
    Pieces out;
    out.text.reserve(pieces.text.size() * 2);
    out.goes_on = pieces.goes_on;
    for (const Span& span : pieces.spans) {
      const bool may_prefix = !(pieces.goes_on && &span == pieces.spans.data());
      const std::size_t head = pieces.head > span.begin ? std::min(pieces.head, span.end) - span.begin : 0;
      write(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), head, may_prefix, out);
    }
    pieces = std::move(out);
  }

 private:
  // Appends what `piece` becomes to `out`; the first `head` bytes of it stand for the first character of all.
  virtual void write(std::string_view piece, std::size_t head, bool may_prefix, Pieces& out) const = 0;
};

class ByteLevel final : public Writing {
 public:
  explicit ByteLevel(const JsonPart& part)
      : prefix_(part.flag("add_prefix_space", true)),
        rule_(part.flag("use_regex", true) ? PieceRule::kGpt2 : PieceRule::kWhole) {}

 private:
  void write(std::string_view piece, std::size_t head, bool may_prefix, Pieces& out) const override {
    std::string spaced;
    if (prefix_ && may_prefix && piece[0] != ' ') {
      piece = spaced.append(" ").append(piece);
      if (head > 0) ++head;
    }
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t begin = out.text.size(), end = at + piece_length(rule_, piece.substr(at));
      for (; at < end; ++at) {
        out.text += letter_of(piece[at]);
        if (at < head) out.head = out.text.size();
      }
      out.spans.push_back({begin, out.text.size()});
    }
  }
  bool prefix_;
  PieceRule rule_;
};

class Metaspace final : public Writing {
 public:
  explicit Metaspace(const JsonPart& part)
      : mark_(part.at("replacement").as_string()), split_(part.flag("split", true)) {
    if (mark_.empty() || first_code(mark_).length != mark_.size())
      fail("Metaspace.replacement is ", json_quote(mark_).substr(0, 80), ", expected one character");
    const JsonValue* scheme = part.find("prepend_scheme");
    scheme_ = scheme != nullptr ? scheme->as_string() : "always";
    if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never")
      fail("Metaspace.prepend_scheme is ", json_quote(scheme_).substr(0, 80), ", expected always, first or never");
    if (!part.flag("add_prefix_space", true) && scheme_ != "never")
      fail("Metaspace.add_prefix_space is false and its prepend_scheme ", scheme_, ", expected never");
  }

 private:
  void write(std::string_view piece, std::size_t head, bool may_prefix, Pieces& out) const override {
    const std::size_t begin = out.text.size();
    const bool marked = piece[0] == ' ' || piece.substr(0, mark_.size()) == mark_;
    if (may_prefix && !marked && (scheme_ == "always" || (scheme_ == "first" && head > 0))) out.text += mark_;
    for (std::size_t at = 0; at < piece.size(); ++at) {
      piece[at] == ' ' ? out.text += mark_ : out.text += piece[at];
      if (at < head) out.head = out.text.size();
    }
    if (!split_) return out.spans.push_back({begin, out.text.size()});
    const std::string_view written = std::string_view(out.text).substr(begin);
    std::vector<Span> marks;
    for (std::size_t at = written.find(mark_); at != std::string_view::npos;
         at = written.find(mark_, at + mark_.size()))
      marks.push_back({at, at + mark_.size()});
    std::vector<SplitPart> parts;
    parts_of(marks, written.size(), parts);
    put_pieces(parts, SplitBehavior::kMergedWithNext, begin, out.spans);
  }
  std::string mark_, scheme_;
  bool split_;
};

bool is_space(std::uint32_t code) { return class_of(code) == CharClass::kSpace; }
bool is_number(std::uint32_t code) { return class_of(code) == CharClass::kNumber; }

void read_into(const JsonValue& value, int depth, PreTokenizers& steps) {
  const std::string type = type_of(value, "pre_tokenizer"), name = "pre_tokenizer " + type.substr(0, 40);
  const auto none = [&] { (void)JsonPart(value, name, {"type"}); };
  const auto add = [&](auto step) { steps.push_back(std::move(step)); };
  if (depth > kMaxDepth) fail("pre_tokenizer is nested more than ", kMaxDepth, " deep");
  if (type == "Sequence") {
    for (const JsonValue& item : JsonPart(value, name, {"type", "pretokenizers"}).at("pretokenizers").items())
      read_into(item, depth + 1, steps);
    return;
  }
  if (type == "Split")
    return add(std::make_unique<Split>(JsonPart(value, name, {"type", "pattern", "behavior", "invert"})));
  if (type == "ByteLevel")
    return add(
        std::make_unique<ByteLevel>(JsonPart(value, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"})));
  if (type == "Metaspace")
    return add(std::make_unique<Metaspace>(
        JsonPart(value, name, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"})));
  if (type == "Digits") {
    const bool each = JsonPart(value, name, {"type", "individual_digits"}).at("individual_digits").as_bool();
    return add(std::make_unique<ByCharacter>(is_number, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  }
  if (type == "WhitespaceSplit") return none(), add(std::make_unique<ByCharacter>(is_space, SplitBehavior::kRemoved));
  if (type == "Whitespace") return none(), need_icu(name), add(std::make_unique<Whitespace>());
  if (type == "Punctuation") {
    const JsonValue* behavior = JsonPart(value, name, {"type", "behavior"}).find("behavior");
    need_icu(name);
    return add(std::make_unique<ByCharacter>(
        is_punctuation, behavior != nullptr ? split_behavior(behavior->as_string()) : SplitBehavior::kIsolated));
  }
  if (type == "BertPreTokenizer") {
    none(), need_icu(name);
    add(std::make_unique<ByCharacter>(is_space, SplitBehavior::kRemoved));
    return add(std::make_unique<ByCharacter>(is_punctuation, SplitBehavior::kIsolated));
  }
  fail(
      "pre_tokenizer is ", json_quote(type).substr(0, 80),
      ", expected Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit, Punctuation, BertPreTokenizer or a "
      "Sequence");
}

}  // namespace

PreTokenizers read_pre_tokenizers(const JsonValue& value) {
  PreTokenizers steps;
  read_into(value, 0, steps);
  return steps;
}

}  // namespace mhla::pipeline
