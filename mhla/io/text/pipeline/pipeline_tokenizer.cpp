#include "mhla/io/text/pipeline/pipeline_tokenizer.h"

#include <algorithm>
#include <utility>

#include "mhla/io/file.h"
#include "mhla/io/text/fingerprint.h"
#include "mhla/io/text/json_part.h"
#include "mhla/io/text/pipeline/decoders.h"
#include "mhla/io/text/pipeline/model.h"
#include "mhla/io/text/pipeline/pretokenize.h"
#include "mhla/io/text/post_processor.h"
#include "mhla/io/text/unicode.h"
#include "mhla/io/text/word_cache.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace pipeline {
namespace {

constexpr DecodeEnds kMiddle{.first = false, .last = false, .bytes = true},
    kEnd{.first = false, .last = true, .bytes = true};

// What the parts of a file make together.
struct Steps {
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::vector<AddedToken> added_list;
  std::unique_ptr<const Model> model;
  std::unique_ptr<const AddedTokens> added;
  std::unique_ptr<const TokenDecoder> decoder;
  RegexLimits limits;
};

void normalize(const Steps& steps, StepText& text, const RegexBudget& budget) {
  for (const auto& step : steps.normalizers) step->apply(text, budget);
}

class PipelineEncoder final : public Encoder {
 public:
  PipelineEncoder(const Steps& steps, SpecialText special, bool goes_on)
      : steps_(steps), special_(special), goes_on_(goes_on) {}

  void encode(std::string_view text, std::vector<std::uint32_t>& ids) override {
    if (const std::size_t good = utf8_prefix(text); good < text.size())
      fail("tokenizer: byte ", good, " of the text is no UTF-8, expected text, or a tokenizer of bytes");
    const RegexBudget budget(text.size(), steps_.limits);
    std::vector<Section> sections;
    steps_.added->cut(text, false, special_, sections);
    for (const Section& section : sections) {
      if (section.maybe_id) {
        ids.push_back(*section.maybe_id);
        continue;
      }
      StepText part;
      part.text = std::string(text.substr(section.span.begin, section.span.end - section.span.begin));
      if (section.span.begin == 0) part.head = first_code(text).length, part.goes_on = goes_on_;
      encode_section(std::move(part), budget, ids);
    }
  }

 private:
  void encode_section(StepText part, const RegexBudget& budget, std::vector<std::uint32_t>& ids) {
    normalize(steps_, part, budget);
    std::vector<Section> sections;
    steps_.added->cut(part.text, true, special_, sections);
    for (const Section& section : sections) {
      if (section.maybe_id) {
        ids.push_back(*section.maybe_id);
        continue;
      }
      const std::size_t begin = section.span.begin, size = section.span.end - begin;
      Pieces pieces;
      pieces.text = sections.size() == 1 ? std::move(part.text) : part.text.substr(begin, size);
      pieces.head = part.head > begin ? std::min(part.head - begin, size) : 0;
      pieces.goes_on = part.goes_on && begin == 0;
      pieces.spans.push_back({0, size});
      for (const auto& step : steps_.pre_tokenizers) step->apply(pieces, budget);
      for (const Span& span : pieces.spans)
        words_.encode(std::string_view(pieces.text).substr(span.begin, span.end - span.begin), ids,
                      [this](std::string_view piece, std::vector<std::uint32_t>& to) {
                        steps_.model->encode(piece, scratch_, to);
                      });
    }
  }

  const Steps& steps_;
  SpecialText special_;
  bool goes_on_;
  WordCache words_;
  Model::Scratch scratch_;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(std::string file, const std::string& label, const RegexLimits& limits) : file_(std::move(file)) {
    const JsonValue json = parse_json(file_, label);
    steps_.limits = limits;
    try {
      read(json);
    } catch (const Error& error) {
      fail(label, ": ", error.what());
    }
    Fingerprint print;
    print.add("mhla pipeline 1");
    print.add(write_json(json));
    fingerprint_ = print.value();
  }

  [[nodiscard]] std::string kind() const override { return "bpe"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(texts_.size()); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] const std::vector<SpecialToken>& specials() const override { return specials_; }
  [[nodiscard]] const std::vector<std::uint32_t>& opening() const override { return around_.opening; }
  [[nodiscard]] const std::vector<std::uint32_t>& closing() const override { return around_.closing; }
  [[nodiscard]] std::unique_ptr<Encoder> encoder(SpecialText special) const override {
    return std::make_unique<PipelineEncoder>(steps_, special, false);
  }
  [[nodiscard]] std::vector<std::uint32_t> encode_more(std::string_view text) const override {
    std::vector<std::uint32_t> ids;
    PipelineEncoder(steps_, SpecialText::kPlain, true).encode(text, ids);
    return ids;
  }
  void save(const std::filesystem::path& path) const override { write_file(path, file_); }

  // In the middle of a text.
  [[nodiscard]] std::string_view token_text(std::int64_t id) const override {
    check(id);
    return texts_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] std::string text_after(std::int64_t before, std::int64_t id) const override {
    return split_end(before).second + split_end(id).first;
  }
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    std::size_t bytes = 0;
    for (const std::uint32_t id : ids) {
      check(id);
      tokens.push_back(spelled_[id]);
      bytes += tokens.back().size();
    }
    return steps_.decoder->decode(std::move(tokens), RegexBudget(bytes, steps_.limits));
  }

 private:
  void read(const JsonValue& json) {
    const JsonPart root(json, "the file",
                        {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                         "post_processor", "decoder", "model"});
    root.only("version", "1.0");
    root.only("truncation", nullptr);
    root.only("padding", nullptr);
    if (const JsonValue* added = root.find("added_tokens")) steps_.added_list = read_added_tokens(*added);
    steps_.model = std::make_unique<Model>(root.at("model"), steps_.added_list);
    if (const JsonValue* value = root.find("normalizer")) steps_.normalizers = read_normalizers(*value);
    if (const JsonValue* value = root.find("pre_tokenizer")) steps_.pre_tokenizers = read_pre_tokenizers(*value);
    steps_.decoder = std::make_unique<TokenDecoder>(root.find("decoder"));
    spelled_ = steps_.model->tokens();
    if (const JsonValue* value = root.find("post_processor")) around_ = read_post_processor(*value, spelled_.size());
    for (const auto* list : {&around_.opening, &around_.closing})
      for (const std::uint32_t id : *list)
        if (spelled_[id].empty()) fail("post_processor puts token ", id, ", which is none of the vocabulary");
    add_tokens();
    std::size_t bytes = 0;
    for (const std::string& text : spelled_) bytes += text.size();
    const RegexBudget budget(bytes, steps_.limits);
    for (const std::string& text : spelled_)
      texts_.push_back(text.empty() ? "" : steps_.decoder->decode({text}, budget, kMiddle));
  }

  // A token that is looked for in normalised text is normalised itself, and so it is when it is decoded.
  void add_tokens() {
    std::vector<std::string> as_normalized;
    const RegexBudget budget(0, steps_.limits);
    for (const AddedToken& token : steps_.added_list) {
      StepText text{token.text, 0, false};
      if (token.normalized) {
        normalize(steps_, text, budget);
        spelled_[token.id] = text.text;
      }
      as_normalized.push_back(text.text);
      specials_.push_back({token.id, token.text, token.special});
    }
    steps_.added = std::make_unique<AddedTokens>(steps_.added_list, as_normalized);
    std::sort(specials_.begin(), specials_.end(),
              [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  }

  void check(std::int64_t id) const {
    if (id < 0 || id >= vocab_size()) fail("tokenizer: id ", id, " is out of range, expected 0 to ", vocab_size() - 1);
    if (spelled_[static_cast<std::size_t>(id)].empty())
      fail("tokenizer: id ", id, " has no token in this vocabulary of ", vocab_size());
  }

  // What can be shown of a token at once, and what of it is known only when another follows: the space that stands for
  // the end of a word.
  [[nodiscard]] std::pair<std::string, std::string> split_end(std::int64_t id) const {
    const std::string all(token_text(id));
    const std::string& token = spelled_[static_cast<std::size_t>(id)];
    const std::string last = steps_.decoder->decode({token}, RegexBudget(token.size(), steps_.limits), kEnd);
    if (all.compare(0, last.size(), last) != 0) return {all, ""};
    return {last, all.substr(last.size())};
  }

  std::string file_;
  Steps steps_;
  std::vector<std::string> spelled_, texts_;  // by id: as the decoder takes it; what it gives in the middle of a text
  std::vector<SpecialToken> specials_;
  AroundText around_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace
}  // namespace pipeline

TokenizerPtr make_pipeline_tokenizer(std::string text, const std::string& label, const pipeline::RegexLimits& limits) {
  return std::make_shared<pipeline::PipelineTokenizer>(std::move(text), label, limits);
}

}  // namespace mhla
