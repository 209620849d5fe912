// mhla report: the page of one or several trainings, from the files in their folders, without opening a model: curves
// of the log, sheets of samples by step and by run, metrics and nearest training images where they were put there.
#include "mhla/io/report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "apps/cli/flags.h"
#include "apps/cli/output.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"
#include "mhla/io/json_object.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSheetsOfARun = 4;  // by step, the last among them
constexpr std::uint64_t kMostBytes = 1u << 30;
constexpr double kSheetWidth = 205, kNearestWidth = 560, kClipWidth = 160;

struct ReportedRun {
  fs::path folder;
  std::string name;  // in legends and tables
  JsonValue options, network;
  std::vector<JsonValue> steps, evals, metrics;           // rows of log.jsonl and metrics.jsonl
  std::vector<std::pair<std::int64_t, fs::path>> sheets;  // step and file, in order
  std::vector<fs::path> clips;                            // GIF files, by name
};

std::string text_of(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path, kMostBytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Without a last line that has no end: of a run that goes on, or was killed.
std::string whole_lines_of(const fs::path& path) {
  std::string text = text_of(path);
  text.resize(text.rfind('\n') + 1);
  return text;
}

std::string word_in(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

// The folder of a run, with or without a slash at its end.
std::string name_of(const fs::path& folder) { return (folder / "").parent_path().filename().string(); }

ReportedRun read_run(const std::string& folder) {
  ReportedRun run;
  run.folder = folder, run.name = name_of(folder);
  if (!is_there(run.folder / "train.json"))
    fail("report: ", folder, " has no train.json, expected the folder of a training");
  run.options = read_json_object(run.folder / "train.json");
  run.network = read_json_object(run.folder / "config.json");
  const fs::path log = run.folder / "log.jsonl", metrics = run.folder / "metrics.jsonl",
                 samples = run.folder / "samples";
  read_json_lines(whole_lines_of(log), log.string(), [&](const std::string&, const JsonValue& row) {
    const std::string kind = word_in(row, "kind");
    if (kind == "step") run.steps.push_back(row);
    if (kind == "eval") run.evals.push_back(row);
  });
  if (is_there(metrics))
    read_json_lines(text_of(metrics), metrics.string(), [&](const std::string& where, const JsonValue& row) {
      if (word_in(row, "kind") != "metric") return;
      if (!row.contains("metric") || !row.contains("value")) fail(where, ": a metric without metric and value");
      run.metrics.push_back(row);
    });
  if (is_there(samples))
    for (const fs::directory_entry& entry : fs::directory_iterator(samples)) {
      const std::string stem = entry.path().stem().string(), head = "step-";
      if (entry.path().extension() == ".png" && stem.rfind(head, 0) == 0)
        run.sheets.emplace_back(std::stoll(stem.substr(head.size())), entry.path());
      if (entry.path().extension() == ".gif") run.clips.push_back(entry.path());
    }
  std::sort(run.sheets.begin(), run.sheets.end());
  std::sort(run.clips.begin(), run.clips.end());
  return run;
}

double last_of(const std::vector<JsonValue>& rows, const char* key) {
  const JsonValue* value = rows.empty() ? nullptr : rows.back().find(key);
  return value == nullptr || !value->is_number() ? std::nan("") : value->as_double();
}

std::string shown(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

// What the steps of a training are like: the median of a field.
double median_of(const std::vector<JsonValue>& rows, const char* key) {
  std::vector<double> values;
  for (const JsonValue& row : rows)
    if (const JsonValue* value = row.find(key); value != nullptr && value->is_number())
      values.push_back(value->as_double());
  if (values.empty()) return std::nan("");
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Numbers of the evaluations, in the order of their first row, but for where it was and what follows from others.
std::vector<std::string> eval_keys(const std::vector<ReportedRun>& runs) {
  static const std::set<std::string> place{"kind",    "step", "epoch",  "of",      "seconds",
                                           "damaged", "vb",   "ema_vb", "ema_loss"};
  std::vector<std::string> keys;
  for (const ReportedRun& run : runs)
    for (const JsonValue::Member& member : run.evals.empty() ? JsonValue::Object() : run.evals.back().members())
      if (member.value.is_number() && place.count(member.key) == 0 &&
          std::find(keys.begin(), keys.end(), member.key) == keys.end())
        keys.push_back(member.key);
  return keys;
}

Table table_of_runs(const std::vector<ReportedRun>& runs) {
  const bool clips = std::isfinite(median_of(runs.front().steps, "clips_per_s"));
  Table table{{"run", "model", "attention", "steps", clips ? "clips/s" : "images/s"}, {}};
  const std::vector<std::string> keys = eval_keys(runs);
  for (const std::string& key : keys) table.columns.push_back(key);
  for (const ReportedRun& run : runs) {
    std::vector<std::string> cells{run.name, word_in(run.network, "model"), word_in(run.network, "attention"),
                                   shown(last_of(run.steps, "step"), 0),
                                   shown(median_of(run.steps, clips ? "clips_per_s" : "images_per_s"), 0)};
    for (const std::string& key : keys) cells.push_back(shown(last_of(run.evals, key.c_str()), 5));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

LinePlot curve(const std::vector<ReportedRun>& runs, bool of_evals, const std::string& key, const std::string& title) {
  LinePlot plot;
  plot.title = title, plot.x.label = "step", plot.y.label = key;
  bool positive = true;
  for (const ReportedRun& run : runs) {
    Series series{run.name, {}, {}};
    for (const JsonValue& row : of_evals ? run.evals : run.steps) {
      const JsonValue* value = row.find(key);
      if (value == nullptr || !value->is_number()) continue;
      series.x.push_back(row.at("step").as_double()), series.y.push_back(value->as_double());
      positive = positive && value->as_double() > 0.0;
    }
    if (!series.x.empty()) plot.series.push_back(std::move(series));
  }
  if (positive) plot.y.scale = AxisScale::kLog10;  // losses fall fast, then slowly
  return plot;
}

void add_curves(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  page.heading("Curves");
  std::vector<Figure> figures;
  const auto add = [&](bool of_evals, const char* key, const std::string& title) {
    LinePlot plot = curve(runs, of_evals, key, title);
    if (!plot.series.empty()) figures.emplace_back(std::move(plot));
  };
  add(false, "loss", "Training loss");
  for (const char* key : {"mse", "ema_mse", "loss", "top1", "perplexity"}) {
    const std::string of_average = std::string(key).rfind("ema_", 0) == 0 ? ", averaged weights" : "";
    add(true, key, fmt::format("Held out: {}{}", of_average.empty() ? key : key + 4, of_average));
  }
  for (std::size_t i = 0; i < figures.size(); i += 2)
    page.figures({figures.begin() + static_cast<std::ptrdiff_t>(i),
                  figures.begin() + static_cast<std::ptrdiff_t>(std::min(i + 2, figures.size()))});
}

PngPicture sheet(const fs::path& file, const std::string& caption, double width) {
  (void)read_image(file);  // says what is wrong with it, instead of a page with a hole
  return {text_of(file), width, caption};
}

// Some of the sheets of a run, evenly, the last one among them.
std::vector<PngPicture> sheets_of(const ReportedRun& run) {
  std::vector<PngPicture> chosen;
  const std::size_t count = run.sheets.size(), wanted = std::min(kSheetsOfARun, count);
  for (std::size_t i = 1; i <= wanted; ++i) {
    const auto& [step, file] = run.sheets[i * count / wanted - 1];
    chosen.push_back(sheet(file, fmt::format("{}, step {}", run.name, step), kSheetWidth));
  }
  return chosen;
}

void add_samples(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  const auto has_sheets = [](const ReportedRun& run) { return !run.sheets.empty(); };
  if (std::none_of(runs.begin(), runs.end(), has_sheets)) return;
  page.heading("Samples");
  page.paragraph(
      "A row of a sheet is a class or a prompt. The noise is the same at every step and, for equal seeds, in every "
      "run, so sheets "
      "can be compared image by image.");
  if (runs.size() > 1) {
    page.subheading("By run, after the last step");
    std::vector<PngPicture> last;
    for (const ReportedRun& run : runs)
      if (has_sheets(run))
        last.push_back(sheet(run.sheets.back().second,
                             fmt::format("{} ({})", run.name, word_in(run.network, "attention")), kSheetWidth));
    page.pictures(last);
  }
  for (const ReportedRun& run : runs) {
    if (!has_sheets(run)) continue;
    page.subheading(fmt::format("By step: {}", run.name));
    page.pictures(sheets_of(run));
  }
}

// Clips of one name side by side, a row for every name.
void add_clips(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  std::map<std::string, std::vector<PngPicture>> rows;
  for (const ReportedRun& run : runs)
    for (const fs::path& file : run.clips) rows[file.stem().string()].push_back(sheet(file, run.name, kClipWidth));
  if (rows.empty()) return;
  page.heading("Clips");
  for (const auto& [name, pictures] : rows) {
    page.subheading(name);
    page.pictures(pictures);
  }
}

// Rows of `mhla bench model --json`: milliseconds of a pass by the frames of a video, one curve an attention.
void add_latency(HtmlReport& page, const std::string& file) {
  if (file.empty()) return;
  LinePlot plot;
  plot.title = "Latency by frames", plot.x.label = "frames", plot.y.label = "ms", plot.y.scale = AxisScale::kLog10;
  std::map<std::string, std::map<double, double>> series;
  std::string what;
  read_json_lines(text_of(file), file, [&](const std::string& where, const JsonValue& row) {
    if (!row.contains("frames") || !row.contains("ms") || !row.contains("attention"))
      fail(where, ": has no frames, ms and attention, expected rows of `mhla bench model --json` of a video model");
    series[row.at("attention").as_string()][row.at("frames").as_double()] = row.at("ms").as_double();
    what = fmt::format("{}, {} x {}, {}, {}", word_in(row, "model"), row.at("rows").as_int(),
                       row.at("columns").as_int(), word_in(row, "precision"), word_in(row, "device"));
  });
  if (series.empty()) fail("report: --latency is ", file, ", which has no rows");
  for (const auto& [name, points] : series) {
    Series one{name, {}, {}};
    for (const auto& [frames, ms] : points) one.x.push_back(frames), one.y.push_back(ms);
    plot.series.push_back(std::move(one));
  }
  page.heading("Latency");
  page.paragraph(what);
  page.figures({Figure(plot)});
}

// A row for every metric with what it depends on, a column for every run.
void add_metrics(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  Table table{{"metric", "features", "images", "reference"}, {}};
  std::vector<std::vector<std::string>> heads;
  std::map<std::vector<std::string>, std::map<std::string, std::string>> values;
  for (const ReportedRun& run : runs) {
    table.columns.push_back(run.name);
    for (const JsonValue& row : run.metrics) {
      const JsonValue* images = row.find("images");
      const std::vector<std::string> head{word_in(row, "metric"), word_in(row, "features"),
                                          images == nullptr ? "" : std::to_string(images->as_int()),
                                          word_in(row, "reference")};
      if (values.count(head) == 0) heads.push_back(head);
      values[head][run.name] = fmt::format("{:.5g}", row.at("value").as_double());
    }
  }
  if (heads.empty()) return;
  page.heading("Metrics");
  for (const std::vector<std::string>& head : heads) {
    std::vector<std::string> cells = head;
    for (const ReportedRun& run : runs) {
      const auto found = values[head].find(run.name);
      cells.push_back(found == values[head].end() ? "-" : found->second);
    }
    table.rows.push_back(std::move(cells));
  }
  page.table(table);
  page.paragraph(
      "Values depend on the number of images, on the reference and on the network: compare equal ones only.");
}

void add_nearest(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  std::vector<PngPicture> pictures;
  for (const ReportedRun& run : runs)
    if (is_there(run.folder / "nearest.png"))
      pictures.push_back(sheet(run.folder / "nearest.png", run.name, kNearestWidth));
  if (pictures.empty()) return;
  page.heading("Nearest training images");
  page.paragraph("Pairs, the closest first: a sample, and right of it the training image that is nearest to it.");
  page.pictures(pictures);
}

void add_options(HtmlReport& page, const std::vector<ReportedRun>& runs) {
  page.heading("Options");
  Table table{{"option"}, {}};
  std::vector<std::string> keys;
  for (const ReportedRun& run : runs) {
    table.columns.push_back(run.name);
    for (const JsonValue::Member& member : run.options.members())
      if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) keys.push_back(member.key);
  }
  for (const std::string& key : keys) {
    std::vector<std::string> cells{key};
    for (const ReportedRun& run : runs) {
      const JsonValue* value = run.options.find(key);
      cells.push_back(value == nullptr ? "" : value->is_string() ? value->as_string() : write_json(*value));
    }
    table.rows.push_back(std::move(cells));
  }
  page.table(table);
}

struct ReportFlags {
  std::vector<std::string> runs;
  std::string out, title, latency;
  bool json = false;
};

int run_report(const ReportFlags& flags) {
  const Output out(flags.json);
  std::vector<ReportedRun> runs;
  std::set<std::string> names;
  for (const std::string& folder : flags.runs) {
    runs.push_back(read_run(folder));
    if (!names.insert(runs.back().name).second) runs.back().name = folder;  // two of one name in other places
  }
  const fs::path path = flags.out.empty() ? runs.front().folder / "report.html" : fs::path(flags.out);
  HtmlReport page(flags.title.empty() ? (runs.size() == 1 ? "A training" : "Trainings, side by side") : flags.title,
                  word_in(runs.front().options, "data"));
  page.table(table_of_runs(runs));
  add_curves(page, runs);
  add_clips(page, runs);
  add_samples(page, runs);
  add_metrics(page, runs);
  add_latency(page, flags.latency);
  add_nearest(page, runs);
  add_options(page, runs);
  page.write(path);
  out.row(
      JsonValue().set("kind", "report").set("path", path.string()).set("runs", static_cast<std::int64_t>(runs.size())));
  out.line(fmt::format("report  {}", path.string()));
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("report", "an HTML page of trainings: curves, samples by step and run, metrics");
  static ReportFlags flags;
  command->add_option("--run,--runs", flags.runs, "folders of `mhla train`, shown side by side")
      ->required()
      ->type_name("DIR");
  command->add_option("--out", flags.out, "the page (default: report.html in the first run)")->type_name("FILE");
  command->add_option("--title", flags.title, "of the page")->type_name("TEXT");
  command->add_option("--latency", flags.latency, "rows of `mhla bench model --json` of a video model: ms by frames")
      ->type_name("FILE");
  add_json(*command, flags.json);
  command->footer(
      "Of a run's folder the page has the log, the sheets and GIF files in samples/, metrics.jsonl (rows of `mhla "
      "eval\n"
      "images --json`) and nearest.png (of `mhla eval images --metrics nearest --sheet`). It has everything in it and\n"
      "opens offline.");
  command->callback([&job] { job = [] { return run_report(flags); }; });
}

}  // namespace mhla::apps
