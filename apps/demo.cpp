// mhla demo: why the operator exists and what it costs, on the machine at hand. First the attention matrices of one
// head over a 32 x 32 image of tokens: softmax, global linear attention, and MHLA by the number of blocks. Then the
// time of each by the number of tokens.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "apps/bench.h"
#include "apps/bench_verify.h"
#include "apps/commands.h"
#include "apps/demo_field.h"
#include "mhla/analysis/attention_matrix.h"
#include "mhla/analysis/attention_stats.h"
#include "mhla/core/error.h"
#include "mhla/io/report.h"
#include "mhla/kernels/mixing/mixing.h"

namespace mhla::apps {
namespace {

constexpr std::int64_t kSide = 32, kTokens = kSide * kSide, kSize = 64;
constexpr std::int64_t kQuery = 11 * kSide + 20;  // the token whose view is drawn

struct DemoOptions {
  std::string html = "mhla-demo.html";
  int threads = 0;
  double rival_limit = 3.0;
  bool rivals = true;
  bool json = false;
};

// One attention matrix and what is said about it.
struct Seen {
  std::string name;
  std::int64_t M = 0;      // 0: not MHLA
  std::int64_t bound = 0;  // the rank cannot be larger
  AttentionSummary summary;
  double reach = 0.0;        // distance in tokens at which a query looks, averaged by weight
  std::vector<double> view;  // [32, 32] of one query
};

Seen look_at(std::string name, std::int64_t M, std::int64_t bound, const Matrix& A) {
  Seen seen{std::move(name), M, bound, summarize_attention(A), 0.0, {}};
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double sum = 0.0, away = 0.0;
    for (std::int64_t s = 0; s < kTokens; ++s) {
      const auto rows = static_cast<double>(t / kSide - s / kSide),
                 columns = static_cast<double>(t % kSide - s % kSide);
      away += A.at(t, s) * std::hypot(rows, columns);
      sum += A.at(t, s);
    }
    seen.reach += away / sum / static_cast<double>(kTokens);
  }
  const double* row = A.row(kQuery);
  seen.view.assign(row, row + kTokens);
  return seen;
}

Matrix mhla_matrix(const Matrix& q, const Matrix& k, std::int64_t side) {
  const Layout layout = Layout::grid2d(kSide, kSide, side, side);
  std::vector<std::int64_t> block_of(kTokens);
  const BlockMap map(layout, kTokens);
  for (std::int64_t b = 0; b < map.blocks(); ++b)
    for (std::int64_t run = 0; run < map.runs(b); ++run)
      for (std::int64_t i = 0; i < map.run_length(b); ++i)
        block_of[static_cast<std::size_t>(map.run_start(b, run) + i)] = b;
  Tensor mix(DType::kF64, {side * side, side * side});
  // Falls off with the distance of blocks, at the same rate in tokens for every M: about five tokens.
  MixInit init;
  init.transform = MixTransform::kExp;
  init.exp_sigma = 5.0 * static_cast<double>(side) / static_cast<double>(kSide);
  init_mix(init, BlockGrid::grid2d(side, side), mix.view());
  return mhla_attention(q, k, block_of, Matrix(mix.view()));
}

std::vector<Seen> look_at_all(const Output& out) {
  const DemoField field = make_field(kSide, kSize, 42);
  std::vector<Seen> all;
  out.progress("softmax attention");
  all.push_back(look_at("softmax", 0, kTokens, softmax_attention(field.q, field.k)));
  out.progress("linear attention");
  all.push_back(look_at("linear", 0, kSize, linear_attention(field.q, field.k)));
  for (const std::int64_t side : {2, 4, 8, 16}) {
    const std::int64_t M = side * side, tokens = kTokens / M;
    out.progress(fmt::format("MHLA, {} blocks", M));
    all.push_back(look_at(fmt::format("MHLA M={}", M), M, std::min(kTokens, M * std::min(tokens, kSize)),
                          mhla_matrix(field.q, field.k, side)));
  }
  return all;
}

void print_matrices(const std::vector<Seen>& all, const Output& out) {
  out.line(
      "What one head sees: 1,024 tokens (32 x 32), head size 64, random q and k that vary smoothly over the image.");
  out.line();
  const TextTable table(
      out, {{"attention", -12}, {"rank", 6}, {"at most", 8}, {"effective rank", 15}, {"entropy", 9}, {"reach", 7}});
  table.head();
  for (const Seen& s : all) {
    table.row({s.name, std::to_string(s.summary.rank), std::to_string(s.bound),
               fmt::format("{:.1f}", s.summary.effective_rank), fmt::format("{:.3f}", s.summary.entropy.normalized),
               fmt::format("{:.1f}", s.reach)});
    out.row(JsonValue()
                .set("kind", "attention")
                .set("name", s.name)
                .set("M", s.M > 0 ? JsonValue(s.M) : JsonValue())
                .set("rank", s.summary.rank)
                .set("rank_bound", s.bound)
                .set("effective_rank", s.summary.effective_rank)
                .set("entropy", s.summary.entropy.normalized)
                .set("reach_tokens", s.reach));
  }
  out.line();
  out.line("rank: directions the matrix can tell apart. Linear attention cannot pass the head size, 64, whatever N.");
  out.line(
      "entropy: 1 means every token looks at everything alike, 0 at one place. reach: how far a token looks, in "
      "tokens.");
  out.line("MHLA mixes per-block summaries with weights of its own for every query block: rank comes back, and focus.");
  out.line();
}

struct SpeedRow {
  std::int64_t N = 0, M = 0;
  double ours_ms = 0.0;
  double plain_ms = 0.0, linear_ms = 0.0, softmax_ms = 0.0;  // 0: no time
};

SpeedRow time_length(std::int64_t side, std::int64_t blocks, const DemoOptions& options, BenchMachine& machine,
                     const std::string& backend, const Output& out, std::string& reason) {
  OpShape shape;
  shape.H = shape.Hkv = 6;
  shape.N = side * side;
  shape.layout = Layout::grid2d(side, side, blocks, blocks);
  shape.name = fmt::format("{}x{}", side, side);
  out.progress(fmt::format("timing {} tokens", shape.N));
  BenchProblem problem(shape, DType::kF32, Pass::kForward, backend, machine.pool, 0);
  problem.run(0);
  const std::string failure = verify_timed(shape, Pass::kForward, problem.set(0));
  if (!failure.empty()) throw std::runtime_error(str("demo: ", backend, " at N = ", shape.N, ": ", failure));
  Samples samples;
  let_workers_sleep();
  take_samples(samples, {.min_seconds = 0.3, .min_repeats = 5}, [&](int call) { problem.run(call); });
  SpeedRow row{shape.N, blocks * blocks, samples.median_ms()};

  BenchOptions bench;
  bench.rivals = options.rivals ? "all" : "";
  bench.min_seconds = 0.2;
  bench.rival_limit = options.rival_limit;
  const JsonValue rivals = time_rivals(bench, machine, shape, Pass::kForward, DType::kF32, problem.set(0), row.ours_ms);
  const auto ms = [&](const char* name) {
    const JsonValue& value = rivals.at(name).at("ms");
    if (value.is_null() && reason.empty()) reason = rivals.at(name).at("reason").as_string();
    return value.is_null() ? 0.0 : value.as_double();
  };
  row.plain_ms = ms("plain"), row.linear_ms = ms("linear"), row.softmax_ms = ms("softmax");
  return row;
}

std::string ms_text(double ms) {
  if (ms <= 0.0) return "-";
  return ms < 10.0 ? fmt::format("{:.3f}", ms) : ms < 100.0 ? fmt::format("{:.1f}", ms) : fmt::format("{:.0f}", ms);
}

std::vector<SpeedRow> time_all(const DemoOptions& options, BenchMachine& machine, const std::string& backend,
                               const Output& out, std::string& reason) {
  out.line(fmt::format("What it costs: one forward, 6 heads of 64, f32, {} threads, {}, milliseconds.",
                       machine.pool.concurrency(), machine.cpu.model));
  out.line();
  const TextTable table(out, {{"N", 7},
                              {"M", 5},
                              {"MHLA (mhla)", 12},
                              {"MHLA (LibTorch)", 16},
                              {"linear (LibTorch)", 18},
                              {"softmax (LibTorch)", 19},
                              {"softmax / mhla", 15}});
  table.head();
  std::vector<SpeedRow> rows;
  for (const auto& [side, blocks] :
       {std::pair<std::int64_t, std::int64_t>{16, 4}, {32, 4}, {64, 8}, {128, 8}, {256, 16}}) {
    const SpeedRow row = time_length(side, blocks, options, machine, backend, out, reason);
    rows.push_back(row);
    table.row({std::to_string(row.N), std::to_string(row.M), ms_text(row.ours_ms), ms_text(row.plain_ms),
               ms_text(row.linear_ms), ms_text(row.softmax_ms),
               row.softmax_ms > 0.0 ? fmt::format("{:.0f}x", row.softmax_ms / row.ours_ms) : "-"});
    out.row(JsonValue()
                .set("kind", "speed")
                .set("N", row.N)
                .set("M", row.M)
                .set("threads", machine.pool.concurrency())
                .set("backend", backend)
                .set("ms", row.ours_ms)
                .set("plain_ms", number_or_null(row.plain_ms))
                .set("linear_ms", number_or_null(row.linear_ms))
                .set("softmax_ms", number_or_null(row.softmax_ms)));
  }
  if (!reason.empty()) out.line("where a time is missing: " + reason);
  return rows;
}

void write_page(const DemoOptions& options, const std::vector<Seen>& seen, const std::vector<SpeedRow>& speed,
                const std::string& reason, const BenchMachine& machine) {
  HtmlReport page("MHLA: the focus that linear attention lost",
                  fmt::format("{}, {} threads, {}", machine.cpu.model, machine.pool.concurrency(), compiler_text()));
  page.paragraph(
      "Softmax attention compares every token with every other: its cost grows with the square of the sequence. Linear "
      "attention keeps one summary of all keys and values instead, so its cost grows with the length alone, but every "
      "query must make do with the same summary. MHLA cuts the sequence into M blocks, keeps one summary for each, and "
      "lets every query block weigh all summaries in its own way.");
  page.heading("What one head sees");
  page.paragraph(
      "1,024 tokens on a 32 x 32 grid, head size 64. q and k are random numbers that vary smoothly over the grid, as "
      "features of an image do, with noise of their own; nothing is trained. The mixing weights of MHLA are "
      "initial values too: they fall off exponentially with the distance of blocks, over about five tokens at every "
      "M.");
  mhla::Table table{{"attention", "rank", "rank at most", "effective rank", "entropy", "reach in tokens"}, {}};
  BarChart ranks, entropies;
  BarSeries rank_bars{"rank", {}}, entropy_bars{"entropy", {}};
  for (const Seen& s : seen) {
    table.rows.push_back({s.name, std::to_string(s.summary.rank), std::to_string(s.bound),
                          fmt::format("{:.1f}", s.summary.effective_rank),
                          fmt::format("{:.3f}", s.summary.entropy.normalized), fmt::format("{:.1f}", s.reach)});
    ranks.groups.push_back(s.name), entropies.groups.push_back(s.name);
    rank_bars.values.push_back(static_cast<double>(s.summary.rank));
    entropy_bars.values.push_back(s.summary.entropy.normalized);
  }
  ranks.title = "Rank of the attention matrix";
  ranks.value_label = "of 1,024";
  ranks.series = {rank_bars};
  entropies.title = "Entropy of its rows";
  entropies.value_label = "1: looks everywhere alike, 0: at one token";
  entropies.series = {entropy_bars};
  page.table(table).figures({ranks, entropies});
  page.paragraph(
      "Rank counts the directions a matrix can tell apart. That of linear attention cannot pass the head size, 64, "
      "however long the sequence: this is the collapse. With M blocks the bound is M times as high, up to that of "
      "softmax. "
      "Entropy says the same in another way: a query of linear attention looks almost everywhere alike, one of MHLA "
      "looks somewhere again. Training the mixing weights and the features is what sharpens it further.");
  page.subheading("Where one token looks");
  std::vector<Figure> views;
  for (const Seen& s : seen) {
    if (s.M == 4 || s.M == 256) continue;
    HeatMap map;
    map.title = s.name;
    map.rows = map.columns = kSide;
    map.values = s.view;
    views.emplace_back(map);
  }
  page.figures(views);
  page.paragraph(
      fmt::format("Weights that the token at row {}, column {} gives to all tokens.", kQuery / kSide, kQuery % kSide));

  page.heading("What it costs");
  mhla::Table times{
      {"N", "M", "MHLA, mhla (ms)", "MHLA, LibTorch (ms)", "linear, LibTorch (ms)", "softmax, LibTorch (ms)"}, {}};
  Series ours{"MHLA, this library", {}, {}}, plain{"MHLA, plain LibTorch", {}, {}}, linear{"linear, LibTorch", {}, {}},
      softmax{"softmax, LibTorch", {}, {}};
  for (const SpeedRow& r : speed) {
    times.rows.push_back({std::to_string(r.N), std::to_string(r.M), ms_text(r.ours_ms), ms_text(r.plain_ms),
                          ms_text(r.linear_ms), ms_text(r.softmax_ms)});
    for (const auto& [series, ms] : {std::pair<Series*, double>{&ours, r.ours_ms},
                                     {&plain, r.plain_ms},
                                     {&linear, r.linear_ms},
                                     {&softmax, r.softmax_ms}}) {
      if (ms <= 0.0) continue;
      series->x.push_back(static_cast<double>(r.N));
      series->y.push_back(ms);
    }
  }
  LinePlot plot;
  plot.title = "Time of one forward by length";
  plot.x.label = "tokens N", plot.x.scale = AxisScale::kLog2;
  plot.y.label = "milliseconds", plot.y.scale = AxisScale::kLog10;
  for (const Series& series : {ours, plain, linear, softmax})
    if (!series.x.empty()) plot.series.push_back(series);
  plot.caption = "6 heads of 64, f32, batch 1; the fastest of several ways to write each rival.";
  page.figure(plot).table(times);
  if (!reason.empty()) page.paragraph("Where a time is missing: " + reason);
  page.code("mhla demo --html FILE\nmhla bench op --shape dit_s_4096 --rivals all");
  page.write(options.html);
}

int run_demo(const DemoOptions& options) {
  const Output out(options.json);
  BenchOptions bench;
  const std::string backend = bench_backends(bench, OpForm::kBidirectional, DType::kF32).front();
  const std::vector<Seen> seen = look_at_all(out);
  print_matrices(seen, out);
  BenchMachine machine(options.threads > 0 ? options.threads : hardware_threads());
  std::string reason;
  const std::vector<SpeedRow> speed = time_all(options, machine, backend, out, reason);
  write_page(options, seen, speed, reason, machine);
  out.line();
  out.line("with plots: " + options.html);
  return kDone;
}

}  // namespace

void add_demo(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("demo", "see it: rank, entropy and speed, with an HTML page");
  static DemoOptions o;
  command->add_option("--html", o.html, "where the page goes")->type_name("FILE")->capture_default_str();
  command->add_option("--threads", o.threads, "threads (default: all)")->check(CLI::Range(1, 1024));
  command->add_option("--rival-limit", o.rival_limit, "skip a rival whose single call would take longer, in seconds")
      ->capture_default_str();
  command->add_flag("!--no-rivals", o.rivals, "leave LibTorch out");
  command->add_flag("--json", o.json, "one JSON object per line on stdout, text on stderr");
  command->callback([&job] { job = [] { return run_demo(o); }; });
}

}  // namespace mhla::apps
