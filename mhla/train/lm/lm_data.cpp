#include "mhla/train/lm/lm_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "mhla/core/error.h"
#include "mhla/data/token_loader.h"
#include "mhla/train/lm/lm_eval.h"
#include "mhla/train/lm/lm_task.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

class TextData final : public LmData {
 public:
  TextData(const std::string& folder, bool check) : train_(TokenSet::open(folder)) {
    if (train_.info().valid.documents > 0) valid_ = TokenSet::open(folder, /*valid=*/true);
    if (!check) return;
    train_.verify_checksums();
    if (valid_) valid_->verify_checksums();
  }
  [[nodiscard]] std::int64_t vocab() const override { return train_.info().vocab_size; }
  [[nodiscard]] const char* whose() const override { return "the tokens"; }
  [[nodiscard]] TokenizerPtr maybe_tokenizer() const override { return train_.tokenizer(); }
  [[nodiscard]] std::string name() const override { return train_.folder(); }
  [[nodiscard]] std::int64_t checksum() const override { return train_.checksum(); }
  [[nodiscard]] std::vector<std::string> warnings() const override {
    if (valid_) return {};
    return {str(train_.folder(),
                ": nothing is held out, so nothing is evaluated; data tokenize --valid makes such a part")};
  }
  [[nodiscard]] std::unique_ptr<TokenBatches> batches(const LmOptions& o, const Cursor& start) const override {
    TokenLoaderOptions loader;
    set_share(loader, o.train);
    loader.length = o.context, loader.packed = o.packing == "documents";
    loader.seed = static_cast<std::uint64_t>(o.train.seed), loader.start = start;
    return std::make_unique<TokenLoader>(train_, loader);
  }

  [[nodiscard]] const char* samples() const override { return "tokens"; }
  [[nodiscard]] double tokens_per_sample(const LmOptions&) const override { return 1.0; }
  [[nodiscard]] Metrics derived(const LmOptions&, double loss, double) const override {
    return {{"perplexity", std::exp(loss)}};
  }

  [[nodiscard]] Metrics evaluate(LanguageModelImpl& model, const LmOptions& options, const EvalProgress& progress,
                                 ContextShare* maybe_share) const override {
    if (!valid_) return {};
    PerplexityOptions o;
    o.length = options.context, o.documents = options.packing == "documents";
    o.tokens = options.eval_tokens, o.batch = share_of(options.train).each;
    o.place = options.train.place, o.maybe_share = maybe_share;
    const std::int64_t all = o.tokens > 0 ? std::min(o.tokens, valid_->tokens()) : valid_->tokens();
    const Perplexity now = perplexity(model, *valid_, o, [&](std::int64_t done) {
      if (progress) progress(std::min(done, all), all);
    });
    return {{"loss", now.loss}, {"perplexity", std::exp(now.loss)}};
  }

 private:
  TokenSet train_;
  std::optional<TokenSet> valid_;  // none: nothing is held out
};

// Of text: where its tokens are, or will be.
std::string own_folder(const LmOptions& o, const std::string& run) {
  return !o.tokens.empty() ? o.tokens : (fs::path(run) / "tokens").string();
}

}  // namespace

LmDataPtr open_data(const LmOptions& o, const std::string& run, const std::function<void(const std::string&)>& told) {
  return is_mqar(o) ? mqar_data(o) : open_tokens(token_folder(o, run, told), o.check_tokens);
}

LmDataPtr open_tokens(const std::string& folder, bool check) { return std::make_unique<TextData>(folder, check); }

void expect_own_tokens(const LmOptions& o, const std::string& run) {
  if ((o.tokenizer.empty() && !o.valid) || is_mqar(o)) return;
  const std::string folder = is_token_set(o.data) ? o.data : own_folder(o, run);
  if (!is_token_set(folder)) return;
  const TokenSetInfo info = TokenSet::open(folder).info();
  if (!o.tokenizer.empty() && !has_tokenizer(info, o.tokenizer))
    fail("train: tokenizer is ", o.tokenizer, ", but ", folder, " has the tokens of another (", info.tokenizer_kind,
         " of ", info.vocab_size, "), expected none or that one");
  if (o.valid && info.valid_part && *o.valid != *info.valid_part)
    fail("train: valid is ", *o.valid, ", but ", folder, " has tokens made with ", *info.valid_part,
         !info.valid_source.empty() ? " and a text of their own held out" : "",
         ", expected none or that one, or another folder");
}

std::string token_folder(const LmOptions& o, const std::string& run,
                         const std::function<void(const std::string&)>& told) {
  if (is_token_set(o.data)) return o.data;
  const std::string folder = own_folder(o, run);
  if (is_token_set(folder)) {
    expect_tokens_of("train", folder, TokenSet::open(folder).info(), o.data);
    return folder;
  }
  TokenizeOptions how;
  how.data = o.data, how.tokenizer = tokenizer_of(o), how.out = folder, how.valid = o.valid.value_or(0.01);
  const TokenSetInfo info = tokenize_corpus(how);
  told(str(folder, ": ", info.train.tokens + info.valid.tokens, " tokens of ", info.tokenizer_kind, " (",
           info.vocab_size, ") from ", info.bytes, " bytes of ", info.source,
           info.valid_tail ? str("; one document, so its last ", info.valid.tokens, " tokens are held out") : ""));
  for (const std::string& line : text_warnings(info)) told(line);
  return folder;
}

}  // namespace mhla::train
