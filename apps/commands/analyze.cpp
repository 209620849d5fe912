// mhla analyze: what the attention of trained models looks like, as a table, a page and JSON.
#include "apps/commands/analyze.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>

#include "apps/cli/engine.h"
#include "apps/cli/request_flags.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

std::array<std::int64_t, 2> query_of(const std::string& text) {
  const std::size_t comma = text.find(',');
  const auto whole = [&](std::string_view part) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc() || end != part.data() + part.size())
      fail("analyze: --queries has '", text, "', expected ROW,COLUMN of a token");
    return value;
  };
  if (comma == std::string::npos) fail("analyze: --queries has '", text, "', expected ROW,COLUMN of a token");
  return {whole(std::string_view(text).substr(0, comma)), whole(std::string_view(text).substr(comma + 1))};
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

// What is no part of the request.
struct AnalyzeFlags {
  std::string out;
  std::vector<std::string> queries;  // "ROW,COLUMN"
  bool json = false;
};

int run_analyze(AnalyzeRequest request, const AnalyzeFlags& flags) {
  const Output out(flags.json);
  const std::string place = flags.out.empty() ? (fs::path(request.runs.front()) / "analysis").string() : flags.out;
  for (const std::string& run : request.runs)  // before LibTorch is opened and a folder made
    if (!fs::exists(fs::path(run) / "train.json"))
      fail("analyze: ", run, " has no train.json, expected the folder of `mhla train classify`");
  OutputFolder folder(place);
  for (const std::string& text : flags.queries) request.queries.push_back(query_of(text));
  AnalysisRows rows;
  if (const int code = collect_analysis(request, out, rows); code != kDone) return code;
  HtmlReport page(rows.runs.size() == 1 ? "Attention of a trained model" : "Attention of trained models, side by side",
                  rows.runs.front().at("data").as_string());
  page.table(run_table(rows));
  page.paragraph("Ranks and entropy are means over layers, heads and images. images/s is the speed of the training.");
  add_analysis(page, rows);
  write_analysis(page, rows, folder, "analysis");
  print_runs(rows, out);
  out.line();
  out.line(fmt::format("with plots: {0}/analysis.html, numbers: {0}/analysis.json", place));
  return kDone;
}

}  // namespace

int collect_analysis(const AnalyzeRequest& request, const Output& out, AnalysisRows& rows) {
  class Listener final : public PictureObserver {
   public:
    Listener(const Output& out, AnalysisRows& rows) : out_(out), rows_(rows) {}
    void picture(const Picture& picture) override {
      out_.row(image_row(picture));
      rows_.pictures.push_back(picture);
    }
    void row(const JsonValue& row) override {
      if (said_warning(row)) return;
      out_.row(row);
      rows_.add(row);
    }
    void progress(const JsonValue& row) override { out_.progress(row.at("text").as_string()); }

   private:
    const Output& out_;
    AnalysisRows& rows_;
  } listener(out, rows);
  const int code = run_engine(&Engine::analyze, request, listener);
  out.progress_done();
  return code;
}

void write_analysis(const HtmlReport& page, const AnalysisRows& rows, OutputFolder& folder, const std::string& name) {
  JsonValue all = JsonValue::array();
  for (const JsonValue& row : rows.runs) all.push(row);
  for (const Picture& picture : rows.pictures) all.push(image_row(picture));
  for (const auto* kind : {&rows.heads, &rows.maps, &rows.mixes, &rows.growths})
    for (const JsonValue& row : *kind) all.push(row);
  write_file(folder.claim(name + ".json"), write_json(all) + "\n");
  page.write(folder.claim(name + ".html"));
  folder.keep();
}

void add_analyze(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("analyze", "rank, entropy and maps of trained attention, with an HTML page");
  static AnalyzeRequest request;
  static AnalyzeFlags own;
  const RequestFlags flags(*command, request, {{"runs", "--run,--runs"}});
  flags["runs"].required()->type_name("DIR");
  command
      ->add_option("--out", own.out, "folder of analysis.html and analysis.json (default: analysis in the first run)")
      ->type_name("DIR");
  command->add_option("--queries", own.queries, "tokens whose attention is drawn, as ROW,COLUMN (default: two)")
      ->type_name("R,C");
  flags.shown("samples").check(whole_number(1, 1 << 20));
  flags.shown("maps").check(whole_number(0, 64));
  flags.shown("layer");
  flags.shown("largest").check(whole_number(1, 1 << 14));
  flags["data"].type_name("SET");
  check_open_flags(flags);
  add_json(*command, own.json);
  command->callback([&job] { job = [] { return run_analyze(request, own); }; });
}

}  // namespace mhla::apps
