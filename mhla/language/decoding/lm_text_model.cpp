#include "mhla/language/decoding/lm_text_model.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/language/decoding/generator.h"
#include "mhla/language/not_finite.h"

namespace mhla {
namespace {

constexpr const char* kLmTextModelEntry = "eval lm";

torch::Tensor tensor_of(const std::vector<std::int64_t>& values, const torch::Device& device) {
  return torch::tensor(values, torch::kLong).to(device);
}

}  // namespace

LmTextModel::LmTextModel(LanguageModel model, TokenizerPtr maybe_tokenizer, const LmTextOptions& options)
    : model_(std::move(model)), maybe_tokenizer_(std::move(maybe_tokenizer)), options_(options) {
  if (options.policy == LengthPolicy::kRechunk)
    fail(kLmTextModelEntry,
         ": length policy rechunk takes one text a pass, expected error, truncate_left or extend for tasks");
  model_->set_length_policy(options.policy == LengthPolicy::kExtend ? LengthPolicy::kExtend : LengthPolicy::kError);
  const bool bounded = model_->config().attention == "mhla" && options.policy != LengthPolicy::kExtend;
  if (bounded) limit_ = model_->config().context;
  if (options.limit > 0) limit_ = limit_ == 0 ? options.limit : std::min(limit_, options.limit);
  if (maybe_tokenizer_ != nullptr) opening_ = maybe_tokenizer_->document_opening();
}

const Tokenizer& LmTextModel::tokenizer() const {
  if (maybe_tokenizer_ == nullptr)
    fail(kLmTextModelEntry,
         ": the model was trained on ids that are no text, expected task mqar, or a model with a tokenizer");
  return *maybe_tokenizer_;
}

std::int64_t LmTextModel::vocab_size() const {
  return maybe_tokenizer_ != nullptr ? maybe_tokenizer_->vocab_size() : model_->config().vocab;
}

std::vector<LmTextModel::Piece> LmTextModel::pieces_of(std::span<const TextRequest> requests) const {
  std::vector<Piece> pieces;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const TextRequest& request = requests[r];
    if (request.continuation.empty()) fail(kLmTextModelEntry, ": request ", r, " has nothing to score");
    std::vector<std::uint32_t> tokens = opening_;
    tokens.insert(tokens.end(), request.context.begin(), request.context.end());
    std::size_t first = tokens.size();
    tokens.insert(tokens.end(), request.continuation.begin(), request.continuation.end());
    if (first == 0) ++first;  // nothing stands before the first token: it is not scored
    const auto limit = static_cast<std::size_t>(limit_);
    if (limit == 0 || tokens.size() - 1 <= limit) {
      pieces.push_back({std::move(tokens), first, r});
      continue;
    }
    // Windows side by side, one token of the window before as their past.
    if (request.context.empty() && request.windows) {
      for (std::size_t at = first; at < tokens.size(); at += limit) {
        const std::size_t begin = at == first ? 0 : at - 1,
                          end = std::min(tokens.size(), at == first ? limit + 1 : at + limit);
        pieces.push_back(
            {{tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.begin() + static_cast<std::ptrdiff_t>(end)},
             at - begin,
             r});
        if (at == first) at = end - limit;  // the next one begins where this one ended
      }
      continue;
    }
    if (options_.policy != LengthPolicy::kTruncateLeft)
      fail(kLmTextModelEntry, ": request ", r, " has ", tokens.size(), " tokens, expected at most ", limit + 1,
           "; --length-policy truncate_left keeps the last ones, extend goes on");
    const std::size_t cut = tokens.size() - 1 - limit;
    if (cut >= first)
      fail(kLmTextModelEntry, ": request ", r, " has ", tokens.size() - first, " tokens to score, expected at most ",
           limit);
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    pieces.push_back({std::move(tokens), first - cut, r});
  }
  return pieces;
}

// Requests side by side as packed documents: none sees another. Logits of what is scored alone.
void LmTextModel::score_together(std::span<const Piece> pieces, std::vector<TextScore>& scores) {
  std::vector<std::int64_t> tokens, bounds{0}, places, targets;
  for (const Piece& piece : pieces) {
    const auto begin = static_cast<std::int64_t>(tokens.size());
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end() - 1);
    bounds.push_back(static_cast<std::int64_t>(tokens.size()));
    for (std::size_t t = piece.first; t < piece.tokens.size(); ++t) {
      places.push_back(begin + static_cast<std::int64_t>(t) - 1);
      targets.push_back(piece.tokens[t]);
    }
  }
  const torch::Device device = model_->device();
  const torch::Tensor hidden =
      model_->hidden(tensor_of(tokens, device).unsqueeze(0), torch::tensor(bounds, torch::kLong))[0];
  constexpr std::int64_t kRows = 1024;  // logits of a large vocabulary are never all there
  std::vector<float> likelihood;
  std::vector<std::int64_t> best;
  const auto count = static_cast<std::int64_t>(places.size());
  for (std::int64_t at = 0; at < count; at += kRows) {
    const std::int64_t rows = std::min(kRows, count - at);
    const auto some = [&](const std::vector<std::int64_t>& all) {
      return tensor_of({all.begin() + at, all.begin() + at + rows}, device);
    };
    const torch::Tensor logits = model_->logits(hidden.index_select(0, some(places))).to(torch::kFloat);
    const torch::Tensor own = logits.gather(1, some(targets).unsqueeze(1)).squeeze(1) - logits.logsumexp(1);
    const torch::Tensor value = own.cpu().contiguous(), most = logits.argmax(1).cpu().contiguous();
    likelihood.insert(likelihood.end(), value.data_ptr<float>(), value.data_ptr<float>() + rows);
    best.insert(best.end(), most.data_ptr<std::int64_t>(), most.data_ptr<std::int64_t>() + rows);
  }
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    TextScore& score = scores[piece.request];
    for (std::size_t t = piece.first; t < piece.tokens.size(); ++t, ++at) {
      if (!std::isfinite(likelihood[at]))
        throw NotFinite(str(kLmTextModelEntry, ": the logits of request ", piece.request, " are NaN or infinite"));
      score.log_likelihood += static_cast<double>(likelihood[at]);
      score.greedy = score.greedy && best[at] == targets[at];
    }
  }
}

std::vector<TextScore> LmTextModel::score(std::span<const TextRequest> requests) {
  const torch::NoGradGuard no_gradient;
  std::vector<TextScore> scores(requests.size(), {0.0, true});
  const std::vector<Piece> pieces = pieces_of(requests);
  for (std::size_t first = 0; first < pieces.size();) {
    std::size_t last = first;
    std::int64_t tokens = 0;
    while (last < pieces.size() &&
           (last == first || tokens + static_cast<std::int64_t>(pieces[last].tokens.size()) <= options_.at_once))
      tokens += static_cast<std::int64_t>(pieces[last++].tokens.size());
    score_together(std::span(pieces).subspan(first, last - first), scores);
    first = last;
    if (progress) progress(static_cast<std::int64_t>(first), static_cast<std::int64_t>(pieces.size()));
  }
  return scores;
}

std::string LmTextModel::generate(std::span<const std::uint32_t> context, std::int64_t max_tokens,
                                  const std::vector<std::string>& stops) {
  std::vector<std::uint32_t> tokens = opening_;
  tokens.insert(tokens.end(), context.begin(), context.end());
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (limit_ > 0 && count + max_tokens > limit_) {
    if (options_.policy != LengthPolicy::kTruncateLeft)
      fail(kLmTextModelEntry, ": a prompt of ", count, " tokens and ", max_tokens, " more, expected at most ", limit_,
           "; --length-policy truncate_left keeps the last ones, extend goes on");
    if (max_tokens >= limit_)
      fail(kLmTextModelEntry, ": ", max_tokens, " tokens to write, expected fewer than ", limit_);
    tokens.erase(tokens.begin(), tokens.end() - (limit_ - max_tokens));
  }
  GenerateOptions options;
  options.sampler.temperature = 0.0, options.max_tokens = max_tokens, options.stops = stops;
  TextContext one = read_tokens(*model_, {std::move(tokens)});
  return mhla::generate(*model_, tokenizer(), one, options).texts[0].text;
}

std::vector<std::uint32_t> LmTextModel::likeliest(std::span<const std::uint32_t> tokens,
                                                  std::span<const std::int64_t> places) {
  const torch::NoGradGuard no_gradient;
  if (limit_ > 0 && static_cast<std::int64_t>(tokens.size()) > limit_)
    fail(kLmTextModelEntry, ": a sequence of ", tokens.size(), " tokens, expected at most ", limit_,
         "; --length-policy extend goes on");
  const torch::Device device = model_->device();
  const torch::Tensor hidden = model_->hidden(tensor_of({tokens.begin(), tokens.end()}, device).unsqueeze(0))[0];
  const torch::Tensor logits =
      model_->logits(hidden.index_select(0, tensor_of({places.begin(), places.end()}, device)));
  if (!logits.isfinite().all().item<bool>())
    throw NotFinite(str(kLmTextModelEntry, ": the logits are NaN or infinite"));
  const torch::Tensor best = logits.argmax(1).cpu().contiguous();
  return {best.data_ptr<std::int64_t>(), best.data_ptr<std::int64_t>() + best.numel()};
}

}  // namespace mhla
