// One token out of a row of logits. The draw is a function of (seed, stream, place) alone and the arithmetic is IEEE
// double without the system's exp, so equal logits give equal tokens on every machine, and a text that is cut, saved
// and continued is the text that was not. Filters in the order of the published implementations:
//   repetition penalty | temperature | top-k | top-p | min-p
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mhla {

struct TokenSamplerOptions {
  double temperature = 1.0;         // 0: the most likely token, the first of equals
  std::int64_t top_k = 0;           // so many most likely tokens; 0: all
  double top_p = 1.0;               // the fewest most likely tokens that have this mass together
  double min_p = 0.0;               // no token less likely than this part of the most likely one
  double repetition_penalty = 1.0;  // logits of tokens seen: divided by it above 0, multiplied below
  std::uint64_t seed = 0;
};

void check(const TokenSamplerOptions& options);  // an Error names the option, its value and what it may be

class TokenSampler {
 public:
  TokenSampler(const TokenSamplerOptions& options, std::int64_t vocab_size, std::int64_t stream = 0);
  void saw(std::span<const std::uint32_t> tokens);  // for the penalty; below the vocabulary's size

  // The token for `place`, its position in the sequence. Logits of -inf are never drawn; NaN and +inf are an Error.
  [[nodiscard]] std::uint32_t pick(std::span<const float> logits, std::int64_t place);

 private:
  struct Candidate {
    double logit;
    std::uint32_t id;
  };
  void keep_likely(double largest);
  TokenSamplerOptions options_;
  std::int64_t stream_;
  std::vector<char> seen_;             // [vocab_size], or empty without penalty
  std::vector<Candidate> candidates_;  // scratch of one call
  std::vector<double> weights_;
};

// e^x for x <= 0, within 4 units of the last place; the same bits everywhere.
double exp_of_negative(double x);

}  // namespace mhla
