// mhla bench model: whole image models, forward or a training step, by attention, image size and blocks. One row for
// every combination, measured in libmhla_train.so; attentions of one row of sizes share a run, so their ratio means
// something on a noisy machine.
#include "apps/bench_model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/host.h"
#include "apps/output.h"
#include "apps/train_library.h"
#include "mhla/core/threads.h"

namespace mhla::apps {
namespace {

struct ModelBenchOptions {
  std::vector<std::string> models{"deit_tiny"}, attentions{"mhla", "softmax", "linear"}, passes{"fwd", "train"};
  std::vector<std::int64_t> images{0}, blocks{0};
  std::int64_t batch = 8, threads = 0;
  std::string device = "cpu", precision;
  double min_seconds = 2.0;
  bool json = false;
};

std::string cell(const JsonValue& row, const char* key, const char* format) {
  return fmt::format(fmt::runtime(format), row.at(key).as_double());
}

int run_bench_model(const ModelBenchOptions& o) {
  const Output out(o.json);
  out.line(fmt::format("{}, {}, {}", read_cpu_facts().model, o.device, compiler_text()));
  const TextTable table(out, {{"model", -12},
                              {"attention", -10},
                              {"image", 6},
                              {"tokens", 7},
                              {"M", 5},
                              {"batch", 6},
                              {"pass", 6},
                              {"ms", 10},
                              {"spread", 7},
                              {"images/s", 10},
                              {"of first", 8},
                              {"peak MiB", 9}});
  table.head();
  const std::string precision = !o.precision.empty() ? o.precision : o.device == "cpu" ? "f32" : "bf16";
  for (const std::string& model : o.models)
    for (const std::int64_t image : o.images)
      for (const std::int64_t blocks : o.blocks)
        for (const std::string& pass : o.passes) {
          double first = 0;  // images per second of the first attention
          for (const std::string& attention : o.attentions) {
            const JsonValue request = JsonValue()
                                          .set("command", "bench model")
                                          .set("model", model)
                                          .set("attention", attention)
                                          .set("image", image)
                                          .set("blocks", blocks)
                                          .set("batch", o.batch)
                                          .set("pass", pass)
                                          .set("device", o.device)
                                          .set("precision", precision)
                                          .set("threads", o.threads)
                                          .set("min_seconds", o.min_seconds);
            const int code = run_in_train_library(request, [&](const JsonValue& row, bool /*progress*/) {
              const double rate = row.at("images_per_s").as_double();
              if (first == 0) first = rate;
              JsonValue kept = row;
              kept.set("of_first", rate / first);
              out.row(kept);
              table.row({row.at("model").as_string(), attention, cell(row, "image", "{:.0f}"),
                         cell(row, "tokens", "{:.0f}"), cell(row, "M", "{:.0f}"), cell(row, "batch", "{:.0f}"), pass,
                         cell(row, "ms", "{:.2f}"), cell(row, "spread", "{:.2f}"), fmt::format("{:.1f}", rate),
                         fmt::format("{:.2f}", rate / first),
                         row.contains("peak_mib") ? cell(row, "peak_mib", "{:.0f}") : "-"});
            });
            if (code != kDone) return code;
          }
        }
  return kDone;
}

}  // namespace

void add_bench_model(CLI::App& bench, Job& job) {
  CLI::App* model = bench.add_subcommand("model", "whole image models by attention, image size and blocks");
  static ModelBenchOptions o;
  model->add_option("--model", o.models, "deit_tiny, deit_small, deit_base, vlt_tiny, vlt_small, vit_demo, vit_256")
      ->delimiter(',')
      ->capture_default_str();
  model
      ->add_option("--attention", o.attentions,
                   "of the zoo, or plain: MHLA in LibTorch operators, for equal blocks; ratios to the first")
      ->delimiter(',')
      ->capture_default_str();
  model->add_option("--image", o.images, "pixels of a side (default: the model's)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  model->add_option("--blocks", o.blocks, "MHLA's blocks of a side, M is its square (default: the model's)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  model->add_option("--pass", o.passes, "fwd, train: a whole step")
      ->delimiter(',')
      ->check(CLI::IsMember({"fwd", "train"}))
      ->capture_default_str();
  model->add_option("--batch", o.batch)->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}))->capture_default_str();
  model->add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  model->add_option("--precision", o.precision, "f32, or bf16: autocast (default: bf16 on a GPU)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  model->add_option("--threads", o.threads, "of the CPU (default: all)")->check(CLI::Range(1, 1024));
  model->add_option("--min-time", o.min_seconds, "seconds a row")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  model->add_flag("--json", o.json, "one JSON object per line on stdout, text on stderr");
  model->callback([&job] { job = [] { return run_bench_model(o); }; });
}

}  // namespace mhla::apps
