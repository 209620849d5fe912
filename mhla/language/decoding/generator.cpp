#include "mhla/language/decoding/generator.h"

#include <chrono>

namespace mhla {

Generated generate(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext& context,
                   const GenerateOptions& options, const TakeText& take, const std::function<bool()>& stopped) {
  const torch::NoGradGuard no_gradient;
  const auto start = std::chrono::steady_clock::now();
  Session session(model, tokenizer);
  const std::vector<SequenceId> ids = session.add(std::move(context), options);
  const auto show = [&](SequenceId id, const std::string& piece) {
    if (take && !piece.empty()) take(id - ids.front(), piece);
  };
  while (session.going() > 0 && !(stopped && stopped()))
    for (const Written& written : session.step()) show(written.id, written.text);
  Generated all;
  context = {};
  std::vector<LmState> states;
  for (const SequenceId id : ids) {
    Session::Removed one = session.remove(id);
    show(id, one.last);
    states.push_back(std::move(one.context.state));
    context.tokens.push_back(std::move(one.context.tokens.front()));
    context.held.push_back(std::move(one.context.held.front()));
    all.texts.push_back(std::move(one.text));
  }
  context.state = join(std::move(states));
  all.steps = session.steps();
  all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return all;
}

}  // namespace mhla
