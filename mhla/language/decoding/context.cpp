#include "mhla/language/decoding/context.h"

#include <algorithm>
#include <charconv>

#include "mhla/core/error.h"
#include "mhla/core/hex.h"

namespace mhla {
namespace {

using Ids = std::vector<std::uint32_t>;

torch::Tensor tensor_of(const std::uint32_t* tokens, std::int64_t count, const torch::Device& device) {
  torch::Tensor out = torch::empty({1, count}, torch::kLong);
  std::copy(tokens, tokens + count, out.data_ptr<std::int64_t>());
  return out.to(device);
}

// All but the last token of `tokens` that the state has not seen.
void feed(LanguageModelImpl& model, LmState& state, const Ids& tokens, std::int64_t piece, const BeforePiece& before) {
  const std::int64_t begin = state.positions()[0], end = static_cast<std::int64_t>(tokens.size()) - 1;
  if (piece < 1) fail("generate: piece is ", piece, ", expected at least 1");
  for (std::int64_t at = begin, count = 0; at < end; at += count) {
    if (before) before();
    count = std::min(piece, end - at);
    model.prefill(tensor_of(tokens.data() + at, count, model.device()), state, piece);
  }
}

std::string join_numbers(const Ids& ids) {
  std::string text;
  for (const std::uint32_t id : ids) text += str(text.empty() ? "" : " ", id);
  return text;
}

Ids split_numbers(const std::string& text, std::int64_t vocab, const std::string& file) {
  Ids ids;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    std::uint32_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id >= vocab || (stop < end && *stop != ' '))
      fail(file, ": token ", ids.size(), " is not a number from 0 to ", vocab - 1);
    ids.push_back(id);
    at = stop + 1;
  }
  return ids;
}

}  // namespace

std::int64_t TextContext::longest() const {
  std::size_t most = 0;
  for (const Ids& ids : tokens) most = std::max(most, ids.size());
  return static_cast<std::int64_t>(most);
}

TextContext read_tokens(LanguageModelImpl& model, std::vector<Ids> tokens, std::int64_t piece,
                        const BeforePiece& before) {
  if (tokens.empty()) fail("generate: no prompt is given, expected one at least");
  TextContext context;
  context.tokens = std::move(tokens);
  std::vector<LmState> states;
  for (const Ids& ids : context.tokens) {
    if (ids.empty())
      fail("generate: prompt ", states.size(), " is empty, and the tokenizer has no token that opens a text");
    states.push_back(model.begin(1));
    feed(model, states.back(), ids, piece, before);
  }
  context.state = join(std::move(states));
  return context;
}

TextContext read_texts(LanguageModelImpl& model, const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       std::int64_t piece, const BeforePiece& before) {
  std::vector<Ids> tokens;
  for (const std::string& text : texts)
    tokenizer.encoder()->encode(text, tokens.emplace_back(tokenizer.document_opening()));
  return read_tokens(model, std::move(tokens), piece, before);
}

Ids encode_behind(const Tokenizer& tokenizer, const Ids& tokens, const std::string& more) {
  return tokens == tokenizer.document_opening() ? tokenizer.encode(more) : tokenizer.encode_more(more);
}

TextContext read_more(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext context,
                      const std::vector<std::string>& more, std::int64_t piece, const BeforePiece& before) {
  const auto count = static_cast<std::int64_t>(more.size());
  if (count != context.texts() && context.texts() != 1)
    fail("generate: ", count, " prompts after a context of ", context.texts(), " texts, expected as many");
  std::vector<LmState> states;
  TextContext all;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t from = context.texts() == 1 ? 0 : i;
    Ids& ids = all.tokens.emplace_back(context.tokens[static_cast<std::size_t>(from)]);
    const std::string& text = more[static_cast<std::size_t>(i)];
    const Ids behind = encode_behind(tokenizer, ids, text);
    ids.insert(ids.end(), behind.begin(), behind.end());
    const bool shows = text.empty() && !context.held.empty();  // nothing stands between what was held and what follows
    all.held.push_back(shows ? context.held[static_cast<std::size_t>(from)] : "");
    states.push_back(select(context.state, {from}));
    feed(model, states.back(), ids, piece, before);
  }
  all.state = join(std::move(states));
  return all;
}

void save_context(const LanguageModelImpl& model, const Tokenizer& tokenizer, const TextContext& context,
                  const std::filesystem::path& path) {
  std::map<std::string, std::string> notes = {{"tokenizer", hex(tokenizer.fingerprint())},
                                              {"length_policy", std::string(name_of(model.length_policy()))},
                                              {"exact", model.exact() ? "yes" : "no"},
                                              {"texts", str(context.texts())}};
  for (std::size_t i = 0; i < context.tokens.size(); ++i) notes[str("tokens.", i)] = join_numbers(context.tokens[i]);
  for (std::size_t i = 0; i < context.held.size(); ++i) {
    Ids bytes;
    for (const char c : context.held[i]) bytes.push_back(static_cast<unsigned char>(c));
    if (!bytes.empty()) notes[str("held.", i)] = join_numbers(bytes);
  }
  save_state(model, context.state, path, notes);
}

TextContext load_context(const LanguageModelImpl& model, const Tokenizer& tokenizer,
                         const std::filesystem::path& path) {
  const std::string file = path.string();
  std::map<std::string, std::string> notes = state_notes(path);
  if (notes.count("length_policy") != 0 && notes["length_policy"] != name_of(model.length_policy()))
    fail(file, ": was made with length policy ", notes["length_policy"], ", expected ", name_of(model.length_policy()));
  if (model.exact() && notes["exact"] != "yes") fail(file, ": was made without --exact, expected one made with it");
  TextContext context;
  context.state = load_state(model, path);
  if (notes["tokenizer"] != hex(tokenizer.fingerprint()))
    fail(file, ": is of another tokenizer (", notes["tokenizer"], ") than the model's (", hex(tokenizer.fingerprint()),
         ")");
  for (std::int64_t i = 0; i < context.state.batch(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    Ids& ids = context.tokens.emplace_back(split_numbers(notes[str("tokens.", i)], tokenizer.vocab_size(), file));
    if (static_cast<std::int64_t>(ids.size()) != context.state.positions()[at] + 1)
      fail(file, ": text ", i, " has ", ids.size(), " tokens, the state has seen ", context.state.positions()[at],
           ", expected one less");
    std::string& held = context.held.emplace_back();
    for (const std::uint32_t byte : split_numbers(notes[str("held.", i)], 256, file)) held += static_cast<char>(byte);
  }
  return context;
}

}  // namespace mhla
