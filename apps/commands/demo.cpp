// mhla demo: a sheet of images from the small DiT that comes with mhla; then the same small vision transformer with
// MHLA, linear and softmax attention, trained alike on Fashion-MNIST, what each learned to look at, and what the
// operator costs by length. What `make demo` runs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "apps/bench/demo_speed.h"
#include "apps/cli/engine.h"
#include "apps/cli/flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "apps/commands/analyze.h"
#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/data/share.h"
#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/train/classify/classify_options.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kAttentions[] = {"mhla", "linear", "softmax"};

struct DemoOptions {
  std::string out = "mhla-demo", data = "fashion-mnist";
  std::int64_t images = 5120, test_images = 0, epochs = 2, seed = 0, samples = 32;
  int threads = 0;
  double rival_limit = 1.0;
  bool speed = true, images_first = true, json = false;
};

// Attention is all there is to tell the three apart.
train::ClassifyOptions options_of(const DemoOptions& demo, const std::string& attention) {
  train::ClassifyOptions o;
  o.model = "vit_demo", o.attention = attention, o.data = demo.data;
  o.train_images = demo.images, o.test_images = demo.test_images;
  o.train.epochs = demo.epochs, o.train.batch = 64, o.train.lr = 2e-3, o.train.weight_decay = 0.05;
  o.train.warmup_steps = std::min<std::int64_t>(40, demo.images / o.train.batch * demo.epochs / 6);
  o.train.seed = demo.seed, o.train.threads = demo.threads;
  o.train.checkpoint_every = 0, o.train.keep = 1, o.train.keep_best = false, o.train.eval_every = 0,
  o.train.log_every = 10;
  return o;
}

// Whether a run has the options of the demo, but for those that its flags or the data set.
bool is_of_demo(const fs::path& run, const JsonValue& ours) {
  static const std::set<std::string> free{"data",         "train_images", "test_images", "epochs",
                                          "warmup_steps", "seed",         "threads",     "origin"};
  if (!fs::exists(run / "train.json")) return false;
  const JsonValue saved = read_json(run / "train.json");
  for (const JsonValue::Member& member : ours.members()) {
    const bool by_data = member.value.is_null() || (member.value.is_string() && member.value.as_string().empty());
    const JsonValue* there = saved.find(member.key);
    if (there != nullptr && !by_data && free.count(member.key) == 0 && !(*there == member.value)) return false;
  }
  return true;
}

// A run of an earlier demo makes room; anything else that lies there stays, and is an error.
void make_room(const fs::path& run, const JsonValue& options) {
  if (!fs::exists(run)) return;
  if (!is_of_demo(run, options)) fail("demo: ", run.string(), " is in the way and no run of the demo");
  fs::remove_all(run);
}

int train_one(const DemoOptions& demo, const std::string& attention, const fs::path& run, const Output& out) {
  TrainRequest<train::ClassifyOptions> request;
  request.out = run.string(), request.options = options_of(demo, attention);
  const auto start = Clock::now();
  Rows rows(
      [&](const JsonValue& row) {
        const std::string& kind = row.at("kind").as_string();
        if (said_warning(row)) return;
        if (kind == "stopped" || kind == "failed") out.progress_done();  // and the ^C behind the bar
        if (kind != "eval") return;
        out.progress_done();
        out.line(fmt::format("{:<8} top-1 {:.2f} % on the test images after {:.0f} s", attention,
                             100.0 * row.at("top1").as_double(), seconds_since(start)));
      },
      [&](const JsonValue& row) { out.progress(fmt::format("{:<8}{}", attention, bar_text(row, 70))); });
  const int code = run_engine(&Engine::train_classify, request, rows);
  out.progress_done();
  return code;
}

// What the model that comes with mhla generates; empty where it did not come along.
struct Sheet {
  fs::path path;
  std::string settings;
  double seconds = 0;
};

// Four images of every class: some 30 s on two cores.
int sample_sheet(const DemoOptions& demo, const Output& out, Sheet& sheet) {
  const fs::path model = share_folder() / kSampleGenerator;
  if (!demo.images_first || !fs::exists(model / "config.json")) return kDone;
  SampleImagesRequest request;
  request.model = model.string(), request.out = (fs::path(demo.out) / "images").string();
  request.per_class = 4, request.guidance = 2.0, request.sampler = "dpm++", request.steps = 20;
  request.seed = static_cast<std::uint64_t>(demo.seed), request.threads = demo.threads;
  request.sheet = {4, 10}, request.overwrite = true;
  out.line(fmt::format("Images from {}:", model.string()));
  Rows rows(
      [&](const JsonValue& row) {
        if (said_warning(row) || row.at("kind").as_string() != "sampled") return;
        sheet.path = row.at("sheet").as_string(), sheet.seconds = row.at("seconds").as_double();
        sheet.settings = fmt::format("{} with {} attention, {} in {} steps, guidance {:g}", row.at("model").as_string(),
                                     row.at("attention").as_string(), row.at("sampler").as_string(),
                                     row.at("steps").as_int(), row.at("guidance").as_double());
      },
      [&](const JsonValue& row) {
        out.progress(fmt::format("images  {}  {} left", bar_of(row.at("share").as_double()),
                                 clock_text(row.at("eta_s").as_double())));
      });
  const int code = run_engine(&Engine::sample_images, request, rows);
  out.progress_done();
  if (code != kDone) return code;
  out.line(fmt::format("{:<8} {}: {}, {:.0f} s", "images", sheet.path.string(), sheet.settings, sheet.seconds));
  out.line();
  return kDone;
}

void add_sheet(HtmlReport& page, const Sheet& sheet) {
  if (sheet.path.empty()) return;
  const std::vector<std::byte> png = read_file(sheet.path);
  page.heading("Generated images");
  page.picture({reinterpret_cast<const char*>(png.data()), png.size()}, 2.0 * read_image(sheet.path).width,
               fmt::format("{}. A column is a class of Fashion-MNIST, a row other noise. {:.0f} s on this machine; the "
                           "files are in {}.",
                           sheet.settings, sheet.seconds, sheet.path.parent_path().string()));
  page.code("mhla sample --model share/mhla/sample/dit_d32_fashion --guidance 2 --per-class 4 --sheet 4x10 --out DIR");
}

void print_table(const AnalysisRows& rows, const Output& out) {
  const TextTable table(out, {{"attention", -10},
                              {"top-1 (%)", 10},
                              {"images/s", 9},
                              {"rank", 6},
                              {"above 1 %", 10},
                              {"at most", 8},
                              {"entropy", 8},
                              {"parameters", 11}});
  table.head();
  const std::vector<std::string> names = run_names(rows);
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const JsonValue& run = rows.runs[i];
    const auto index = static_cast<std::int64_t>(i);
    std::int64_t bound = 0;
    for (const JsonValue& head : rows.heads)
      if (head.at("run").as_int() == index) bound = std::max(bound, head.at("rank_bound").as_int());
    table.row({names[i], fmt::format("{:.2f}", 100.0 * run.at("top1").as_double()),
               fmt::format("{:.0f}", run.at("images_per_s").as_double()),
               fmt::format("{:.1f}", mean_of_heads(rows, index, "rank")),
               fmt::format("{:.1f}", mean_of_heads(rows, index, "rank_1pc")), std::to_string(bound),
               fmt::format("{:.3f}", mean_of_heads(rows, index, "entropy")),
               std::to_string(run.at("parameters").as_int())});
  }
  out.line();
  out.line("rank: directions the attention matrix of a head can tell apart, of N = 196; linear attention: at most 32.");
  out.line("above 1 %: singular values above 1 % of the largest. entropy: 1 looks everywhere alike, 0 at one token.");
  out.line("One seed and a short training: docs/demo.md says how to see the spread. Speed is that of the training.");
}

void write_page(const DemoOptions& demo, const Sheet& sheet, const AnalysisRows& rows, const SpeedByLength& speed,
                OutputFolder& folder) {
  HtmlReport page("MHLA: the focus that linear attention lost",
                  fmt::format("vit_demo on {}: {} training images, {} epochs, seed {}", demo.data, demo.images,
                              demo.epochs, demo.seed));
  page.paragraph(
      "Softmax attention compares every token with every other: its cost grows with the square of the sequence. Linear "
      "attention keeps one summary of all keys and values instead, so its cost grows with the length alone, but every "
      "query must make do with the same summary. MHLA cuts the image into M blocks, keeps one summary for each, and "
      "lets every query block weigh all summaries in its own way.");
  add_sheet(page, sheet);
  page.heading("Three attentions, trained alike");
  page.table(run_table(rows));
  page.paragraph(
      "The same network, data, order of images, optimiser and number of steps; only the attention differs, and no "
      "convolution mixes tokens. Ranks and entropy are means over layers, heads and test images. This is one seed of "
      "a training of minutes: differences of a few tenths of a per cent mean nothing; docs/demo.md says how to see the "
      "spread.");
  add_analysis(page, rows);
  if (!speed.rows.empty()) {
    page.heading("What the operator costs by length");
    add_speed(page, speed);
  }
  page.code(
      "mhla demo --out DIR\nmhla train classify --model vit_demo --attention mhla --data fashion-mnist --out run/\n"
      "mhla analyze --run run/");
  write_analysis(page, rows, folder, "report");
}

int run_demo(const DemoOptions& demo) {
  const Output out(demo.json);
  outlive_readers();
  const auto start = Clock::now();
  OutputFolder folder(demo.out);
  Sheet sheet;
  if (const int code = sample_sheet(demo, out, sheet); code != kDone) return code;
  AnalyzeRequest analysis;
  analysis.samples = demo.samples, analysis.maps = 3, analysis.open.threads = demo.threads;
  out.line(fmt::format("vit_demo (196 tokens, 3 layers, 3 heads of 32) on {} images of {}, {} epochs, seed {}:",
                       demo.images, demo.data, demo.epochs, demo.seed));
  for (const char* attention : kAttentions) {
    const fs::path run = fs::path(demo.out) / attention;
    make_room(run, fields_to_json(options_of(demo, attention)));
    if (const int code = train_one(demo, attention, run, out); code != kDone) return code;
    analysis.runs.push_back(run.string());
  }
  out.line();
  AnalysisRows rows;
  if (const int code = collect_analysis(analysis, out, rows); code != kDone) return code;
  print_table(rows, out);
  out.line();
  SpeedByLength speed;
  if (demo.speed) {
    speed = time_by_length(demo.threads, demo.rival_limit, out);
    out.line();
  }
  write_page(demo, sheet, rows, speed, folder);
  out.line(fmt::format("{:.0f} s in all. The report is {}/report.html, its numbers {}/report.json",
                       seconds_since(start), demo.out, demo.out));
  if (!sheet.path.empty()) out.line(fmt::format("The generated images are {}", sheet.path.string()));
  return kDone;
}

}  // namespace

void add_demo(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand(
      "demo",
      "generate images with a small DiT; train MHLA, linear and softmax attention alike and compare them, with an "
      "HTML page");
  static DemoOptions o;
  command->add_option("--out", o.out, "folder of the runs and of report.html")->type_name("DIR")->capture_default_str();
  command->add_option("--data", o.data, "grey images of ten classes, as `mhla train classify` takes them")
      ->type_name("SET")
      ->capture_default_str();
  command->add_option("--train-images,--images", o.images, "training images, the same share of every class")
      ->check(whole_number(64, 1 << 20))
      ->capture_default_str();
  command->add_option("--test-images", o.test_images, "test images for top-1; 0: all")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--epochs", o.epochs, "passes over the training images")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  command->add_option("--seed", o.seed, "seed of the weights, the order of the images and their augmentation")
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--samples", o.samples, "test images whose attention is looked at")
      ->check(whole_number(1, 10000))
      ->capture_default_str();
  add_threads(*command, o.threads);
  command->add_option("--rival-limit", o.rival_limit, "skip a rival whose single call would take longer, in seconds")
      ->check(is_seconds())
      ->capture_default_str();
  command->add_flag("!--no-speed", o.speed, "do not time the operator");
  command->add_flag("!--no-images", o.images_first, "do not generate images with the model that comes with mhla");
  add_json(*command, o.json);
  command->callback([&job] { job = [] { return run_demo(o); }; });
}

}  // namespace mhla::apps
