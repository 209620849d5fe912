#include "mhla/language/decoding/session.h"

#include <algorithm>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/language/not_finite.h"
#include "mhla/models/lm/decoder.h"

namespace mhla {
namespace {

std::set<std::uint32_t> ends_of(const Tokenizer& tokenizer) {
  std::set<std::uint32_t> ends;
  for (const auto& tokens : {tokenizer.document_opening(), tokenizer.closing()})
    ends.insert(tokens.begin(), tokens.end());
  for (const char* name : {"</s>", "<|end_of_text|>", "<|eot_id|>"})
    if (const auto id = tokenizer.find_special(name)) ends.insert(*id);
  return ends;
}

// Ids that get no logit: the model's vocabulary may be larger, and a tokenizer's may have holes.
std::vector<std::uint32_t> missing_tokens(const Tokenizer& tokenizer, std::int64_t vocab) {
  std::vector<std::uint32_t> missing;
  for (std::int64_t id = 0; id < vocab; ++id) {
    bool there = id < tokenizer.vocab_size();
    if (there) {
      try {
        (void)tokenizer.token_text(id);
      } catch (const Error&) {
        there = false;
      }
    }
    if (!there) missing.push_back(static_cast<std::uint32_t>(id));
  }
  return missing;
}

}  // namespace

const char* name_of(EndReason reason) {
  switch (reason) {
    case EndReason::kLength: return "length";
    case EndReason::kStop: return "stop";
    case EndReason::kDocument: return "end";
    case EndReason::kInterrupted: return "interrupted";
  }
  return "";
}

// One text being written.
struct Session::Sequence {
  Sequence(SequenceId number, const GenerateOptions& o, std::int64_t vocab, std::int64_t draw_number)
      : id(number), options(o), sampler(o.sampler, vocab, draw_number), stream(o.stops) {}
  SequenceId id;
  GenerateOptions options;
  TokenSampler sampler;
  TextStream stream;
  std::vector<std::uint32_t> tokens;
  std::string held;  // to be shown first
  GeneratedText out;
  std::optional<LmState> state;  // of a sequence that has ended
};

Session::Session(LanguageModelImpl& model, const Tokenizer& tokenizer)
    : model_(model),
      tokenizer_(tokenizer),
      decoder_(std::make_unique<Decoder>(model)),
      ends_(ends_of(tokenizer)),
      missing_(missing_tokens(tokenizer, model.config().vocab)) {}

Session::~Session() = default;

std::vector<SequenceId> Session::add(TextContext&& context, const GenerateOptions& options, std::int64_t first_number) {
  const torch::NoGradGuard no_gradient;
  check(options.sampler);
  if (options.max_tokens < 0) fail("generate: max_tokens is ", options.max_tokens, ", expected 0 or more");
  (void)model_.plan(context.longest() + options.max_tokens);  // throws where it cannot go so far
  context.held.resize(context.tokens.size());
  std::vector<SequencePtr> added;
  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < context.texts(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    ids.push_back(next_ + i);
    added.push_back(std::make_unique<Sequence>(next_ + i, options, model_.config().vocab, first_number + i));
    Sequence& sequence = *added.back();
    sequence.tokens = std::move(context.tokens[at]);
    sequence.held = std::move(context.held[at]);
    sequence.sampler.saw(sequence.tokens);
  }
  next_ += context.texts();
  if (options.max_tokens == 0) {  // nothing is written, and what was held stays held
    for (std::size_t i = 0; i < added.size(); ++i) {
      added[i]->state =
          added.size() == 1 ? std::move(context.state) : select(context.state, {static_cast<std::int64_t>(i)});
      added[i]->out.ended = EndReason::kLength;
      finished_.push_back(std::move(added[i]));
    }
    return ids;
  }
  if (going_.empty()) {
    state_ = std::move(context.state);
  } else if (!added.empty()) {
    std::vector<LmState> both;
    both.push_back(std::move(state_)), both.push_back(std::move(context.state));
    state_ = join(std::move(both));
  }
  for (SequencePtr& sequence : added) going_.push_back(std::move(sequence));
  return ids;
}

void Session::put_aside(const std::vector<std::size_t>& places) {
  if (places.empty()) return;
  std::vector<std::int64_t> stay;
  std::vector<SequencePtr> going;
  for (std::size_t i = 0, next = 0; i < going_.size(); ++i) {
    if (next < places.size() && places[next] == i) {
      ++next;
      going_[i]->state = select(state_, {static_cast<std::int64_t>(i)});
      finished_.push_back(std::move(going_[i]));
    } else {
      stay.push_back(static_cast<std::int64_t>(i));
      going.push_back(std::move(going_[i]));
    }
  }
  going_ = std::move(going);
  state_ = going_.empty() ? LmState() : select(state_, stay);
}

void Session::draw(Sequence& sequence, const float* row, Written& written) {
  std::vector<float> logits(row, row + model_.config().vocab);
  for (const std::uint32_t id : missing_) logits[id] = -std::numeric_limits<float>::infinity();
  const std::uint32_t token = sequence.sampler.pick(logits, static_cast<std::int64_t>(sequence.tokens.size()));
  sequence.tokens.push_back(token);
  sequence.sampler.saw({&token, 1});
  ++sequence.out.tokens;
  if (sequence.options.end_with_document && ends_.count(token) != 0) {
    written.ended = EndReason::kDocument;
  } else {
    written.text += sequence.stream.put(tokenizer_.token_text(token));
    if (sequence.stream.stopped())
      written.ended = EndReason::kStop;
    else if (sequence.out.tokens == sequence.options.max_tokens)
      written.ended = EndReason::kLength;
  }
  if (written.ended && !(sequence.options.goes_on && written.ended == EndReason::kLength))
    written.text += sequence.stream.finish();
}

std::vector<Written> Session::step() {
  const torch::NoGradGuard no_gradient;
  std::vector<Written> all;
  std::vector<std::size_t> ended;
  for (std::size_t i = 0; i < going_.size(); ++i) {  // what a context had held back may be the end already
    Sequence& sequence = *going_[i];
    if (sequence.held.empty()) continue;
    Written written{sequence.id, sequence.stream.put(sequence.held), {}};
    sequence.held.clear();
    sequence.out.text += written.text;
    if (sequence.stream.stopped()) written.ended = sequence.out.ended = EndReason::kStop, ended.push_back(i);
    if (written.ended || !written.text.empty()) all.push_back(std::move(written));
  }
  put_aside(ended);
  if (going_.empty()) return all;

  torch::Tensor last = torch::empty({going()}, torch::kLong);
  for (std::size_t i = 0; i < going_.size(); ++i) last.data_ptr<std::int64_t>()[i] = going_[i]->tokens.back();
  const torch::Tensor rows =
      decoder_->decode(last.to(model_.device()), state_).to(torch::kCPU, torch::kFloat).contiguous();
  if (!rows.isfinite().all().item<bool>())
    throw NotFinite(str("generate: the logits behind token ", steps_, " are NaN or infinite"));
  ++steps_;
  ended.clear();
  for (std::size_t i = 0; i < going_.size(); ++i) {
    Sequence& sequence = *going_[i];
    Written written{sequence.id, {}, {}};
    draw(sequence, rows.data_ptr<float>() + static_cast<std::int64_t>(i) * model_.config().vocab, written);
    sequence.out.text += written.text;
    if (written.ended) sequence.out.ended = *written.ended, ended.push_back(i);
    all.push_back(std::move(written));
  }
  put_aside(ended);
  return all;
}

Session::Removed Session::remove(SequenceId id) {
  const auto is_it = [&](const SequencePtr& sequence) { return sequence->id == id; };
  Removed removed;
  if (const auto going = std::find_if(going_.begin(), going_.end(), is_it); going != going_.end()) {
    Sequence& sequence = **going;
    if (!sequence.options.goes_on) removed.last = sequence.stream.finish();
    sequence.out.text += removed.last;
    put_aside({static_cast<std::size_t>(going - going_.begin())});
  }
  const auto found = std::find_if(finished_.begin(), finished_.end(), is_it);
  if (found == finished_.end()) fail("generate: no sequence ", id, " is in the session");
  const SequencePtr sequence = std::move(*found);
  finished_.erase(found);
  removed.text = std::move(sequence->out);
  removed.context.state = std::move(*sequence->state);
  removed.context.tokens.push_back(std::move(sequence->tokens));
  removed.context.held.push_back(sequence->held.empty() ? std::string(sequence->stream.held()) : sequence->held);
  return removed;
}

}  // namespace mhla
