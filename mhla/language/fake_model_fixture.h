// A stand-in for a language model: its logits are a function that the test gives. Bytes are its tokens.
#pragma once

#include <functional>

#include "mhla/language/text_model.h"

namespace mhla {

class FakeModel final : public TextModel {
 public:
  using Score = std::function<TextScore(const std::string& context, const std::string& continuation)>;
  using Generate = std::function<std::string(const std::string& context)>;

  Score on_score;
  Generate on_generate;
  std::function<std::uint32_t(std::span<const std::uint32_t> tokens, std::int64_t place)> on_likeliest;

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::vector<TextScore> score(std::span<const TextRequest> requests) override {
    std::vector<TextScore> scores;
    for (const TextRequest& request : requests)
      scores.push_back(on_score(tokenizer_->decode(request.context), tokenizer_->decode(request.continuation)));
    return scores;
  }
  std::string generate(std::span<const std::uint32_t> context, std::int64_t max_tokens,
                       const std::vector<std::string>& stops) override {
    std::string said = on_generate(tokenizer_->decode(context)).substr(0, static_cast<std::size_t>(max_tokens));
    for (const std::string& stop : stops) said = said.substr(0, said.find(stop));
    return said;
  }
  std::vector<std::uint32_t> likeliest(std::span<const std::uint32_t> tokens,
                                       std::span<const std::int64_t> places) override {
    std::vector<std::uint32_t> said;
    for (const std::int64_t place : places) said.push_back(on_likeliest(tokens, place));
    return said;
  }

 private:
  TokenizerPtr tokenizer_ = byte_tokenizer();
};

}  // namespace mhla
