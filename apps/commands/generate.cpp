// mhla generate: text from a trained language model. stdout carries what it writes and nothing else; one text streams
// as it comes, of several each is a line that begins when the one before it is whole. What was done stands on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>

#include "apps/cli/flags.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "apps/cli/train_library.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json_lines.h"
#include "mhla/io/utf8.h"
#include "mhla/language/sampler.h"

namespace mhla::apps {
namespace {

struct GenerateFlags {
  std::string run, prompts_file, weights = "model", device, length_policy = "error", precision = "f32";
  std::string save_state, load_state;
  std::vector<std::string> prompts, stops;
  SamplerOptions sampler;
  std::int64_t max_tokens = 128, threads = 0, piece = 2048;
  bool greedy = false, past_end = false, exact = false, json = false;
};

// One prompt a line, or the field "prompt" of JSON lines.
void read_prompts(const std::string& path, std::vector<std::string>& prompts) {
  const std::vector<std::byte> bytes = read_file(path, std::uint64_t{1} << 30);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (std::filesystem::path(path).extension() == ".jsonl") {
    read_json_lines(text, path, [&](const std::string& name, const JsonValue& row) {
      const JsonValue* prompt = row.is_object() ? row.find("prompt") : nullptr;
      if (prompt == nullptr || !prompt->is_string()) fail(name, ": expected an object with a string \"prompt\"");
      prompts.push_back(prompt->as_string());
    });
  } else {
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      prompts.emplace_back(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line);
      text.remove_prefix(std::min(line.size() + 1, text.size()));
    }
  }
  if (prompts.empty()) fail("generate: ", path, " has no prompts");
}

std::vector<std::string> prompts_of(const GenerateFlags& o) {
  std::vector<std::string> prompts = o.prompts;
  if (std::count(prompts.begin(), prompts.end(), "-") > 1)
    fail("generate: --prompt - is given more than once, expected once: there is one stdin");
  for (std::string& prompt : prompts)
    if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (!o.prompts_file.empty()) read_prompts(o.prompts_file, prompts);
  if (prompts.empty() && o.load_state.empty())
    fail("generate: no prompt is given, expected --prompt, --prompts or --load-state");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    if (!is_utf8(prompts[i])) fail("generate: prompt ", i, " is no UTF-8, expected text");
  for (const std::string& stop : o.stops)
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
class Screen {
 public:
  explicit Screen(bool json) : json_(json) {}
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

JsonValue request_of(const GenerateFlags& o) {
  const SamplerOptions& s = o.sampler;
  return JsonValue()
      .set("command", "generate")
      .set("run", o.run)
      .set("weights", o.weights)
      .set("batch", 0)
      .set("device", o.device)
      .set("threads", o.threads)
      .set("precision", o.precision)
      .set("prompts", json_list(prompts_of(o)))
      .set("stops", json_list(o.stops))
      .set("max_tokens", o.max_tokens)
      .set("temperature", o.greedy ? 0.0 : s.temperature)
      .set("top_k", s.top_k)
      .set("top_p", s.top_p)
      .set("min_p", s.min_p)
      .set("repetition_penalty", s.repetition_penalty)
      .set("seed", s.seed)
      .set("past_end", o.past_end)
      .set("piece", o.piece)
      .set("length_policy", o.length_policy)
      .set("save_state", o.save_state)
      .set("load_state", o.load_state)
      .set("exact", o.exact);
}

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

int run_generate(const GenerateFlags& o) {
  check(o.sampler);
  const JsonValue request = request_of(o);
  const Output out(o.json);
  if (!o.save_state.empty()) outlive_readers();  // `| tee` dies of the same Ctrl-C that is to save the state
  Screen screen(o.json);
  const int code = run_in_train_library(request, [&](const JsonValue& row, bool) {
    const std::string& kind = row.at("kind").as_string();
    if (kind == "warning") return complain(row.at("text").as_string());
    if (kind == "texts") return screen.begin(static_cast<std::size_t>(row.at("texts").as_int()));
    if (kind == "piece")
      return screen.piece(static_cast<std::size_t>(row.at("prompt").as_int()), row.at("text").as_string());
    out.row(row);
    if (kind == "text") return screen.ended(static_cast<std::size_t>(row.at("prompt").as_int()));
    say(row);
  });
  return code;
}

}  // namespace

void add_generate(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("generate", "write text with a language model, streaming");
  static GenerateFlags o;
  command->add_option("--run", o.run, "folder of `mhla train lm`, or of a model with its tokenizer")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", o.prompts, "text to continue, - for stdin; repeatable")
      ->type_name("TEXT")
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option("--prompts", o.prompts_file,
                   "one prompt per line, or JSON lines with a field prompt. Several texts are printed one per line: "
                   "line breaks as \\n and \\r, a backslash as \\\\ (--json has them unchanged)")
      ->type_name("FILE");
  command->add_option("--max-tokens", o.max_tokens, "tokens to write for each text; 0: only read the prompts")
      ->check(within(limits::kTokens, 0))
      ->capture_default_str();
  command->add_option("--temperature", o.sampler.temperature, "0: always the most likely token")->capture_default_str();
  command->add_flag("--greedy", o.greedy, "the most likely token, as --temperature 0");
  command->add_option("--top-k", o.sampler.top_k, "draw from this many of the most likely tokens; 0: all")
      ->capture_default_str();
  command->add_option("--top-p", o.sampler.top_p, "draw from the most likely tokens with this total probability")
      ->capture_default_str();
  command->add_option("--min-p", o.sampler.min_p, "drop tokens below this share of the highest probability")
      ->capture_default_str();
  command->add_option("--repetition-penalty", o.sampler.repetition_penalty, "for tokens of the prompt and of the text")
      ->capture_default_str();
  command->add_option("--seed", o.sampler.seed, "seed of the draws")->check(is_seed())->capture_default_str();
  command->add_option("--stop", o.stops, "string that ends a text and is not printed; repeatable")
      ->type_name("TEXT")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--past-end", o.past_end, "continue after the end of a document");
  command->add_option("--load-state", o.load_state, "continue from a file of --save-state without reading it again")
      ->type_name("FILE");
  command
      ->add_option("--save-state", o.save_state,
                   "file for everything read and written, to continue from; also written on Ctrl-C")
      ->type_name("FILE");
  command
      ->add_option("--length-policy", o.length_policy,
                   "for texts longer than the rows of the mixing matrix: error or extend")
      ->check(one_of({"error", "extend", "truncate_left", "rechunk"}))
      ->capture_default_str();
  command->add_option("--piece", o.piece, "tokens of a prompt to read at once")
      ->check(within(limits::kContext))
      ->capture_default_str();
  command->add_flag("--exact", o.exact, "the same bits however a text is split (f32 on the CPU; slower to read)");
  add_precision(*command, o.precision);
  add_run_flags(*command, o.weights, o.device);
  add_threads(*command, o.threads);
  add_json(*command, o.json, "a JSON object for each text and one for the run on stdout, text on stderr");
  command->callback([&job] { job = [] { return run_generate(o); }; });
}

}  // namespace mhla::apps
