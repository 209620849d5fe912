// bench op --scaling: time per token as the sequence grows, N = 4^k with M = 2^k blocks, so that the mixing grows
// with N as well. Linear means: every time per token within 20 % of their mean.
#include <fmt/format.h>

#include <cmath>

#include "apps/bench/bench.h"
#include "apps/bench/verify.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/report.h"
#include "mhla/testing/run_case.h"

namespace mhla::apps {
namespace {

constexpr double kAllowed = 0.20;  // of the mean

struct Point {
  OpShape shape;
  double ms = 0.0, ns_per_token = 0.0;
  std::int64_t workspace = 0;
};

OpShape scaling_shape(int k) {
  OpShape shape;
  shape.N = std::int64_t{1} << (2 * k);
  shape.H = shape.Hkv = 6;
  shape.D = shape.E = 64;
  shape.layout = Layout::line(std::int64_t{1} << k);
  shape.name = fmt::format("n{}_m{}", shape.N, shape.blocks());
  return shape;
}

void write_page(const std::string& path, const std::vector<Point>& points, double mean, const BenchMachine& machine) {
  Series measured{"measured", {}, {}}, average{"mean", {}, {}, true};
  mhla::Table table{{"N", "M", "ms", "ns per token", "of the mean", "workspace"}, {}};
  for (const Point& p : points) {
    const auto N = static_cast<double>(p.shape.N);
    measured.x.push_back(N), measured.y.push_back(p.ns_per_token);
    average.x.push_back(N), average.y.push_back(mean);
    table.rows.push_back({std::to_string(p.shape.N), std::to_string(p.shape.blocks()), fmt::format("{:.1f}", p.ms),
                          fmt::format("{:.1f}", p.ns_per_token), fmt::format("{:.2f}", p.ns_per_token / mean),
                          bytes_text(p.workspace)});
  }
  LinePlot plot;
  plot.title = "Time per token";
  plot.x.label = "tokens N, with M = sqrt(N) blocks";
  plot.x.scale = AxisScale::kLog2;
  plot.y.label = "ns per token, 6 heads of 64";
  plot.y.low = 0.0;
  plot.series = {measured, average};
  plot.caption = "A flat line is linear time.";
  HtmlReport page("MHLA forward: time by length",
                  fmt::format("{}, {} threads, f32", machine.cpu.model, machine.pool.concurrency()));
  page.figure(plot).table(table).code("mhla bench op --scaling --html FILE").write(path);
}

}  // namespace

int bench_scaling(const BenchOptions& options, BenchMachine& machine, const Output& out) {
  const std::string backend = bench_backends(options, OpForm::kBidirectional, DType::kF32).front();
  if (on_device(backend)) fail("--scaling runs on the CPU, --backend is '", backend, "'");
  const TextTable table(out, {{"N", 9}, {"M", 6}, {"ms", 10}, {"ns per token", 13}, {"workspace", 11}});
  table.head();
  std::vector<Point> points;
  for (int k = 7; k <= 10; ++k) {
    Point point;
    point.shape = scaling_shape(k);
    out.progress(fmt::format("timing {}", point.shape.name));
    BenchProblem problem(point.shape, DType::kF32, Pass::kForward, backend, machine.pool, 1);
    problem.run(0);
    const std::string failure = verify_timed(point.shape, Pass::kForward, problem.set(0));
    if (!failure.empty()) {
      complain(str("bench op: ", backend, " fails its check on ", point.shape.name, ", so it is not timed: ", failure));
      return kFailed;
    }
    Samples samples;
    TimingOptions timing;
    timing.min_seconds = options.min_seconds;
    timing.min_repeats = options.repeat;
    let_workers_sleep();
    take_samples(samples, timing, [&](int call) { problem.run(call); });
    point.ms = samples.median_ms();
    point.ns_per_token = point.ms * 1e6 / static_cast<double>(point.shape.N);
    point.workspace = problem.workspace();
    points.push_back(point);
    table.row({std::to_string(point.shape.N), std::to_string(point.shape.blocks()), fmt::format("{:.2f}", point.ms),
               fmt::format("{:.1f}", point.ns_per_token), bytes_text(point.workspace)});
    out.row(JsonValue()
                .set("kind", "scaling")
                .set("shape", point.shape.name)
                .set("form", "bidirectional")
                .set("dtype", "f32")
                .set("pass", "fwd")
                .set("backend", backend)
                .set("threads", machine.pool.concurrency())
                .set("N", point.shape.N)
                .set("M", point.shape.blocks())
                .set("ms", point.ms)
                .set("best_ms", samples.best_ms())
                .set("spread", samples.spread())
                .set("ns_per_token", point.ns_per_token)
                .set("workspace_bytes", point.workspace));
  }
  double mean = 0.0, worst = 0.0;
  for (const Point& p : points) mean += p.ns_per_token / static_cast<double>(points.size());
  for (const Point& p : points) worst = std::max(worst, std::abs(p.ns_per_token / mean - 1.0));
  const bool linear = worst <= kAllowed;
  out.line(fmt::format("time per token: mean {:.1f} ns, furthest {:.0f} % off, at most {:.0f} % allowed: {}", mean,
                       100.0 * worst, 100.0 * kAllowed, linear ? "linear" : "NOT linear"));
  out.row(JsonValue()
              .set("kind", "scaling_summary")
              .set("mean_ns_per_token", mean)
              .set("furthest_from_mean", worst)
              .set("allowed", kAllowed)
              .set("ok", linear));
  if (!options.html.empty()) {
    write_page(options.html, points, mean, machine);
    out.line("plot in " + options.html);
  }
  return linear ? kDone : kFailed;
}

}  // namespace mhla::apps
