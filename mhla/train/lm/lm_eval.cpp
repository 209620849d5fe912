#include "mhla/train/lm/lm_eval.h"

#include <algorithm>
#include <chrono>

#include "mhla/core/error.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/train/shared_eval.h"

namespace mhla::train {
namespace {

// Tokens [begin, begin + count) as one sequence, of which those from `score` on count.
struct Stretch {
  std::int64_t begin = 0, count = 0, score = 0;
  bool ends = false;  // its last token is the last of a document
};

std::vector<Stretch> stretches_of(const TokenSet& set, const PerplexityOptions& o) {
  std::vector<Stretch> all;
  std::int64_t scored = 0;
  const std::int64_t parts = o.documents ? set.documents() : 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = o.documents ? set.document_begin(part) : 0,
                       end = o.documents ? set.document_begin(part + 1) : set.tokens();
    for (std::int64_t begin = first, done = first; done < end; begin += o.stride) {
      const std::int64_t count = std::min(o.length, end - begin);
      if (o.tokens > 0 && scored >= o.tokens) return all;
      all.push_back({begin, count, done - begin, o.documents && begin + count == end});
      scored += begin + count - done, done = begin + count;
    }
  }
  return all;
}

// Losses by place in the window, summed where the model is.
class Places {
 public:
  Places(std::int64_t length, const torch::Device& device)
      : sums_(torch::zeros({length}, torch::TensorOptions(torch::kDouble).device(device))),
        counts_(torch::zeros_like(sums_)) {}
  void add(const torch::Tensor& losses /* [n] */, const torch::Tensor& known, const torch::Tensor& places) {
    sums_.index_add_(0, places, losses.to(torch::kDouble));
    counts_.index_add_(0, places, known.to(torch::kDouble));
  }
  // Of all processes.
  void read(const Place& place, std::int64_t bucket, Perplexity& result) const {
    const torch::Tensor mine = torch::cat({sums_, counts_}).cpu();
    std::vector<double> numbers(mine.data_ptr<double>(), mine.data_ptr<double>() + mine.numel());
    numbers = sum_evaluation(place, numbers);
    const torch::Tensor all = torch::tensor(numbers, torch::kDouble);
    const torch::Tensor sums = all.narrow(0, 0, sums_.size(0)), counts = all.narrow(0, sums_.size(0), sums_.size(0));
    double total = 0, tokens = 0;
    for (std::int64_t first = 0; first < sums.size(0); first += bucket) {
      const std::int64_t size = std::min(bucket, sums.size(0) - first);
      const double sum = sums.narrow(0, first, size).sum().item<double>(),
                   count = counts.narrow(0, first, size).sum().item<double>();
      total += sum, tokens += count;
      if (count > 0) result.buckets.push_back({first, first + size - 1, static_cast<std::int64_t>(count), sum / count});
    }
    result.tokens = static_cast<std::int64_t>(tokens);
    result.loss = tokens > 0 ? total / tokens : 0.0;
  }

 private:
  torch::Tensor sums_, counts_;  // [length]
};

PerplexityOptions checked(PerplexityOptions o) {
  const auto at_least = [](std::int64_t low, const char* field, std::int64_t value) {
    if (value < low) fail("eval: ", field, " is ", value, ", expected at least ", low);
  };
  at_least(2, "length", o.length), at_least(0, "stride", o.stride), at_least(0, "tokens", o.tokens);
  at_least(1, "batch", o.batch), at_least(0, "bucket", o.bucket);
  if (o.stride == 0) o.stride = o.length;
  if (o.stride > o.length) fail("eval: stride is ", o.stride, ", expected at most length = ", o.length);
  if (o.bucket == 0) o.bucket = std::max<std::int64_t>(1, (o.length + 7) / 8);
  return o;
}

// Whether windows of so many tokens can be cut between the processes of a share.
bool can_be_cut(const ContextShare& share, const LmConfig& network, std::int64_t tokens) {
  const std::int64_t P = share.group->size();
  if ((tokens + network.chunk - 1) / network.chunk < P) return false;
  for (std::int64_t rank = 0; rank < P; ++rank)
    if (ops::tokens_of_rank(Layout::line(network.chunk), tokens, P, rank).count < network.short_conv - 1) return false;
  return true;
}

// A process that leaves would keep those it shares windows with waiting: all leave together.
void leave_together(const ContextShare& share) {
  bool stopped = false;
  try {
    leave_when_stopped();
  } catch (const Stopped&) {
    stopped = true;
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(share.group->size()), 1);
  const torch::Tensor any = share.group->gather(torch::full({1}, stopped ? 1 : 0, torch::kInt), counts);
  if (any.sum().item<std::int64_t>() > 0) throw Stopped();
}

}  // namespace

Perplexity perplexity(LanguageModelImpl& model, const TokenSet& set, const PerplexityOptions& given,
                      const std::function<void(std::int64_t done)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_gradient;
  const PerplexityOptions o = checked(given);
  const torch::Device device = model.device();
  const std::vector<Stretch> stretches = stretches_of(set, o);
  // Policies that need the whole length see one sequence at a time, others several packed into a row.
  const bool alone = needs_whole_length(model.length_policy());
  const std::int64_t row = alone ? 1 : o.batch * o.length;
  const std::int64_t behind = set.info().document_token.value_or(kIgnoredTarget);
  Perplexity result;
  result.length = model.describe_length(o.length);
  Places places(o.length, device);
  std::int64_t done = 0, batches = 0;
  for (std::size_t next = 0; next < stretches.size(); ++batches) {
    o.maybe_share == nullptr ? leave_when_stopped() : leave_together(*o.maybe_share);
    const bool mine = batches % o.place.data_ranks() == o.place.data_rank();
    const std::int64_t window = stretches[next].count;
    std::vector<std::int64_t> tokens, targets, place, bounds{0};
    do {
      const Stretch& s = stretches[next++];
      done += s.count - s.score;
      const std::size_t at = tokens.size(), count = static_cast<std::size_t>(s.count);
      tokens.resize(at + count), targets.resize(at + count);
      set.copy(s.begin, s.count, tokens.data() + at);
      const bool last = s.ends || s.begin + s.count == set.tokens();
      set.copy(s.begin + 1, last ? s.count - 1 : s.count, targets.data() + at);
      if (last) targets.back() = s.ends ? behind : kIgnoredTarget;
      std::fill_n(targets.begin() + static_cast<std::ptrdiff_t>(at), s.score, kIgnoredTarget);
      for (std::int64_t i = 0; i < s.count; ++i) place.push_back(i);
      bounds.push_back(static_cast<std::int64_t>(tokens.size()));
    } while (next < stretches.size() && static_cast<std::int64_t>(tokens.size()) + stretches[next].count <= row &&
             (o.maybe_share == nullptr || stretches[next].count == window));
    if (!mine) continue;
    const auto tensor = [&](const std::vector<std::int64_t>& list) {
      return torch::tensor(list, torch::kLong).to(device);
    };
    if (o.maybe_share != nullptr && can_be_cut(*o.maybe_share, model.config(), window)) {
      const ops::TokenRange part = o.maybe_share->begin(Layout::line(model.config().chunk), window, device);
      const auto cut = [&](const std::vector<std::int64_t>& list) {
        return tensor(list).view({-1, window}).narrow(1, part.first, part.count).contiguous();
      };
      const torch::Tensor target = cut(targets).flatten();
      places.add(token_losses(model.hidden(cut(tokens)).flatten(0, 1), model.head(), target), target != kIgnoredTarget,
                 cut(place).flatten());
      o.maybe_share->end();
      if (progress) progress(done);
      continue;
    }
    if (o.place.context_rank() != 0) continue;  // too short to be shared: the first of a context has it whole
    const torch::Tensor hidden =
        model.hidden(tensor(tokens).unsqueeze(0),
                     alone ? torch::Tensor() : torch::tensor(bounds, torch::kLong))[0];  // fewer with truncate_left
    const std::int64_t dropped = static_cast<std::int64_t>(tokens.size()) - hidden.size(0);
    const torch::Tensor target = tensor(targets).narrow(0, dropped, hidden.size(0));
    places.add(token_losses(hidden, model.head(), target), target != kIgnoredTarget,
               tensor(place).narrow(0, dropped, hidden.size(0)));
    if (progress) progress(done);
  }
  places.read(o.place, o.bucket, result);
  if (result.tokens == 0) fail("eval: ", set.folder(), " has no token that can be scored");
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace mhla::train
