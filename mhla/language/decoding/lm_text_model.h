// A language model as tasks see it (text_model.h).
#pragma once

#include <functional>

#include "mhla/language/text_model.h"
#include "mhla/models/lm/lm.h"

namespace mhla {

struct LmTextOptions {
  // What happens to a text that is longer than mix has rows for: error; truncate_left loses the beginning of its
  // context; extend goes on. A document without context is scored in windows side by side unless extended.
  LengthPolicy policy = LengthPolicy::kError;
  std::int64_t limit = 0;          // tokens of a text, fewer than the model's; 0: the model's. Softmax has no other
  std::int64_t at_once = 1 << 14;  // tokens of a pass, of as many requests as fit
};

class LmTextModel final : public TextModel {
 public:
  // Without a tokenizer it knows ids alone: what needs text is refused.
  LmTextModel(LanguageModel model, TokenizerPtr maybe_tokenizer, const LmTextOptions& options = {});
  [[nodiscard]] const Tokenizer& tokenizer() const override;
  [[nodiscard]] std::int64_t vocab_size() const override;
  std::vector<TextScore> score(std::span<const TextRequest> requests) override;
  std::string generate(std::span<const std::uint32_t> context, std::int64_t max_tokens,
                       const std::vector<std::string>& stops) override;
  std::vector<std::uint32_t> likeliest(std::span<const std::uint32_t> tokens,
                                       std::span<const std::int64_t> places) override;
  [[nodiscard]] std::int64_t limit() const { return limit_; }  // 0: none

  std::function<void(std::int64_t done, std::int64_t of)> progress;  // requests of score()

 private:
  // Tokens of one pass and which of their logits are wanted: those behind `first`, to the end.
  struct Piece {
    std::vector<std::uint32_t> tokens;  // the last one is only a target
    std::size_t first = 0, request = 0;
  };
  std::vector<Piece> pieces_of(std::span<const TextRequest> requests) const;
  void score_together(std::span<const Piece> pieces, std::vector<TextScore>& scores);
  LanguageModel model_;
  TokenizerPtr maybe_tokenizer_;
  LmTextOptions options_;
  std::int64_t limit_ = 0;
  std::vector<std::uint32_t> opening_;
};

}  // namespace mhla
