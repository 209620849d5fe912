#include "apps/bench/demo_speed.h"

#include <fmt/format.h>

#include "apps/bench/verify.h"
#include "apps/cli/host.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

SpeedRow time_length(std::int64_t side, std::int64_t blocks, double rival_limit, BenchMachine& machine,
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
  bench.rivals = "all";
  bench.min_seconds = 0.2;
  bench.rival_limit = rival_limit;
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

}  // namespace

SpeedByLength time_by_length(int threads, double rival_limit, const Output& out) {
  const BenchOptions options;
  const std::string backend = bench_backends(options, OpForm::kBidirectional, DType::kF32).front();
  BenchMachine machine(threads_for(threads));
  SpeedByLength speed;
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
  for (const auto& [side, blocks] :
       {std::pair<std::int64_t, std::int64_t>{16, 4}, {32, 4}, {64, 8}, {128, 8}, {256, 16}}) {
    const SpeedRow row = time_length(side, blocks, rival_limit, machine, backend, out, speed.reason);
    speed.rows.push_back(row);
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
  if (!speed.reason.empty()) out.line("where a time is missing: " + speed.reason);
  return speed;
}

void add_speed(HtmlReport& page, const SpeedByLength& speed) {
  mhla::Table times{
      {"N", "M", "MHLA, mhla (ms)", "MHLA, LibTorch (ms)", "linear, LibTorch (ms)", "softmax, LibTorch (ms)"}, {}};
  Series ours{"MHLA, this library", {}, {}}, plain{"MHLA, plain LibTorch", {}, {}}, linear{"linear, LibTorch", {}, {}},
      softmax{"softmax, LibTorch", {}, {}};
  for (const SpeedRow& r : speed.rows) {
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
  if (!speed.reason.empty()) page.paragraph("Where a time is missing: " + speed.reason);
}

}  // namespace mhla::apps
