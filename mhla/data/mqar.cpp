#include "mhla/data/mqar.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"

namespace mhla {

namespace {

MqarSequence make(const MqarOptions& o, Philox random) {
  check(o);
  const std::int64_t half = o.vocab_size / 2, space = (o.length - 2 * o.pairs) / 2;
  // Keys that are in no pair fill the gaps, so that every answer is the only one.
  std::vector<std::uint32_t> keys = random.draw(0, half, std::min(half, o.pairs + 64));
  const std::vector<std::uint32_t> fill(keys.begin() + o.pairs, keys.end());
  keys.resize(static_cast<std::size_t>(o.pairs));
  const std::vector<std::uint32_t> values = random.draw(half, o.vocab_size - half, o.pairs);
  MqarSequence sequence;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    sequence.tokens.push_back(keys[i]);
    sequence.tokens.push_back(values[i]);
  }
  while (static_cast<std::int64_t>(sequence.tokens.size()) < o.length)
    sequence.tokens.push_back(fill[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(fill.size())))]);
  std::vector<std::int64_t> asked(static_cast<std::size_t>(space), -1);  // the pair whose key comes back at a place
  for (std::int64_t pair = 0; pair < o.pairs; ++pair) {
    const double u = random.uniform();
    double part = 1.0;
    for (std::int64_t i = 0; i < o.skew; ++i) part *= u;
    auto at = static_cast<std::int64_t>(part * static_cast<double>(space));
    while (asked[static_cast<std::size_t>(at)] >= 0) at = (at + 1) % space;
    asked[static_cast<std::size_t>(at)] = pair;
  }
  for (std::int64_t at = 0; at < space; ++at) {
    const std::int64_t pair = asked[static_cast<std::size_t>(at)];
    if (pair < 0) continue;
    const std::int64_t place = 2 * o.pairs + 2 * at;
    sequence.tokens[static_cast<std::size_t>(place)] = keys[static_cast<std::size_t>(pair)];
    sequence.tokens[static_cast<std::size_t>(place + 1)] = values[static_cast<std::size_t>(pair)];
    sequence.places.push_back(place);
    sequence.expected.push_back(values[static_cast<std::size_t>(pair)]);
  }
  return sequence;
}

}  // namespace

void check(const MqarOptions& o) {
  if (o.pairs < 1) fail("mqar: pairs is ", o.pairs, ", expected at least 1");
  if (o.length < 4 * o.pairs)
    fail("mqar: length is ", o.length, ", expected at least ", 4 * o.pairs, " for ", o.pairs, " pairs");
  if (o.vocab_size % 2 != 0)
    fail("mqar: vocab_size is ", o.vocab_size, ", expected an even number: half of the ids are keys, half values");
  if (o.vocab_size < 2 * (o.pairs + 1) || o.vocab_size > (std::int64_t{1} << 24))
    fail("mqar: vocab_size is ", o.vocab_size, ", expected ", 2 * (o.pairs + 1), " (for ", o.pairs,
         " pairs) to 16777216");
  if (o.skew < 1 || o.skew > 1000) fail("mqar: skew is ", o.skew, ", expected 1 to 1000");
}

MqarSequence mqar_sequence(const MqarOptions& o, std::int64_t item) {
  return make(o, Philox(o.seed, Philox::kRecall, 0, item));
}

MqarSequence mqar_lesson(const MqarOptions& o, std::int64_t epoch, std::int64_t item) {
  return make(o, Philox(o.seed, Philox::kRecallLearn, epoch, item));
}

}  // namespace mhla
