#include "apps/engine/generate.h"

#include <algorithm>
#include <chrono>

#include "apps/engine/training.h"
#include "mhla/core/limits.h"
#include "mhla/core/memory.h"
#include "mhla/core/seconds.h"
#include "mhla/io/file.h"
#include "mhla/language/decoding/generator.h"
#include "mhla/language/not_finite.h"
#include "mhla/models/model_size.h"
#include "mhla/train/lm/open_lm.h"
#include "mhla/train/stop_signal.h"

namespace mhla::apps {

using namespace mhla::train;

namespace {

constexpr const char* kGenerateCommand = "generate";

GenerateOptions options_of(const GenerateRequest& request) {
  GenerateOptions o;
  o.max_tokens = request.max_tokens, o.stops = request.stops, o.sampler = request.sampler;
  o.end_with_document = !request.past_end;
  return o;
}

// Before anything is read: a prompt that is too long is refused at once.
void check_lengths(const LanguageModelImpl& model, const Tokenizer& tokenizer, const TextContext* maybe_known,
                   const std::vector<std::string>& prompts, std::int64_t max_tokens) {
  double needed = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::uint32_t> known =
        maybe_known != nullptr ? maybe_known->tokens[maybe_known->texts() == 1 ? 0 : i] : tokenizer.document_opening();
    const auto tokens = static_cast<std::int64_t>(known.size() + encode_behind(tokenizer, known, prompts[i]).size());
    if (model.config().attention == "mhla" && model.length_policy() == LengthPolicy::kError &&
        tokens + max_tokens > model.config().context)
      fail(kGenerateCommand, ": prompt ", i, " has ", tokens, " tokens, with --max-tokens ", max_tokens, " that is ",
           tokens + max_tokens, ", expected at most the ", model.config().context,
           " that mix has rows for; --length-policy extend goes on beyond them");
    needed += state_bytes(model.config(), tokens);
  }
  const bool cuda = model.device().is_cuda();
  expect_fits(str(kGenerateCommand, ": ", prompts.size(), prompts.size() == 1 ? " prompt" : " prompts"),
              MemoryEstimate().add("states", needed),
              cuda ? device_memory_at_hand(model.device().index()) : memory_at_hand());
}

// Before anything is read or written: whether a state can be put there.
void check_place(const std::string& to) {
  try {
    const AtomicFile begun(to);  // and left
  } catch (const Error& error) {
    fail(kGenerateCommand, ": --save-state: ", error.what());
  }
}

std::int64_t tokens_in(const TextContext& context) {
  std::int64_t sum = 0;
  for (const auto& tokens : context.tokens) sum += static_cast<std::int64_t>(tokens.size());
  return sum;
}

}  // namespace

void generate_text(const GenerateRequest& request, TextObserver& observer) {
  GenerateOptions options = options_of(request);
  expect_within(kGenerateCommand, "--max-tokens", options.max_tokens, limits::kTokens, 0);
  expect_within(kGenerateCommand, "--piece", request.piece, limits::kContext);
  const LengthPolicy policy = parse_length_policy(request.length_policy);
  if (needs_whole_length(policy))
    fail(kGenerateCommand, ": --length-policy ", name_of(policy),
         " needs the whole length before the first token, expected error or extend");
  const std::string &from = request.load_state, &to = request.save_state;
  if (!to.empty()) check_place(to);
  LmRun run = open_lm_run(kGenerateCommand, request.open, observer);
  const TokenizerPtr tokenizer = text_of(kGenerateCommand, run);
  LanguageModelImpl& model = *run.model;
  model.set_length_policy(policy);
  if (request.precision == "bf16") model.cast(torch::kBFloat16);
  if (request.exact) model.set_exact(true);
  const torch::NoGradGuard no_gradient;
  const StopSignal signal;

  std::vector<std::string> prompts = request.prompts;
  const std::int64_t piece = request.piece;
  TextContext context;
  std::int64_t known = 0;
  auto start = std::chrono::steady_clock::now();
  const BeforePiece before = [&] {
    if (signal.name() != nullptr)
      throw RunFailed(str(kGenerateCommand, ": stopped by ", signal.name(), " while reading the prompts",
                          to.empty() ? "" : str("; ", to, " is not written")));
  };
  if (from.empty()) {
    check_lengths(model, *tokenizer, nullptr, prompts, options.max_tokens);
    context = read_texts(model, *tokenizer, prompts, piece, before);
  } else {
    TextContext loaded = load_context(model, *tokenizer, from);
    if (prompts.empty()) prompts.resize(loaded.tokens.size());
    if (static_cast<std::int64_t>(prompts.size()) != loaded.texts() && loaded.texts() != 1)
      fail(kGenerateCommand, ": ", prompts.size(), " prompts behind the ", loaded.texts(), " texts of ", from,
           ", expected one for each of them, or a state of one text");
    check_lengths(model, *tokenizer, &loaded, prompts, options.max_tokens);
    known = loaded.texts() == 1 ? tokens_in(loaded) * static_cast<std::int64_t>(prompts.size()) : tokens_in(loaded);
    start = std::chrono::steady_clock::now();
    context = read_more(model, *tokenizer, std::move(loaded), prompts, piece, before);
  }
  const std::int64_t read = tokens_in(context) - known;
  const double read_s = seconds_since(start);
  const std::string length = model.describe_length(context.longest() + options.max_tokens);

  options.goes_on = !to.empty();
  observer.begin(context.texts());
  Generated all;
  try {
    all = generate(
        model, *tokenizer, context, options,
        [&](std::int64_t text, const std::string& more) { observer.piece(text, more); },
        [&] { return signal.name() != nullptr; });
  } catch (const NotFinite&) {
    throw not_finite(kGenerateCommand, run.weights);
  }
  std::int64_t wrote = 0;
  for (std::size_t i = 0; i < all.texts.size(); ++i) {
    const GeneratedText& text = all.texts[i];
    wrote += text.tokens;
    observer.row(JsonValue()
                     .set("kind", "text")
                     .set("prompt", i)
                     .set("text", text.text)
                     .set("tokens", text.tokens)
                     .set("ended", name_of(text.ended)));
  }
  if (!to.empty()) save_context(model, *tokenizer, context, to);
  const auto rate = [](double count, double seconds) { return seconds > 0.0 ? count / seconds : 0.0; };
  observer.row(JsonValue()
                   .set("kind", "generated")
                   .set("weights", run.weights.string())
                   .set("model", model.config().model)
                   .set("attention", model.config().attention)
                   .set("precision", request.precision)
                   .set("exact", request.exact)
                   .set("length_policy", policy_of(model))
                   .set("length_plan", length)
                   .set("prompts", prompts.size())
                   .set("known", known)
                   .set("read", read)
                   .set("read_s", read_s)
                   .set("read_per_s", rate(static_cast<double>(read), read_s))
                   .set("wrote", wrote)
                   .set("write_s", all.seconds)
                   .set("write_per_s", rate(static_cast<double>(wrote), all.seconds))
                   .set("step_ms", all.steps > 0 ? 1e3 * all.seconds / static_cast<double>(all.steps) : 0.0)
                   .set("state_bytes", context.state.bytes()));
  const bool interrupted = std::any_of(all.texts.begin(), all.texts.end(),
                                       [](const GeneratedText& text) { return text.ended == EndReason::kInterrupted; });
  if (interrupted)
    throw RunFailed(str(kGenerateCommand, ": stopped by ", signal.name(), " after ", wrote, " tokens",
                        to.empty() ? "" : str("; ", to, " is written, go on with --load-state ", to)));
}

}  // namespace mhla::apps
