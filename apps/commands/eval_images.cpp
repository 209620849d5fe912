// mhla eval images: FID and its relatives, how close a set of images is to another.
#include "apps/commands/eval_images.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "mhla/diffusion/metrics/metric_table.h"
#include "mhla/io/prompts.h"

namespace mhla::apps {
namespace {

void print_metric(const JsonValue& row, const Output& out) {
  const JsonValue *deviation = row.find("deviation"), *reference = row.find("reference"),
                  *others = row.find("reference_images");
  std::string line = fmt::format("{:<12} {:.6g}", row.at("metric").as_string(), row.at("value").as_double());
  if (row.at("metric").as_string() == "nearest")
    line += fmt::format(" of the distance of {} held-out images, copies {:.2f} %", row.at("held_out_images").as_int(),
                        100 * row.at("copies").as_double());
  if (deviation != nullptr) line += fmt::format(" +- {:.3g}", deviation->as_double());
  line += fmt::format("   {} images", row.at("images").as_int());
  if (reference != nullptr) {
    line += fmt::format(" against {}{}", others == nullptr ? "" : fmt::format("{} of ", others->as_int()),
                        reference->as_string());
  }
  out.line(line);
}

int run_eval_images(EvalImagesRequest request, const std::string& prompts_file, bool json) {
  const Output out(json);
  if (!prompts_file.empty()) read_prompts("eval images", prompts_file, request.prompts);
  bool named = false;
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (said_warning(row)) return;
        const std::string& kind = row.at("kind").as_string();
        if (kind == "stats" || kind == "sheet") return out.line(kind + "  " + row.at("path").as_string());
        if (kind == "nearest")
          return out.line(fmt::format("  {:.4f}  {:.3f} of held out  {}  {}", row.at("distance").as_double(),
                                      row.at("ratio").as_double(), row.at("sample").as_string(),
                                      row.at("training").as_string()));
        if (!named) out.line("features  " + row.at("features").as_string());
        named = true;
        print_metric(row, out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(&Engine::eval_images, request, rows);
}

}  // namespace

void add_eval_images(CLI::App& eval, Job& job) {
  CLI::App* command = eval.add_subcommand("images", "FID and its relatives: how close images are to others");
  static EvalImagesRequest request;
  static std::string prompts_file;
  static bool json = false;
  const RequestFlags flags(*command, request, {{"prompts", "--prompt"}});
  flags["samples"].required()->type_name("PATH");
  flags["reference"].type_name("PATH");
  flags["features"].required()->type_name("NAME");
  std::vector<std::string> names = metric_names();
  names.insert(names.end(), {"clip", "nearest"});
  flags["metrics"].delimiter(',')->check(one_of(names))->type_name("NAME,...");
  flags["classes"].type_name("from-names|FILE");
  flags["prompts"].type_name("TEXT")->take_all()->allow_extra_args(false);
  command
      ->add_option(
          "--prompts", prompts_file,
          "metric clip: a prompt per line, or JSON lines with a field prompt, in the order of the samples' names "
          "(default: as `mhla sample` writes them into its PNG files)")
      ->type_name("FILE");
  flags["held_out"].type_name("PATH");
  flags["sheet"].type_name("FILE");
  flags["save_stats"].type_name("FILE");
  flags.shown("neighbours").check(whole_number(1, 1000));
  flags.shown("batch").check(within(limits::kBatch));
  flags.shown("device").type_name("NAME");
  flags.shown("threads").check(whole_number(0, 1024));
  add_json(*command, json, "one JSON object per metric on stdout, text on stderr");
  std::string known = "Metrics (default: fid):\n";
  for (const Metric& metric : all_metrics()) known += fmt::format("  {:<12} {}\n", metric.name, metric.what);
  known +=
      fmt::format("  {:<12} {}\n", "clip", "CLIP score: 100 times the cosine of an image and its prompt, not below 0");
  known += fmt::format(
      "  {:<12} {}\n", "nearest",
      "distance to the nearest training image (--reference) over that of held-out images: are they copies?");
  command->footer(known +
                  "Values depend on the number of images, on the network and on the reference: each is printed with "
                  "them.\nCompare only values of equal ones.");
  command->callback([&job] { job = [] { return run_eval_images(request, prompts_file, json); }; });
}

}  // namespace mhla::apps
