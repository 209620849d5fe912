// bench op --form decode: one token at a time through the streaming form.
//   cache    one state, visited again and again
//   memory   as many states as it takes for the visited parts to be four times the last-level cache, in turn
//   latency  by position in the chunk, with 32 finished chunks behind the token: the boundary must be no cliff
// A step is compared with the bandwidth of a plain read at the same footprint, measured in the same run. On a CUDA
// device: bench_decode_device.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/bench/bench.h"
#include "apps/bench/verify.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/run_case.h"

namespace mhla::apps {
namespace {

struct DecodeSetup {
  StreamingConfig config;
  Tensor mix;  // [L, L]
  std::string backend;
};

DecodeSetup make_setup(const OpShape& shape, DType dtype, const std::string& backend, std::int64_t L) {
  DecodeSetup setup;
  StreamingConfig& c = setup.config;
  c.H = shape.H, c.Hkv = shape.Hkv, c.D = shape.D, c.E = shape.E, c.chunk = shape.chunk(), c.dtype = dtype;
  Random random(5);
  setup.mix = Tensor(DType::kF32, {L, L});
  setup.mix.uniform(random, 0.1, 1.0);
  setup.backend = backend;
  return setup;
}

// q, k, v and out of `T` tokens of `B` sequences.
struct Tokens {
  Tensor q, k, v, out;
  Tokens(const StreamingConfig& c, std::int64_t B, std::int64_t T)
      : q(c.dtype, {B, T, c.H, c.D}),
        k(c.dtype, {B, T, c.Hkv, c.D}),
        v(c.dtype, {B, T, c.Hkv, c.E}),
        out(c.dtype, {B, T, c.H, c.E}) {
    Random random(11);
    q.normal(random), k.normal(random), v.normal(random);
  }
  void append(std::span<StreamingState* const> states, const RunOptions& run) {
    StreamingParams params;
    params.states = states;
    params.q = q.view(), params.k = k.view(), params.v = v.view(), params.out = out.view();
    streaming_append(params, run);
  }
};

std::vector<StreamingState*> pointers_to(std::vector<StreamingState>& states, std::size_t begin, std::size_t count) {
  std::vector<StreamingState*> pointers;
  for (std::size_t i = begin; i < begin + count; ++i) pointers.push_back(&states[i]);
  return pointers;
}

// Decode must agree, bit for bit, with one chunkwise pass over the same tokens.
std::string verify_decode(const OpShape& shape, DType dtype, const std::string& backend, Executor& executor) {
  const std::int64_t N = 2 * shape.chunk() + 3;
  DecodeSetup setup = make_setup(shape, dtype, backend, 3);
  const StreamingConfig& c = setup.config;
  Tokens all(c, 1, N), one(c, 1, 1);
  RunOptions run;
  run.candidate = backend;
  run.maybe_executor = &executor;
  ChunkwiseParams params;
  params.q = all.q.view(), params.k = all.k.view(), params.v = all.v.view(), params.mix = setup.mix.view();
  params.chunk = c.chunk;
  chunkwise_forward(params, all.out.view(), run);
  StreamingState state(c, setup.mix.view(), backend);
  StreamingState* const pointer = &state;
  for (std::int64_t t = 0; t < N; ++t) {
    const auto copy = [t](const Tensor& from, Tensor& to) {
      for (std::int64_t i = 0; i < to.numel(); ++i) to.set(i, from.at(t * to.numel() + i));
    };
    copy(all.q, one.q), copy(all.k, one.k), copy(all.v, one.v);
    one.append({&pointer, 1}, run);
    for (std::int64_t i = 0; i < one.out.numel(); ++i) {
      const double got = one.out.at(i), want = all.out.at(t * one.out.numel() + i);
      if (got == want) continue;  // NaN is no agreement either
      return fmt::format("token {}, element {}: decode gave {}, one pass {}", t, i, got, want);
    }
  }
  return {};
}

struct LevelResult {
  Samples step;                     // all calls
  double step_gbytes_per_s = 0.0;   // median over positions of bytes / median time
  double total_gbytes_per_s = 0.0;  // bytes / time over a whole chunk, its boundary included
  double read_gbytes_per_s = 0.0;
  std::int64_t states = 0;
};

// Decodes one whole chunk of every state after a first chunk of prefill, `rounds` times.
LevelResult time_level(const DecodeSetup& setup, const OpShape& shape, Executor& executor, std::int64_t states,
                       std::int64_t batch, int rounds) {
  const StreamingConfig& c = setup.config;
  RunOptions run;
  run.candidate = setup.backend;
  run.maybe_executor = &executor;
  std::vector<StreamingState> fresh(1, StreamingState(c, setup.mix.view(), setup.backend));
  Tokens prefill(c, 1, c.chunk), tokens(c, batch, 1);
  prefill.append(pointers_to(fresh, 0, 1), run);
  std::vector<StreamingState> pool;
  std::vector<Samples> by_position(static_cast<std::size_t>(c.chunk));
  LevelResult result;
  result.states = states;
  double bytes = 0.0;
  for (int round = 0; round < rounds; ++round) {
    pool.assign(static_cast<std::size_t>(states), fresh.front());
    for (std::int64_t position = 0; position < c.chunk; ++position) {
      for (std::int64_t first = 0; first < states; first += batch) {
        const auto visited = pointers_to(pool, static_cast<std::size_t>(first), static_cast<std::size_t>(batch));
        const double before = now_seconds();
        tokens.append(visited, run);
        const double seconds = now_seconds() - before;
        by_position[static_cast<std::size_t>(position)].add(seconds);
        result.step.add(seconds);
      }
    }
  }
  std::vector<double> rates;
  double seconds = 0.0;
  for (std::int64_t position = 0; position < c.chunk; ++position) {
    const double step_bytes =
        static_cast<double>(batch) * count_decode(shape.sizes(), position + 1, size_of(c.dtype)).bytes;
    const double median = by_position[static_cast<std::size_t>(position)].quantile(0.5);
    rates.push_back(step_bytes / median * 1e-9);
    bytes += step_bytes;
    seconds += median;
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
  result.step_gbytes_per_s = rates[rates.size() / 2];
  result.total_gbytes_per_s = bytes / seconds * 1e-9;
  let_workers_sleep();
  const auto visit = static_cast<std::int64_t>(bytes / static_cast<double>(c.chunk));
  result.read_gbytes_per_s = read_bandwidth(executor, visit, states / batch);
  return result;
}

struct LatencyResult {
  double median_us = 0.0, slowest_us = 0.0;
  std::int64_t slowest_position = 0;
};

// 31 chunks behind, the 32nd decoded: 100 times over, each position of the chunk by its median.
LatencyResult time_latency(const OpShape& shape, DType dtype, const std::string& backend, Executor& executor) {
  constexpr std::int64_t kChunks = 32;
  constexpr int kRounds = 100;
  const DecodeSetup setup = make_setup(shape, dtype, backend, kChunks + 1);
  const StreamingConfig& c = setup.config;
  RunOptions run;
  run.candidate = backend;
  run.maybe_executor = &executor;
  std::vector<StreamingState> start(1, StreamingState(c, setup.mix.view(), backend));
  Tokens prefill(c, 1, c.chunk), token(c, 1, 1);
  for (std::int64_t i = 0; i + 2 < kChunks; ++i) prefill.append(pointers_to(start, 0, 1), run);
  std::vector<Samples> by_position(static_cast<std::size_t>(c.chunk));
  for (int round = 0; round < kRounds; ++round) {
    std::vector<StreamingState> state(1, start.front());
    const auto pointer = pointers_to(state, 0, 1);
    // The chunk before is decoded untimed, so that what its completion leaves to later tokens is in the count.
    for (std::int64_t position = 0; position < c.chunk; ++position) token.append(pointer, run);
    for (std::int64_t position = 0; position < c.chunk; ++position) {
      const double before = now_seconds();
      token.append(pointer, run);
      by_position[static_cast<std::size_t>(position)].add(now_seconds() - before);
    }
  }
  LatencyResult result;
  Samples medians;
  for (std::int64_t position = 0; position < c.chunk; ++position) {
    const double us = by_position[static_cast<std::size_t>(position)].quantile(0.5) * 1e6;
    medians.add(us);
    if (us > result.slowest_us) result.slowest_us = us, result.slowest_position = position;
  }
  result.median_us = medians.quantile(0.5);
  return result;
}

class DecodeBench {
 public:
  DecodeBench(const BenchOptions& options, BenchMachine& machine, const OpShape& shape, const Output& out)
      : options_(options), machine_(machine), shape_(shape), out_(out) {}

  int run(DType dtype, const std::string& backend) {
    const std::string failure = verify_decode(shape_, dtype, backend, machine_.pool);
    if (!failure.empty()) {
      complain(str("bench op: decode by ", backend, " fails its check, so it is not timed: ", failure));
      out_.row(head(dtype, backend, "all").set("verified", false).set("failure", failure).set("ms", nullptr));
      return kFailed;
    }
    const std::int64_t batch = std::max<std::int64_t>(1, options_.shape.batch);
    const DecodeSetup setup = make_setup(shape_, dtype, backend, 3);
    level("cache", dtype, setup, batch, batch, 40);
    const double visited = count_decode(shape_.sizes(), shape_.chunk() / 2, size_of(dtype)).bytes;
    const double wanted = 4.0 * static_cast<double>(last_level_cache(machine_.cpu));
    const std::int64_t groups = static_cast<std::int64_t>(std::ceil(wanted / (visited * static_cast<double>(batch))));
    const std::int64_t states = groups * batch;
    check_memory(setup, states);
    level("memory", dtype, setup, states, batch, 2);
    latency(dtype, backend);
    return kDone;
  }

 private:
  JsonValue head(DType dtype, const std::string& backend, const char* level_name) const {
    return JsonValue()
        .set("shape", shape_.name)
        .set("form", "decode")
        .set("dtype", name_of(dtype))
        .set("pass", "fwd")
        .set("backend", backend)
        .set("threads", machine_.pool.concurrency())
        .set("H", shape_.H)
        .set("Hkv", shape_.Hkv)
        .set("D", shape_.D)
        .set("E", shape_.E)
        .set("chunk", shape_.chunk())
        .set("level", level_name);
  }

  void check_memory(const DecodeSetup& setup, std::int64_t states) const {
    const StreamingState probe(setup.config, setup.mix.view(), setup.backend);
    expect_fits("bench op: decode from memory",
                MemoryEstimate().add("states", static_cast<double>(probe.bytes()) * static_cast<double>(states)));
  }

  void level(const char* name, DType dtype, const DecodeSetup& setup, std::int64_t states, std::int64_t batch,
             int rounds) {
    out_.progress(fmt::format("decode, state in {}", name));
    const LevelResult r = time_level(setup, shape_, machine_.pool, states, batch, rounds);
    const double of_read = r.step_gbytes_per_s / r.read_gbytes_per_s;
    const double of_read_total = r.total_gbytes_per_s / r.read_gbytes_per_s;
    out_.line(
        fmt::format("{} decode {} {} state in {}: {:.2f} us a step of {} sequence{} ({} states), {:.1f} GB/s, {:.2f} "
                    "of the {:.1f} GB/s "
                    "read at that footprint; with the chunk's boundary {:.2f}",
                    shape_.name, name_of(dtype), setup.backend, name, r.step.median_ms() * 1e3, batch,
                    batch == 1 ? "" : "s", r.states, r.step_gbytes_per_s, of_read, r.read_gbytes_per_s, of_read_total));
    out_.row(head(dtype, setup.backend, name)
                 .set("verified", true)
                 .set("states", r.states)
                 .set("sequences_per_step", batch)
                 .set("ms", r.step.median_ms())
                 .set("best_ms", r.step.best_ms())
                 .set("spread", r.step.spread())
                 .set("repeats", r.step.count())
                 .set("bytes_formula",
                      "mixed prefix Hkv D E 4 + open chunk Hkv t (D + E) + q and out H (D + E), in elements")
                 .set("gbytes_per_s", r.step_gbytes_per_s)
                 .set("read_gbytes_per_s", r.read_gbytes_per_s)
                 .set("of_bandwidth", of_read)
                 .set("of_bandwidth_with_boundary", of_read_total)
                 .set("copy_gbytes_per_s", machine_.copy_gbytes_per_s)
                 .set("cpu", machine_.cpu.model)
                 .set("compiler", compiler_text()));
  }

  void latency(DType dtype, const std::string& backend) {
    out_.progress("decode, latency by position");
    const LatencyResult r = time_latency(shape_, dtype, backend, machine_.pool);
    const double ratio = r.slowest_us / r.median_us;
    out_.line(fmt::format(
        "{} decode {} {} latency at M = 32: median token {:.2f} us; slowest position {} of {}, median of 100 chunks, "
        "{:.2f} us: {:.1f} times",
        shape_.name, name_of(dtype), backend, r.median_us, r.slowest_position, shape_.chunk(), r.slowest_us, ratio));
    out_.row(head(dtype, backend, "latency")
                 .set("verified", true)
                 .set("M", 32)
                 .set("ms", r.median_us * 1e-3)
                 .set("slowest_ms", r.slowest_us * 1e-3)
                 .set("slowest_position", r.slowest_position)
                 .set("slowest_over_median", ratio));
  }

  const BenchOptions& options_;
  BenchMachine& machine_;
  const OpShape& shape_;
  const Output& out_;
};

}  // namespace

int bench_decode(const BenchOptions& options, BenchMachine& machine, const OpShape& shape, const Output& out) {
  int code = kDone;
  DecodeBench bench(options, machine, shape, out);
  for (const std::string& dtype_name : split_list(options.dtypes)) {
    const DType dtype = parse_dtype(dtype_name);
    for (const std::string& backend : bench_backends(options, OpForm::kDecode, dtype))
      code = std::max(code, on_device(backend) ? bench_decode_device(options, shape, dtype, backend, out)
                                               : bench.run(dtype, backend));
  }
  return code;
}

}  // namespace mhla::apps
