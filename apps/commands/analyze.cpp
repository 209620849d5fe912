// mhla analyze: what the attention of trained models looks like, as a table, a page and JSON.
#include "apps/commands/analyze.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>

#include "apps/cli/flags.h"
#include "apps/cli/train_library.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

JsonValue query_of(const std::string& text) {
  const std::size_t comma = text.find(',');
  const auto whole = [&](std::string_view part) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc() || end != part.data() + part.size())
      fail("analyze: --queries has '", text, "', expected ROW,COLUMN of a token");
    return value;
  };
  if (comma == std::string::npos) fail("analyze: --queries has '", text, "', expected ROW,COLUMN of a token");
  return JsonValue::array(
      {whole(std::string_view(text).substr(0, comma)), whole(std::string_view(text).substr(comma + 1))});
}

void print_runs(const AnalysisRows& rows, const Output& out) {
  const TextTable table(out, {{"run", -24},
                              {"parameters", 11},
                              {"top-1", 8},
                              {"images/s", 9},
                              {"rank", 7},
                              {"above 1 %", 10},
                              {"stable", 7},
                              {"entropy", 8}});
  table.head();
  for (const std::vector<std::string>& row : run_table(rows).rows)
    table.row({row[0], row[4], row[5], row[6], row[7], row[8], row[9], row[10]});
}

int run_analyze(AnalyzeOptions options) {
  const Output out(options.json);
  if (options.out.empty()) options.out = (fs::path(options.runs.front()) / "analysis").string();
  for (const std::string& run : options.runs)  // before LibTorch is opened and a folder made
    if (!fs::exists(fs::path(run) / "train.json"))
      fail("analyze: ", run, " has no train.json, expected the folder of `mhla train classify`");
  OutputFolder folder(options.out);
  AnalysisRows rows;
  if (const int code = collect_analysis(options, out, rows); code != kDone) return code;
  HtmlReport page(rows.runs.size() == 1 ? "Attention of a trained model" : "Attention of trained models, side by side",
                  rows.runs.front().at("data").as_string());
  page.table(run_table(rows));
  page.paragraph("Ranks and entropy are means over layers, heads and images. images/s is the speed of the training.");
  add_analysis(page, rows);
  write_analysis(page, rows, folder, "analysis");
  print_runs(rows, out);
  out.line();
  out.line(fmt::format("with plots: {0}/analysis.html, numbers: {0}/analysis.json", options.out));
  return kDone;
}

}  // namespace

int collect_analysis(const AnalyzeOptions& options, const Output& out, AnalysisRows& rows) {
  JsonValue queries = JsonValue::array(), runs = JsonValue::array();
  for (const std::string& text : options.queries) queries.push(query_of(text));
  for (const std::string& run : options.runs) runs.push(run);
  const JsonValue request = JsonValue()
                                .set("command", "analyze")
                                .set("runs", runs)
                                .set("queries", queries)
                                .set("data", options.data)
                                .set("weights", options.weights)
                                .set("batch", 0)
                                .set("device", options.device)
                                .set("threads", options.threads)
                                .set("samples", options.samples)
                                .set("maps", options.maps)
                                .set("layer", options.layer)
                                .set("largest", options.largest);
  const int code = run_in_train_library(request, [&](const JsonValue& row, bool progress) {
    if (progress) return out.progress(row.at("text").as_string());
    if (row.at("kind").as_string() == "warning") return complain(row.at("text").as_string());
    out.row(row);
    rows.add(row);
  });
  out.progress_done();
  return code;
}

void write_analysis(const HtmlReport& page, const AnalysisRows& rows, OutputFolder& folder, const std::string& name) {
  JsonValue all = JsonValue::array();
  for (const auto* kind : {&rows.runs, &rows.images, &rows.heads, &rows.maps, &rows.mixes, &rows.growths})
    for (const JsonValue& row : *kind) all.push(row);
  write_file(folder.claim(name + ".json"), write_json(all) + "\n");
  page.write(folder.claim(name + ".html"));
  folder.keep();
}

void add_analyze(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("analyze", "rank, entropy and maps of trained attention, with an HTML page");
  static AnalyzeOptions o;
  command->add_option("--run,--runs", o.runs, "folders of `mhla train classify`; several are compared side by side")
      ->required()
      ->type_name("DIR");
  command->add_option("--out", o.out, "folder of analysis.html and analysis.json (default: analysis in the first run)")
      ->type_name("DIR");
  command->add_option("--samples", o.samples, "test images to look at, the same share of every class")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--queries", o.queries, "tokens whose attention is drawn, as ROW,COLUMN (default: two)")
      ->type_name("R,C");
  command->add_option("--maps", o.maps, "images to draw the queries on, of different classes")
      ->check(whole_number(0, 64))
      ->capture_default_str();
  command->add_option("--layer", o.layer, "layer to draw; -1: the last")->capture_default_str();
  command->add_option("--largest", o.largest, "compute singular values of matrices up to this side")
      ->check(whole_number(1, 1 << 14))
      ->capture_default_str();
  command->add_option("--data", o.data, "other images of the same classes (default: the run's test images)")
      ->type_name("SET");
  add_run_flags(*command, o.weights, o.device);
  add_threads(*command, o.threads);
  add_json(*command, o.json);
  command->callback([&job] { job = [] { return run_analyze(o); }; });
}

}  // namespace mhla::apps
