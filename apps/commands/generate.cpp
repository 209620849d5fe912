// mhla generate: text from a trained language model. stdout carries what it writes and nothing else; one text streams
// as it comes, of several each is a line that begins when the one before it is whole. What was done stands on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/prompts.h"
#include "mhla/io/utf8.h"
#include "mhla/language/sampler.h"

namespace mhla::apps {
namespace {

// What is no part of the request.
struct GenerateFlags {
  std::string prompts_file;
  bool greedy = false, json = false;
};

std::vector<std::string> prompts_of(const GenerateRequest& request, const std::string& file) {
  std::vector<std::string> prompts = request.prompts;
  if (std::count(prompts.begin(), prompts.end(), "-") > 1)
    fail("generate: --prompt - is given more than once, expected once: there is one stdin");
  for (std::string& prompt : prompts)
    if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (!file.empty()) read_prompts("generate", file, prompts);
  if (prompts.empty() && request.load_state.empty())
    fail("generate: no prompt is given, expected --prompt, --prompts or --load-state");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    if (!is_utf8(prompts[i])) fail("generate: prompt ", i, " is no UTF-8, expected text");
  for (const std::string& stop : request.stops)
    if (stop.empty() || !is_utf8(stop))
      fail("generate: --stop is ", stop.empty() ? "empty" : "no UTF-8", ", expected text");
  return prompts;
}

// Line breaks within a line, and what tells them apart from text that reads like one.
std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    switch (c) {
      case '\n': line += "\\n"; break;
      case '\r': line += "\\r"; break;
      case '\\': line += "\\\\"; break;
      default: line += c;
    }
  }
  return line;
}

// Texts in their order: the current one as it comes, later ones when it is whole. One text is shown as it is, of
// several each is a line.
class TextScreen {
 public:
  explicit TextScreen(bool json) : json_(json) {}
  void begin(std::size_t texts) { texts_.resize(texts); }
  void piece(std::size_t text, const std::string& piece) {
    texts_[text].pending += texts_.size() > 1 ? on_one_line(piece) : piece;
    show();
  }
  void ended(std::size_t text) {
    texts_[text].ended = true;
    show();
  }

 private:
  struct Text {
    std::string pending;
    bool ended = false;
  };
  void show() {
    if (json_) return;
    for (; current_ < texts_.size(); ++current_) {
      Text& text = texts_[current_];
      fmt::print(stdout, "{}", text.pending);
      text.pending.clear();
      if (!text.ended) break;
      if (texts_.size() > 1 || isatty(STDOUT_FILENO) != 0) fmt::print(stdout, "\n");
    }
    std::fflush(stdout);
  }
  bool json_;
  std::vector<Text> texts_;
  std::size_t current_ = 0;
};

void say(const JsonValue& row) {
  const auto number = [&](const char* key) { return row.at(key).as_double(); };
  fmt::print(stderr, "{}: {} with {} attention, {}{}{}\n", row.at("weights").as_string(), row.at("model").as_string(),
             row.at("attention").as_string(), row.at("precision").as_string(),
             row.at("exact").as_bool() ? ", exact" : "", length_text(row));
  fmt::print(stderr, "read {} tokens in {:.2f} s, {:.0f} tokens/s; {} were in the state\n", row.at("read").as_int(),
             number("read_s"), number("read_per_s"), row.at("known").as_int());
  fmt::print(stderr, "wrote {} tokens in {:.2f} s, {:.1f} tokens/s, {:.2f} ms a step; state {:.1f} MiB\n",
             row.at("wrote").as_int(), number("write_s"), number("write_per_s"), number("step_ms"),
             number("state_bytes") / 1048576.0);
}

class Listener final : public TextObserver {
 public:
  explicit Listener(const Output& out) : out_(out), screen_(out.json()) {}
  void begin(std::int64_t texts) override { screen_.begin(static_cast<std::size_t>(texts)); }
  void piece(std::int64_t text, const std::string& piece) override {
    screen_.piece(static_cast<std::size_t>(text), piece);
  }
  void row(const JsonValue& row) override {
    if (said_warning(row)) return;
    out_.row(row);
    if (row.at("kind").as_string() == "text") return screen_.ended(static_cast<std::size_t>(row.at("prompt").as_int()));
    say(row);
  }
  void progress(const JsonValue&) override {}

 private:
  const Output& out_;
  TextScreen screen_;
};

int run_generate(GenerateRequest request, const GenerateFlags& flags) {
  check(request.sampler);
  if (flags.greedy) request.sampler.temperature = 0.0;
  request.prompts = prompts_of(request, flags.prompts_file);
  const Output out(flags.json);
  if (!request.save_state.empty()) outlive_readers();  // `| tee` dies of the same Ctrl-C that is to save the state
  Listener listener(out);
  return run_engine(&Engine::generate, request, listener);
}

}  // namespace

void add_generate(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("generate", "write text with a language model, streaming");
  static GenerateRequest request;
  static GenerateFlags own;
  const RequestFlags flags(*command, request);
  flags["run"].required()->type_name("DIR");
  for (const char* field : {"prompt", "stop"}) flags[field].type_name("TEXT")->take_all()->allow_extra_args(false);
  command
      ->add_option("--prompts", own.prompts_file,
                   "one prompt per line, or JSON lines with a field prompt. Several texts are printed one per line: "
                   "line breaks as \\n and \\r, a backslash as \\\\ (--json has them unchanged)")
      ->type_name("FILE");
  flags.shown("max_tokens").check(within(limits::kTokens, 0));
  for (const char* field : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) flags.shown(field);
  command->add_flag("--greedy", own.greedy, "the most likely token, as --temperature 0");
  flags.shown("seed").check(is_seed());
  for (const char* field : {"load_state", "save_state"}) flags[field].type_name("FILE");
  flags.shown("length_policy").check(one_of({"error", "extend", "truncate_left", "rechunk"}));
  flags.shown("piece").check(within(limits::kContext));
  flags.shown("precision").check(one_of({"f32", "bf16"}));
  check_open_flags(flags);
  add_json(*command, own.json, "a JSON object for each text and one for the run on stdout, text on stderr");
  command->callback([&job] { job = [] { return run_generate(request, own); }; });
}

}  // namespace mhla::apps
