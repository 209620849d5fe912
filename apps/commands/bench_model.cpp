// mhla bench model: whole image models, forward or a training step, by attention, image size and blocks, and language
// models, also decoding, by attention and length. One row for every combination, measured in the engine;
// attentions of one row of sizes share a run, so their ratio means something on a noisy machine.
#include "apps/commands/bench_model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/cli/axes.h"
#include "apps/cli/engine.h"
#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/limit_flags.h"
#include "mhla/core/error.h"
#include "mhla/models/names.h"

namespace mhla::apps {
namespace {

struct ModelBenchOptions {
  std::vector<std::string> models{"deit_tiny"}, attentions{"mhla", "softmax", "linear"}, passes{"fwd", "train"};
  std::vector<std::string> images, blocks;  // of image models; empty: the model's
  std::vector<std::int64_t> lengths{2048};  // of language models
  std::vector<std::int64_t> frames{81};     // of video models
  std::vector<std::string> sizes{"480x800"};
  std::int64_t chunk = 0;
  bool recompute = false, exact = false;
  std::int64_t batch = 8, threads = 0;
  std::string device = "cpu", precision;
  double min_seconds = 2.0;
  bool cuda_graph = false, profile = false, json = false;

  [[nodiscard]] std::string precision_used() const {
    return !precision.empty() ? precision : device == "cpu" ? "f32" : "bf16";
  }
};

bool is_video_model(const std::string& name) { return name.rfind("wan_", 0) == 0; }
bool is_language_model(const std::string& name) { return name.rfind("mhla_", 0) == 0; }

std::string cell(const JsonValue& row, const char* key, const char* format) {
  return fmt::format(fmt::runtime(format), row.at(key).as_double());
}

// Parts of a step with their share of it, then what takes most.
void show_profile(const Output& out, const JsonValue& profile) {
  const double ms = profile.at("ms").as_double();
  const TextTable parts(out, {{"  where it goes", -18}, {"ms", 10}, {"share", 7}});
  parts.head();
  for (const char* part : {"attention", "products", "elementwise", "optimizer", "copies", "waiting"})
    parts.row({str("  ", part), cell(profile, part, "{:.3f}"),
               fmt::format("{:.0f} %", 100 * profile.at(part).as_double() / ms)});
  parts.row({"  profiled step", fmt::format("{:.3f}", ms), ""});
  const TextTable rows(out, {{"  part", -13}, {"calls", 7}, {"ms", 10}, {"name", -1}});
  rows.head();
  constexpr std::size_t kShown = 12;
  for (std::size_t i = 0; i < std::min(kShown, profile.at("rows").size()); ++i) {
    const JsonValue& row = profile.at("rows").items()[i];
    rows.row({str("  ", row.at("part").as_string()), cell(row, "calls", "{:.0f}"), cell(row, "ms", "{:.3f}"),
              row.at("name").as_string()});
  }
}

// The rows of one model, one pass and one size, one for each attention. `show` gets each with its rate over that of the
// first. One that fails, because it does not fit the machine, does not stop the others; a mistake of the caller's does.
template <class Request>
int each_attention(const ModelBenchOptions& o, const Output& out, Request request,
                   Outcome (*Engine::*bench)(const Request&, train::Observer&), const char* rate_key,
                   const std::function<void(const JsonValue& row, double of_first)>& show) {
  double first = 0;
  int failed = kDone;
  Rows rows(
      [&](const JsonValue& row) {
        if (said_warning(row)) return;
        const double rate = row.at(rate_key).as_double();
        if (first == 0) first = rate;
        JsonValue kept = row;
        out.row(kept.set("of_first", rate / first));
        show(row, rate / first);
        if (const JsonValue* profile = row.find("profile")) show_profile(out, *profile);
      },
      [](const JsonValue&) {});
  for (const std::string& attention : o.attentions) {
    request.bench.attention = attention;
    const int code = run_engine(bench, request, rows);
    if (code == kCallersMistake) return code;
    if (failed == kDone) failed = code;
  }
  return failed;
}

// What all rows of a model and a pass have in common.
BenchModelRequest request_of(const ModelBenchOptions& o, const std::string& model, const std::string& pass) {
  BenchModelRequest request;
  request.model = model, request.pass = pass, request.batch = o.batch, request.device = o.device;
  request.precision = o.precision_used(), request.threads = o.threads, request.min_seconds = o.min_seconds;
  request.cuda_graph = o.cuda_graph, request.profile = o.profile;
  return request;
}

int bench_language_model(const ModelBenchOptions& o, const Output& out, const std::string& model) {
  const TextTable table(out, {{"model", -10},
                              {"attention", -10},
                              {"length", 7},
                              {"batch", 6},
                              {"pass", 7},
                              {"ms", 10},
                              {"spread", 7},
                              {"tokens/s", 10},
                              {"of first", 8},
                              {"of roof", 8},
                              {"peak MiB", 9}});
  table.head();
  for (const std::int64_t length : o.lengths)
    for (const std::string& pass : o.passes) {
      const BenchLmRequest request{request_of(o, model, pass), length, o.chunk, o.recompute, o.exact};
      const auto show = [&](const JsonValue& row, double of_first) {
        table.row({model, row.at("attention").as_string(), cell(row, "length", "{:.0f}"), cell(row, "batch", "{:.0f}"),
                   pass, cell(row, "ms", "{:.2f}"), cell(row, "spread", "{:.2f}"), cell(row, "tokens_per_s", "{:.1f}"),
                   fmt::format("{:.2f}", of_first), cell(row, "of_roof", "{:.3f}"),
                   row.contains("peak_mib") ? cell(row, "peak_mib", "{:.0f}") : "-"});
      };
      const int code = each_attention(o, out, request, &Engine::bench_lm, "tokens_per_s", show);
      if (code != kDone) return code;
    }
  return kDone;
}

// 0: the model's.
std::vector<std::int64_t> sides_of(const std::vector<std::string>& images) {
  std::vector<std::int64_t> sides;
  for (const std::string& image : images) sides.push_back(parse_square(image, "bench model: --image"));
  if (sides.empty()) sides.push_back(0);
  return sides;
}

using Plane = std::optional<std::array<std::int64_t, 2>>;  // rows, columns; none: the model's

std::vector<Plane> planes_of(const std::vector<std::string>& blocks) {
  std::vector<Plane> planes;
  for (const std::string& text : blocks) {
    const auto [rows, columns] = parse_plane(text, "bench model: --blocks");
    planes.push_back({{rows, columns}});
  }
  if (planes.empty()) planes.emplace_back();
  return planes;
}

int bench_classifier(const ModelBenchOptions& o, const Output& out, const std::string& model) {
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
  for (const std::int64_t image : sides_of(o.images))
    for (const Plane& blocks : planes_of(o.blocks))
      for (const std::string& pass : o.passes) {
        if (pass == "decode") fail("bench model: --pass is decode for ", model, ", expected a language model for it");
        const BenchClassifierRequest request{request_of(o, model, pass), image, blocks};
        const auto show = [&](const JsonValue& row, double of_first) {
          table.row({model, row.at("attention").as_string(), cell(row, "image", "{:.0f}"),
                     cell(row, "tokens", "{:.0f}"), cell(row, "M", "{:.0f}"), cell(row, "batch", "{:.0f}"), pass,
                     cell(row, "ms", "{:.2f}"), cell(row, "spread", "{:.2f}"), cell(row, "images_per_s", "{:.1f}"),
                     fmt::format("{:.2f}", of_first),
                     row.contains("peak_mib") ? cell(row, "peak_mib", "{:.0f}") : "-"});
        };
        const int code = each_attention(o, out, request, &Engine::bench_classifier, "images_per_s", show);
        if (code != kDone) return code;
      }
  return kDone;
}

int bench_video_model(const ModelBenchOptions& o, const Output& out, const std::string& model) {
  const TextTable table(out, {{"model", -9},
                              {"attention", -10},
                              {"frames", 7},
                              {"size", 10},
                              {"tokens", 7},
                              {"batch", 6},
                              {"pass", 6},
                              {"ms", 10},
                              {"spread", 7},
                              {"of first", 8},
                              {"peak MiB", 9}});
  table.head();
  for (const std::int64_t frames : o.frames)
    for (const std::string& text : o.sizes)
      for (const std::string& pass : o.passes) {
        const auto [rows, columns] = parse_plane(text, "bench model: --size");
        const BenchVideoRequest request{request_of(o, model, pass), frames, rows, columns};
        const auto show = [&](const JsonValue& row, double of_first) {
          table.row({model, row.at("attention").as_string(), cell(row, "frames", "{:.0f}"),
                     fmt::format("{}x{}", row.at("rows").as_int(), row.at("columns").as_int()),
                     cell(row, "tokens", "{:.0f}"), cell(row, "batch", "{:.0f}"), pass, cell(row, "ms", "{:.2f}"),
                     cell(row, "spread", "{:.2f}"), fmt::format("{:.2f}", of_first),
                     row.contains("peak_mib") ? cell(row, "peak_mib", "{:.0f}") : "-"});
        };
        const int code = each_attention(o, out, request, &Engine::bench_video, "videos_per_s", show);
        if (code != kDone) return code;
      }
  return kDone;
}

int run_bench_model(const ModelBenchOptions& o) {
  const Output out(o.json);
  out.line(fmt::format("{}, {}, {}", read_cpu_facts().model, o.device, compiler_text()));
  for (const std::string& model : o.models) {
    const int code = is_language_model(model) ? bench_language_model(o, out, model)
                     : is_video_model(model)  ? bench_video_model(o, out, model)
                                              : bench_classifier(o, out, model);
    if (code != kDone) return code;
  }
  return kDone;
}

}  // namespace

void add_bench_model(CLI::App& bench, Job& job) {
  CLI::App* model =
      bench.add_subcommand("model", "time whole models by attention and size: images or tokens per second");
  static ModelBenchOptions o;
  model
      ->add_option("--model", o.models,
                   str(model_list("classify"), "; ", model_list("diffusion"), "; ", model_list("lm"), "; ",
                       model_list("video"), ", wan_vae; several joined by commas, as for all lists here"))
      ->type_name("NAME,...")
      ->delimiter(',')
      ->capture_default_str();
  model
      ->add_option(
          "--attention", o.attentions,
          "of the zoo, or plain: MHLA in LibTorch operators, for blocks of equal size; video models: mhla, softmax, "
          "linear, or hybrid: MHLA in two layers of three; wan_vae: plain, conv3d or conv2d; ratios are to the first")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->capture_default_str();
  model
      ->add_option("--image", o.images,
                   "image models: pixels of a side, for dit, dig and sana of the latents (default: the model's)")
      ->type_name("N|NxN,...")
      ->delimiter(',');
  model->add_option("--blocks", o.blocks, "image models: MHLA's blocks per axis (default: the model's)")
      ->type_name("N|RxC,...")
      ->delimiter(',');
  model->add_option("--context,--length", o.lengths, "language models: tokens of a sequence")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(within(limits::kContext))
      ->capture_default_str();
  model->add_option("--frames", o.frames, "video models: frames of a video")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  model->add_option("--size", o.sizes, "video models: rows and columns in pixels")
      ->type_name("RxC,...")
      ->delimiter(',')
      ->capture_default_str();
  model->add_option("--chunk", o.chunk, "language models: tokens of one of MHLA's chunks (default: the model's)")
      ->check(within(limits::kChunk));
  model->add_flag("--exact", o.exact,
                  "language models: results that do not depend on the batch or on how a text is split");
  model->add_flag("--recompute", o.recompute, "language models: recompute blocks in the backward pass to save memory");
  model
      ->add_option(
          "--pass", o.passes,
          "fwd; train: a whole step; decode: one token of every sequence (language models), or latents to frames "
          "(wan_vae)")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->check(one_of({"fwd", "train", "decode"}))
      ->capture_default_str();
  model->add_option("--batch", o.batch, "images or sequences")->check(within(limits::kBatch))->capture_default_str();
  model->add_option("--device", o.device, "cpu, cuda or cuda:N")->type_name("NAME")->capture_default_str();
  add_precision(*model, o.precision, "f32, or bf16: autocast (default: bf16 on a GPU, else f32)");
  add_threads(*model, o.threads);
  add_min_time(*model, o.min_seconds);
  model->add_flag("--cuda-graph", o.cuda_graph,
                  "--pass train: forward and backward as one CUDA graph, as in mhla train --cuda-graph");
  model->add_flag(
      "--profile", o.profile,
      "also where a step goes: attention, products, element-wise passes, optimizer, copies, waiting for the "
      "host, and the kernels or operators that take most");
  add_json(*model, o.json);
  model->callback([&job] { job = [] { return run_bench_model(o); }; });
}

}  // namespace mhla::apps
