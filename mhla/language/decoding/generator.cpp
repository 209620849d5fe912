#include "mhla/language/decoding/generator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>

#include "mhla/core/error.h"
#include "mhla/language/not_finite.h"
#include "mhla/language/text_stream.h"
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

// -inf at ids that are no token: the model's vocabulary may be larger, and a tokenizer's may have holes.
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

// One text being written.
struct Writer {
  Writer(const GenerateOptions& o, std::int64_t vocab, std::int64_t number)
      : sampler(o.sampler, vocab, number), stream(o.stops) {}
  Sampler sampler;
  TextStream stream;
  GeneratedText out;
};

}  // namespace

Generated generate(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext& context,
                   const GenerateOptions& options, const TakeText& take, bool goes_on) {
  const torch::NoGradGuard no_gradient;
  check(options.sampler);
  if (options.max_tokens < 0) fail("generate: max_tokens is ", options.max_tokens, ", expected 0 or more");
  (void)model.plan(context.longest() + options.max_tokens);  // throws where it cannot go so far
  const std::int64_t vocab = model.config().vocab;
  const std::vector<std::uint32_t> missing = missing_tokens(tokenizer, vocab);
  const std::set<std::uint32_t> ends = options.end_with_document ? ends_of(tokenizer) : std::set<std::uint32_t>();
  const auto start = std::chrono::steady_clock::now();
  Generated all;
  std::vector<Writer> writers;
  for (std::int64_t i = 0; i < context.texts(); ++i) {
    Writer& writer = writers.emplace_back(options, vocab, i);
    writer.sampler.saw(context.tokens[static_cast<std::size_t>(i)]);
  }
  const auto show = [&](std::int64_t text, const std::string& piece) {
    writers[static_cast<std::size_t>(text)].out.text += piece;
    if (take && !piece.empty()) take(text, piece);
  };
  // Texts that still go on, and the states of those that ended.
  std::vector<std::int64_t> going;
  std::vector<std::optional<LmState>> ended(writers.size());
  LmState state = std::move(context.state);
  context.held.resize(writers.size());
  for (std::size_t i = 0; i < writers.size() && options.max_tokens > 0; ++i) {
    const auto text = static_cast<std::int64_t>(i);
    show(text, writers[i].stream.put(context.held[i]));
    if (writers[i].stream.stopped())
      writers[i].out.ended = "stop", ended[i] = select(state, {text});
    else
      going.push_back(text);
  }
  if (!going.empty() && going.size() < writers.size()) state = select(state, going);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  Decoder decoder(model);
  const auto end_text = [&](std::int64_t text, std::int64_t place) {  // `place` of it in the state
    Writer& writer = writers[static_cast<std::size_t>(text)];
    const bool continues = goes_on && (writer.out.ended == "length" || writer.out.ended == "interrupted");
    if (!continues) show(text, writer.stream.finish());
    ended[static_cast<std::size_t>(text)] = select(state, {place});
  };
  for (std::int64_t step = 0; step < options.max_tokens && !going.empty(); ++step) {
    if (options.stopped && options.stopped()) {
      for (std::size_t i = 0; i < going.size(); ++i) {
        writers[static_cast<std::size_t>(going[i])].out.ended = "interrupted";
        end_text(going[i], static_cast<std::int64_t>(i));
      }
      break;
    }
    torch::Tensor last = torch::empty({static_cast<std::int64_t>(going.size())}, torch::kLong);
    for (std::size_t i = 0; i < going.size(); ++i)
      last.data_ptr<std::int64_t>()[i] = context.tokens[static_cast<std::size_t>(going[i])].back();
    const torch::Tensor rows =
        decoder.decode(last.to(model.device()), state).to(torch::kCPU, torch::kFloat).contiguous();
    if (!rows.isfinite().all().item<bool>())
      throw NotFinite(str("generate: the logits behind token ", step, " are NaN or infinite"));
    ++all.steps;
    std::vector<std::int64_t> still, places;
    for (std::size_t i = 0; i < going.size(); ++i) {
      Writer& writer = writers[static_cast<std::size_t>(going[i])];
      std::vector<std::uint32_t>& tokens = context.tokens[static_cast<std::size_t>(going[i])];
      const float* row = rows.data_ptr<float>() + static_cast<std::int64_t>(i) * vocab;
      std::copy(row, row + vocab, logits.begin());
      for (const std::uint32_t id : missing) logits[id] = -std::numeric_limits<float>::infinity();
      const std::uint32_t token = writer.sampler.pick(logits, static_cast<std::int64_t>(tokens.size()));
      tokens.push_back(token);
      writer.sampler.saw({&token, 1});
      ++writer.out.tokens;
      if (ends.count(token) != 0) {
        writer.out.ended = "end";
      } else {
        show(going[i], writer.stream.put(tokenizer.token_text(token)));
        if (writer.stream.stopped())
          writer.out.ended = "stop";
        else if (writer.out.tokens == options.max_tokens)
          writer.out.ended = "length";
      }
      if (writer.out.ended.empty()) {
        still.push_back(going[i]);
        places.push_back(static_cast<std::int64_t>(i));
      } else {
        end_text(going[i], static_cast<std::int64_t>(i));
      }
    }
    if (still.size() < going.size()) {
      if (!still.empty()) state = select(state, places);
      going = std::move(still);
    }
  }
  if (options.max_tokens == 0) {
    context.state = std::move(state);
    for (Writer& writer : writers) writer.out.ended = "length";
  } else {
    std::vector<LmState> states;
    for (auto& one : ended) states.push_back(std::move(*one));
    context.state = join(std::move(states));
    for (std::size_t i = 0; i < writers.size(); ++i) context.held[i] = std::string(writers[i].stream.held());
  }
  for (Writer& writer : writers) all.texts.push_back(std::move(writer.out));
  all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return all;
}

}  // namespace mhla
