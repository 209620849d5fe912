// Times the LibTorch rivals on the inputs that were just timed by our own kernel.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/cli/engine.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

constexpr const char* kRivals[] = {"plain", "linear", "softmax"};

JsonValue no_time(const std::string& reason) {
  return JsonValue().set("ms", nullptr).set("ratio", nullptr).set("reason", reason);
}

bool wanted(const BenchOptions& options, const std::string& rival) {
  const std::vector<std::string> names = split_list(options.rivals);
  return std::find(names.begin(), names.end(), rival) != names.end() ||
         std::find(names.begin(), names.end(), "all") != names.end();
}

}  // namespace

void check_rivals(const BenchOptions& options) {
  for (const std::string& name : split_list(options.rivals)) {
    const bool known = name == "all" || std::find(std::begin(kRivals), std::end(kRivals), name) != std::end(kRivals);
    if (!known) fail("--rivals has '", name, "', expected all, plain, linear or softmax");
  }
}

JsonValue no_rivals(const std::string& reason) {
  JsonValue rivals = JsonValue::object();
  for (const char* rival : kRivals) rivals.set(rival, no_time(reason));
  return rivals;
}

JsonValue time_rivals(const BenchOptions& options, BenchMachine& machine, const OpShape& shape, Pass pass, DType dtype,
                      OpTensors& t, double our_ms) {
  JsonValue rivals = JsonValue::object();
  const Engine* engine = nullptr;
  std::optional<Tensor> q, k, v, mix, dout, out;
  for (const char* rival : kRivals) {
    if (!wanted(options, rival)) {
      rivals.set(rival, no_time("not asked for (--rivals)"));
      continue;
    }
    if (pass == Pass::kBackward) {
      rivals.set(rival, no_time("LibTorch runs its backward after a forward: compare --pass fwd+bwd"));
      continue;
    }
    // Exponentials and the matrix in memory let softmax run at a fraction of the product's rate: a third is generous.
    const double passes = pass == Pass::kBoth ? 3.5 : 1.0;
    const double seconds = softmax_flops(shape.sizes()) * passes / (20e9 * machine.pool.concurrency());
    if (std::string(rival) == "softmax" && seconds > options.rival_limit) {
      rivals.set(rival, no_time(fmt::format("one call would take about {:.1f} s, more than --rival-limit {:g}", seconds,
                                            options.rival_limit)));
      continue;
    }
    std::string reason;
    engine = open_engine(reason, Cores::kOwn);
    if (engine == nullptr) {
      rivals.set(rival, no_time(reason));
      continue;
    }
    if (!q) {
      q = t.q.to(DType::kF32), k = t.k.to(DType::kF32), v = t.v.to(DType::kF32), mix = t.mix.to(DType::kF32);
      out = t.out.to(DType::kF32);
      if (t.dout.given()) dout = t.dout.to(DType::kF32);
    }
    RivalRequest request;
    request.rival = rival;
    request.dtype = name_of(dtype);
    request.causal = shape.causal();
    request.backward = pass == Pass::kBoth;
    request.threads = machine.pool.concurrency();
    request.B = shape.B, request.N = shape.N, request.H = shape.H, request.Hkv = shape.Hkv;
    request.D = shape.D, request.E = shape.E, request.L = mix->shape().back();
    request.rank = shape.layout.rank;
    request.block_size = shape.layout.block_size;
    request.grid = shape.layout.grid, request.blocks = shape.layout.blocks;
    const auto floats = [](const std::optional<Tensor>& x) {
      return x ? static_cast<const float*>(x->data()) : static_cast<const float*>(nullptr);
    };
    request.q = floats(q), request.k = floats(k), request.v = floats(v), request.mix = floats(mix);
    request.dout = floats(dout);
    request.maybe_expected = std::string(rival) == "plain" ? floats(out) : nullptr;
    request.scale = shape.causal() ? 1.0 / std::sqrt(static_cast<double>(shape.D)) : 1.0;
    request.eps = 1e-6;
    request.min_seconds = std::min(options.min_seconds, 0.5);
    request.min_repeats = 3;
    RivalResult result;
    if (const Outcome outcome = engine->time_rival(request, result); outcome.code != 0) {
      rivals.set(rival, no_time(outcome.reason));
      continue;
    }
    rivals.set(rival, JsonValue()
                          .set("ms", result.ms)
                          .set("ratio", result.ms / our_ms)
                          .set("best_ms", result.best_ms)
                          .set("variant", result.variant)
                          .set("threads", result.threads));
  }
  if (engine != nullptr) rivals.set("library", engine->describe());
  return rivals;
}

}  // namespace mhla::apps
