// mhla eval lm: perplexity of a trained language model on held-out tokens, over all and by place in the window.
#include "apps/commands/eval_lm.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands/eval_tasks.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

void print_perplexity(const JsonValue& row, const Output& out) {
  out.line(fmt::format("{}: {} with {} attention, {} tokens of {}", row.at("weights").as_string(),
                       row.at("model").as_string(), row.at("attention").as_string(), row.at("tokens").as_int(),
                       row.at("data").as_string()));
  out.line(fmt::format("windows of {} tokens, stride {}, {}{}", row.at("length").as_int(), row.at("stride").as_int(),
                       row.at("packing").as_string(), length_text(row)));
  out.line(fmt::format("perplexity {:.3f}  loss {:.4f}  {:.0f} tokens/s", row.at("perplexity").as_double(),
                       row.at("loss").as_double(), row.at("tokens_per_s").as_double()));
  const TextTable table(out, {{"places", 16}, {"tokens", 10}, {"loss", 8}, {"perplexity", 11}});
  table.head();
  for (const JsonValue& bucket : row.at("buckets").items()) {
    table.row({fmt::format("{} to {}", bucket.at("first").as_int(), bucket.at("last").as_int()),
               fmt::format("{}", bucket.at("tokens").as_int()), fmt::format("{:.4f}", bucket.at("loss").as_double()),
               fmt::format("{:.3f}", bucket.at("perplexity").as_double())});
  }
}

// Flags that only tasks have, and those that only perplexity has.
void expect_used(const CLI::App& command, bool tasks) {
  const std::vector<const char*> perplexity{"--data",        "--tokens",  "--stride", "--bucket",
                                            "--eval-tokens", "--packing", "--batch"};
  for (const char* name : tasks ? perplexity : task_flags())
    if (command.count(name) > 0)
      fail("eval lm: ", name, " is given ", tasks ? "with" : "without", " --task, where it has no effect");
}

int run_eval_lm(const EvalLmRequest& request, bool json) {
  const Output out(json);
  const bool tasks = !request.tasks.names.empty();
  Rows rows(
      [&](const JsonValue& row) {
        out.progress_done();
        out.row(row);
        if (said_warning(row)) return;
        tasks ? print_task(row, out) : print_perplexity(row, out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(tasks ? &Engine::eval_lm_tasks : &Engine::eval_lm, request, rows);
}

}  // namespace

void add_eval_lm(CLI::App& eval, Job& job) {
  CLI::App* lm =
      eval.add_subcommand("lm", "perplexity of a language model by position in the context, or its score in tasks");
  static EvalLmRequest request;
  static bool json = false;
  const RequestFlags flags(*lm, request,
                           {{"context", "--context,--length"},
                            {"eval_tokens", "--eval-tokens,--max-tokens"},
                            {"mqar_pairs", "--mqar-pairs,--pairs"},
                            {"seed", "--seed,--task-seed"}});
  flags["run"].required()->type_name("DIR");
  flags["data"].type_name("SET");
  flags["tokens"].type_name("DIR");
  flags["context"].check(within(limits::kContext));
  for (const char* field : {"stride", "bucket", "eval_tokens"}) flags[field].check(is_positive());
  flags["packing"].check(one_of({"documents", "concatenate"}));
  flags.shown("length_policy").check(one_of({"error", "truncate_left", "rechunk", "extend"}));
  flags["batch"].check(within(limits::kBatch));
  check_open_flags(flags);
  check_task_flags(flags);
  add_json(*lm, json, "one JSON object on stdout, text on stderr");
  lm->callback([&job, lm] {
    expect_used(*lm, lm->count("--task") > 0);
    job = [] { return run_eval_lm(request, json); };
  });
}

}  // namespace mhla::apps
