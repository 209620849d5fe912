// mhla eval lm: perplexity of a trained language model on held-out tokens, over all and by place in the window.
#include "apps/commands/eval_lm.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/train_library.h"
#include "apps/cli/train_screen.h"
#include "apps/commands/eval_tasks.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

struct EvalLmOptions {
  std::string run, data, tokens, weights = "model", device, packing, length_policy = "error";
  std::int64_t batch = 0, threads = 0, length = 0, stride = 0, max_tokens = 0, bucket = 0;
  TaskFlags tasks;
  bool json = false;
};

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

int run_eval_lm(const EvalLmOptions& o) {
  const Output out(o.json);
  JsonValue request = JsonValue()
                          .set("command", "eval lm")
                          .set("run", o.run)
                          .set("data", o.data)
                          .set("tokens", o.tokens)
                          .set("weights", o.weights)
                          .set("batch", o.batch)
                          .set("device", o.device)
                          .set("threads", o.threads)
                          .set("length", o.length)
                          .set("stride", o.stride)
                          .set("max_tokens", o.max_tokens)
                          .set("bucket", o.bucket)
                          .set("packing", o.packing)
                          .set("length_policy", o.length_policy);
  if (!o.tasks.tasks.empty()) set_tasks(o.tasks, request);
  return run_in_train_library(request, [&](const JsonValue& row, bool progress) {
    if (progress) return out.progress(bar_text(row, 79));
    out.progress_done();
    out.row(row);
    if (row.at("kind").as_string() == "warning") return complain(row.at("text").as_string());
    if (row.at("kind").as_string() == "task") return print_task(row, out);
    print_perplexity(row, out);
  });
}

}  // namespace

void add_eval_lm(CLI::App& eval, Job& job) {
  CLI::App* lm =
      eval.add_subcommand("lm", "perplexity of a language model by position in the context, or its score in tasks");
  static EvalLmOptions o;
  lm->add_option("--run", o.run, "folder of `mhla train lm`, or of a model with its tokenizer.json")
      ->required()
      ->type_name("DIR");
  lm->add_option("--data", o.data,
                 "folder of `mhla data tokenize`, text as `mhla train lm` takes it, or sample: a novel that comes with "
                 "mhla (default: the run's held-out part)")
      ->type_name("SET");
  lm->add_option("--tokens", o.tokens, "where --data is text: folder to keep its tokens in (default: none are kept)")
      ->type_name("DIR");
  lm->add_option("--context,--length", o.length, "tokens of a window (default: as in training)")
      ->check(within(limits::kContext));
  lm->add_option("--stride", o.stride,
                 "tokens from one window to the next: below --context, windows overlap and each token sees a longer "
                 "past (default: --context)")
      ->check(is_positive());
  lm->add_option("--bucket", o.bucket, "positions of a window in one line of the table (default: an eighth)")
      ->check(is_positive());
  lm->add_option("--eval-tokens,--max-tokens", o.max_tokens,
                 "score this many tokens, rounded up to a whole window (default: all)")
      ->check(is_positive());
  lm->add_option("--packing", o.packing,
                 "documents: no window crosses two documents; concatenate: windows over all (default: as in training)")
      ->check(one_of({"documents", "concatenate"}));
  lm->add_option("--length-policy", o.length_policy,
                 "for windows longer than the rows of the mixing matrix: error, truncate_left, rechunk or extend")
      ->check(one_of({"error", "truncate_left", "rechunk", "extend"}))
      ->capture_default_str();
  lm->add_option("--batch", o.batch, "windows at a time (default: as in training)")->check(within(limits::kBatch));
  add_run_flags(*lm, o.weights, o.device);
  add_threads(*lm, o.threads);
  add_task_flags(*lm, o.tasks);
  add_json(*lm, o.json, "one JSON object on stdout, text on stderr");
  lm->callback([&job, lm] {
    expect_used(*lm, lm->count("--task") > 0);
    job = [] { return run_eval_lm(o); };
  });
}

}  // namespace mhla::apps
