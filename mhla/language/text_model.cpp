#include "mhla/language/text_model.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {

TextRequest text_request(const Tokenizer& tokenizer, std::string context, std::string continuation) {
  const std::size_t kept = context.find_last_not_of(" \t\n\r") + 1;  // npos + 1 is 0
  continuation.insert(0, context, kept, std::string::npos);
  context.resize(kept);
  TextRequest request;
  request.context = tokenizer.encode(context);
  const std::vector<std::uint32_t> whole = tokenizer.encode(context + continuation);
  const std::size_t cut = request.context.size();
  if (whole.size() <= cut) fail("task: a continuation behind ", cut, " tokens has none of its own");
  request.context.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut));
  request.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end());
  return request;
}

Figure mean_figure(const std::string& name, std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0.0, squares = 0.0;
  for (const double value : values) sum += value;
  const double mean = values.empty() ? 0.0 : sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {name, mean, values.size() < 2 ? 0.0 : std::sqrt(squares / (count - 1.0) / count)};
}

}  // namespace mhla
