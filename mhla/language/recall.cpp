#include "mhla/language/recall.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"

namespace mhla {
namespace {

constexpr const char* kFiller[] = {"Rain fell on the roofs of the town.", "A cart went slowly down the road.",
                                   "The river was high that year.",       "Nobody spoke for a while.",
                                   "Someone had left the gate open.",     "The bread was still warm.",
                                   "Two dogs slept under the table.",     "In the evening the wind turned."};
constexpr const char* kNames[] = {
    "the mill",    "the harbour", "the chapel", "the orchard", "the bridge",  "the tower",  "the garden", "the station",
    "the library", "the bakery",  "the forge",  "the stable",  "the market",  "the school", "the well",   "the barn",
    "the inn",     "the quarry",  "the museum", "the ferry",   "the theatre", "the cellar", "the castle", "the meadow"};

std::string needle(const char* name, std::uint32_t number) {
  return str("Remember this: the number of ", name, " is ", number, ". ");
}

}  // namespace

TaskResult run_mqar(const MqarOptions& options, std::int64_t items, TextModel& model) {
  check(options);
  if (options.vocab_size > model.vocab_size())
    fail("mqar: vocab_size is ", options.vocab_size, ", the model has ", model.vocab_size());
  std::vector<double> right;
  for (std::int64_t item = 0; item < items; ++item) {
    const MqarSequence sequence = mqar_sequence(options, item);
    const std::vector<std::uint32_t> said = model.likeliest(sequence.tokens, sequence.places);
    for (std::size_t i = 0; i < said.size(); ++i) right.push_back(said[i] == sequence.expected[i] ? 1.0 : 0.0);
  }
  return {"mqar", items, {mean_figure("acc", right)}};
}

NeedleItem needle_item(const NeedleOptions& o, std::int64_t item, const Tokenizer& tokenizer) {
  const auto most = static_cast<std::int64_t>(std::size(kNames));
  if (o.needles < 1 || o.needles > most) fail("needle: needles is ", o.needles, ", expected 1 to ", most);
  if (!(o.depth >= 0.0 && o.depth <= 1.0)) fail("needle: depth is ", o.depth, ", expected 0 to 1");
  Philox random(o.seed, Philox::kRecall, 1, item);
  const std::vector<std::uint32_t> names = random.draw(0, most, o.needles);
  std::vector<std::uint32_t> numbers;
  for (std::int64_t i = 0; i < o.needles; ++i)
    numbers.push_back(static_cast<std::uint32_t>(10000 + random.below(90000)));
  std::vector<double> depths(static_cast<std::size_t>(o.needles));  // the first is the one that is asked for
  for (double& depth : depths) depth = random.uniform();
  depths[0] = o.depth;
  std::vector<std::uint32_t> fill;
  const auto text_with = [&](std::int64_t sentences) {
    while (static_cast<std::int64_t>(fill.size()) < sentences)
      fill.push_back(static_cast<std::uint32_t>(random.below(std::size(kFiller))));
    std::string text = "There are numbers to remember in this text. ";
    for (std::int64_t s = 0; s <= sentences; ++s) {
      for (std::size_t n = 0; n < names.size(); ++n)
        if (std::llround(depths[n] * static_cast<double>(sentences)) == s) text += needle(kNames[names[n]], numbers[n]);
      if (s < sentences) text += std::string(kFiller[fill[static_cast<std::size_t>(s)]]) + " ";
    }
    return text + str("\nWhat is the number of ", kNames[names[0]], "? The number of ", kNames[names[0]], " is");
  };
  const auto tokens = [&](std::int64_t sentences) {
    return static_cast<std::int64_t>(tokenizer.encode(text_with(sentences)).size());
  };
  const std::int64_t least = tokens(0);
  if (least > o.length)
    fail("needle: length is ", o.length, ", expected at least ", least, " tokens for ", o.needles, " needles");
  std::int64_t low = 0, high = 1;
  while (tokens(high) <= o.length) low = high, high *= 2;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (tokens(middle) <= o.length ? low : high) = middle;
  }
  return {text_with(low), str(numbers[0])};
}

TaskResult run_needles(NeedleOptions options, std::int64_t items, TextModel& model) {
  std::vector<double> right;
  for (std::int64_t item = 0; item < items; ++item) {
    options.depth = items == 1 ? 0.5 : static_cast<double>(item) / static_cast<double>(items - 1);
    const NeedleItem asked = needle_item(options, item, model.tokenizer());
    const std::string said = model.generate(model.tokenizer().encode(asked.prompt), kAnswerTokens, {"\n"});
    const std::size_t at = said.find_first_of("0123456789");
    const std::size_t end = said.find_first_not_of("0123456789", std::min(at, said.size()));
    right.push_back(at != std::string::npos && said.substr(at, end - at) == asked.answer ? 1.0 : 0.0);
  }
  return {options.needles == 1 ? "passkey" : "needle", items, {mean_figure("acc", right)}};
}

}  // namespace mhla
