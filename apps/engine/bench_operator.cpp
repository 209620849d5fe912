// The operator with one sequence over all processes of a team, forward and backward, on inputs that are made once.
#include "apps/engine/bench_operator.h"

#include "apps/engine/sent_bytes.h"
#include "apps/engine/timed.h"
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/train/distributed/team_context.h"
#include "mhla/train/opening.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;

Layout layout_of(const BenchScaleRequest& r) {
  const auto &g = r.op_grid, &b = r.op_blocks;
  if (b.empty()) return Layout::line(g.at(0));
  if (g.size() == 2) return Layout::grid2d(g[0], g[1], b[0], b[1]);
  return Layout::grid3d({g[0], g[1], g[2]}, {b[0], b[1], b[2]});
}

}  // namespace

void measure_operator(const BenchScaleRequest& r, const TrainOptions& options, Observer& observer) {
  prepare(options, observer);
  if (r.op_sizes.size() != 6) fail("bench scale: op has ", r.op_sizes.size(), " sizes, expected B, N, H, Hkv, D and E");
  const torch::Device device = device_of(options.device);
  const bool bf16 = options.precision == "bf16";
  const ops::ContextShape shape{.B = r.op_sizes[0],
                                .H = r.op_sizes[2],
                                .Hkv = r.op_sizes[3],
                                .D = r.op_sizes[4],
                                .E = r.op_sizes[5],
                                .element = bf16 ? 2 : 4,
                                .on_cpu = !device.is_cuda()};
  ops::PhaseOptions whole;
  whole.causal = r.op_blocks.empty(), whole.layout = layout_of(r), whole.tokens = r.op_sizes[1];
  whole.normalizer = whole.causal ? Normalizer::kNone : Normalizer::kPaper;
  const Place& place = options.place;
  const ops::ContextPlan plan = labelled("bench scale", [&] {
    return ops::plan_context(shape, whole, place.ranks, ops::parse_context_method(r.context_method));
  });
  const BlockMap map(whole.layout, whole.tokens);
  const BlockRange range = blocks_of_rank(whole.layout, whole.tokens, place.ranks, place.rank);
  const auto n = static_cast<std::int64_t>(tokens_of_blocks(map, range.first, range.blocks).size());
  const auto tensor = [&](std::int64_t heads, std::int64_t size) {
    const torch::Tensor x = torch::randn({shape.B, n, heads, size}).to(device, bf16 ? torch::kBFloat16 : torch::kFloat);
    return x.requires_grad_();
  };
  const torch::Tensor mix = (torch::ones({map.blocks(), map.blocks()}) / map.blocks()).to(device).requires_grad_();
  const ops::AttentionInputs in{
      tensor(shape.H, shape.D), tensor(shape.Hkv, shape.D), tensor(shape.Hkv, shape.E), mix, {}, {}, {}};
  const torch::Tensor dout = tensor(shape.H, shape.E).detach();
  distributed::Team* const team = place.maybe_team;
  std::optional<distributed::TeamContext> group;
  if (team != nullptr) group.emplace(*team, place.ranks);
  const auto step = [&] {
    torch::Tensor out;
    if (group)
      out = ops::shared_attention(in, whole, *group, plan.method);
    else if (whole.causal)
      out = ops::chunkwise(in, {.chunk = whole.layout.block_size, .normalizer = whole.normalizer});
    else
      out = ops::bidirectional(in, {.layout = whole.layout, .normalizer = whole.normalizer});
    torch::autograd::grad({out}, {in.q, in.k, in.v, in.mix}, {dout});
  };
  for (int i = 0; i < 2; ++i) step();
  std::vector<double> each_ms;
  const std::optional<std::int64_t> all = tcp_bytes_of(team, [&] {
    for (std::int64_t i = 0; i < r.steps; ++i) each_ms.push_back(milliseconds_of(device, step));
  });
  const Timed timed = timed_of(each_ms);
  const double sent = all ? static_cast<double>(*all) / static_cast<double>(timed.runs) : -1.0;
  double most = sent;
  if (team != nullptr)
    for (const std::vector<double>& part : team->gather({sent}, "what was measured")) most = std::max(most, part[0]);
  const auto tokens = static_cast<double>(shape.B * whole.tokens);
  JsonValue row = JsonValue()
                      .set("what", "operator")  // forward and backward
                      .set("op", r.op)
                      .set("method", team == nullptr ? "one process" : ops::name_of(plan.method))
                      .set("ranks", place.ranks)
                      .set("threads", ops::num_threads())
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("ms", timed.ms)
                      .set("spread", timed.spread)
                      .set("samples", "tokens")
                      .set("samples_per_s", 1e3 * tokens / timed.ms)
                      .set("sent_formula", team == nullptr ? 0.0 : static_cast<double>(plan.bytes));
  if (most >= 0) row.set("sent", most);
  observer.row(row);
}

}  // namespace mhla::apps
