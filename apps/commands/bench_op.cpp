// mhla bench op: verifies, then times one operator call, and holds it against the machine's own limits and the
// LibTorch rivals, all measured in the same run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "apps/bench/bench.h"
#include "apps/bench/device.h"
#include "apps/bench/verify.h"
#include "apps/cli/flags.h"
#include "apps/cli/limit_flags.h"
#include "apps/commands.h"
#include "apps/commands/bench_data.h"
#include "apps/commands/bench_model.h"
#include "apps/commands/bench_scale.h"
#include "apps/commands/bench_text.h"
#include "mhla/core/memory.h"
#include "mhla/io/file.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/testing/run_case.h"

namespace mhla::apps {

JsonValue number_or_null(double value) { return value > 0.0 ? JsonValue(value) : JsonValue(); }

Measured measure(const BenchOptions& options, BenchMachine& machine, const std::function<void(int)>& work) {
  const int rounds = std::clamp(options.repeat, 1, 5);
  Measured measured;
  TimingOptions timing;
  timing.min_seconds = options.min_seconds / rounds;
  timing.min_repeats = (options.repeat + rounds - 1) / rounds;
  work(0);
  work(1);
  for (int round = 0; round < rounds; ++round) {
    let_workers_sleep();
    for (int i = 0; i < 2; ++i) measured.gemm_gflops = std::max(measured.gemm_gflops, machine.gemm.sample());
    let_workers_sleep();
    take_samples(measured.samples, timing, work);
  }
  return measured;
}

std::vector<std::string> bench_backends(const BenchOptions& options, OpForm form, DType dtype) {
  const std::vector<std::string> available = available_candidates(form, dtype);
  std::vector<std::string> names = split_list(options.backends);
  if (names.size() == 1 && names.front() == "all") return available;
  if (names.size() == 1 && names.front() == "gpu") {
    require_available("cuda", form, dtype, "bench op");
    names.clear();
    std::copy_if(available.begin(), available.end(), std::back_inserter(names),
                 [](const std::string& name) { return on_device(name); });
    return names;
  }
  for (const std::string& name : names) require_available(name, form, dtype, "bench op");
  if (!names.empty()) return names;
  for (const std::string& name : available)
    if (name != "ref" && !on_device(name)) return {name};
  fail("bench op: no fast candidate for ", name_of(form), " in ", name_of(dtype),
       "; --backend ref times the reference");
}

namespace {

// In words what memory_bound() computes; the reference keeps f64 copies of its inputs and promises nothing.
constexpr const char* kMemoryFormula =
    "heads at once * 4 M (D E + D) bytes of padded summaries, twice in backward, + 1 MiB per thread; heads at once: "
    "per "
    "thread those of 1 MiB, at least 1, or together those of 32 MiB; once: packed mix, 4 M^2, in backward one dmix per "
    "sequence and head; bidirectional: 8 N";

// What was measured of one call, on the CPU or on a device.
struct Timed {
  Samples samples;
  double copy_gbytes_per_s = 0.0;
  double gemm_gflops = 0.0;  // best; 0: not measured
  std::string gemm_reason;
  std::int64_t workspace = 0, kept = 0, extra = -1;  // bytes; extra negative: unknown
  double formula = 0.0;                              // bytes; 0: none is promised
  int sets = 1;
  bool backward_by_list = false;
  double host_ms = 0.0;  // until a call on a device returned; 0 on the CPU
  JsonValue rivals;
};

class OpBench {
 public:
  OpBench(const BenchOptions& options, BenchMachine& machine, const Output& out)
      : options_(options),
        machine_(machine),
        out_(out),
        table_(out, {{"shape", -18},
                     {"form", -13},
                     {"pass", -8},
                     {"dtype", -5},
                     {"backend", -7},
                     {"ms", 10},
                     {"best", 10},
                     {"spread", 7},
                     {"GFLOP/s", 9},
                     {"of GEMM", 8},
                     {"GB/s", 7},
                     {"floor ms", 9},
                     {"of floor", 9},
                     {"plain", 8},
                     {"linear", 8},
                     {"softmax", 8}}) {}

  int run(const OpShape& shape, Pass pass, DType dtype, const std::string& backend) {
    if (!headed_) table_.head();
    headed_ = true;
    out_.progress(fmt::format("verifying {} {} {} {}", shape.name, name_of(pass), name_of(dtype), backend));
    if (on_device(backend)) return run_on_device(shape, pass, dtype, backend);
    BenchProblem problem(shape, dtype, pass, backend, machine_.pool, options_.sets);
    std::string failure = reduced(shape, dtype, backend);
    problem.run(0);
    if (failure.empty()) failure = verify_timed(shape, pass, problem.set(0));
    if (!failure.empty()) return refuse(shape, pass, dtype, backend, failure);

    Timed timed;
    timed.extra = peak_extra_bytes([&] { problem.run_allocating(); });
    out_.progress(fmt::format("timing {} {} {} {}", shape.name, name_of(pass), name_of(dtype), backend));
    const Measured measured = measure(options_, machine_, [&](int call) { problem.run(call); });
    timed.samples = measured.samples;
    timed.gemm_gflops = measured.gemm_gflops;
    timed.gemm_reason = machine_.gemm.reason();
    timed.copy_gbytes_per_s = machine_.copy_gbytes_per_s;
    timed.workspace = problem.workspace();
    timed.formula = backend == "ref" ? 0.0 : memory_bound(shape.sizes(), pass, machine_.pool.concurrency());
    timed.sets = problem.sets();
    out_.progress(fmt::format("rivals of {} {}", shape.name, name_of(pass)));
    timed.rivals = time_rivals(options_, machine_, shape, pass, dtype, problem.set(0), timed.samples.median_ms());
    report(shape, pass, dtype, backend, timed);
    return kDone;
  }

 private:
  // The same for every pass: computed once.
  const std::string& reduced(const OpShape& shape, DType dtype, const std::string& backend) {
    const auto [found, fresh] = reduced_.try_emplace({shape.name, dtype, backend});
    if (fresh) found->second = verify_reduced(shape, dtype, backend);
    return found->second;
  }

  int run_on_device(const OpShape& shape, Pass pass, DType dtype, const std::string& backend) {
    constexpr int kDevice = 0;
    std::optional<DeviceProblem> problem;
    try {
      problem.emplace(shape, dtype, pass, backend, kDevice);
    } catch (
        const NoCandidate& error) {  // a candidate for one kind of card may step aside for a shape: said, not failed
      return step_aside(shape, pass, dtype, backend, error.what());
    }
    std::string failure = reduced(shape, dtype, backend);
    problem->run();
    if (failure.empty()) failure = verify_timed(shape, pass, problem->bring_back());
    if (!failure.empty()) return refuse(shape, pass, dtype, backend, failure);

    out_.progress(fmt::format("timing {} {} {} {}", shape.name, name_of(pass), name_of(dtype), backend));
    if (!machine_.device_copy_gbytes_per_s) {
      machine_.device_copy_gbytes_per_s = device_copy_bandwidth(kDevice);
      const DeviceFacts facts = device_facts(kDevice);
      out_.line(fmt::format("cuda:{} {}, driver for {}, copy {:.0f} GB/s; device time, {} written before each call",
                            kDevice, facts.name, version_text(facts.driver_version), *machine_.device_copy_gbytes_per_s,
                            bytes_text(problem->flushed())));
    }
    Timed timed;
    const DeviceProblem::Times times = problem->time(options_.repeat, options_.min_seconds);
    timed.samples = times.device;
    timed.host_ms = times.host.median_ms();
    timed.gemm_reason = "not measured on a CUDA device";
    timed.copy_gbytes_per_s = *machine_.device_copy_gbytes_per_s;
    timed.workspace = timed.extra = problem->workspace();  // a call allocates its workspace and nothing else
    timed.kept = problem->kept();
    timed.backward_by_list = problem->backward_by_list();
    timed.rivals = no_rivals("the LibTorch rivals run on the CPU");
    report(shape, pass, dtype, backend, timed);
    return kDone;
  }

  JsonValue head(const OpShape& s, Pass pass, DType dtype, const std::string& backend) const {
    return JsonValue()
        .set("shape", s.name)
        .set("form", name_of(s.form))
        .set("dtype", name_of(dtype))
        .set("pass", name_of(pass))
        .set("backend", backend)
        .set("threads", on_device(backend) ? JsonValue() : JsonValue(machine_.pool.concurrency()))
        .set("device", on_device(backend) ? device_facts(0).name : std::string("cpu"))
        .set("B", s.B)
        .set("N", s.N)
        .set("H", s.H)
        .set("Hkv", s.Hkv)
        .set("D", s.D)
        .set("E", s.E)
        .set("M", s.blocks())
        .set("layout", describe(s.layout));
  }

  int refuse(const OpShape& shape, Pass pass, DType dtype, const std::string& backend, std::string failure) {
    std::replace(failure.begin(), failure.end(), '\n', ' ');
    complain(str("bench op: ", backend, " fails its check on ", shape.name, ", so it is not timed: ", failure));
    out_.row(head(shape, pass, dtype, backend).set("verified", false).set("failure", failure).set("ms", nullptr));
    return kFailed;
  }

  int step_aside(const OpShape& shape, Pass pass, DType dtype, const std::string& backend, std::string reason) {
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    out_.line(fmt::format("{} {} {} {}: {}", shape.name, name_of(pass), name_of(dtype), backend, reason));
    out_.row(head(shape, pass, dtype, backend).set("reason", reason).set("ms", nullptr));
    return kDone;
  }

  void report(const OpShape& shape, Pass pass, DType dtype, const std::string& backend, const Timed& timed) {
    const Counts counts = count_pass(shape.sizes(), pass, size_of(dtype));
    const double ms = timed.samples.median_ms(), best_ms = timed.samples.best_ms();
    const double gflops = counts.flops / ms * 1e-6, best_gflops = counts.flops / best_ms * 1e-6;
    const double floor_ms = counts.bytes / timed.copy_gbytes_per_s * 1e-6;
    const double of_gemm = timed.gemm_gflops > 0.0 ? best_gflops / timed.gemm_gflops : 0.0;
    const JsonValue& rivals = timed.rivals;

    JsonValue row = head(shape, pass, dtype, backend);
    row.set("verified", true)
        .set("ms", ms)
        .set("best_ms", best_ms)
        .set("spread", timed.samples.spread())
        .set("repeats", timed.samples.count())
        .set("flops", counts.flops)
        .set("bytes", counts.bytes)
        .set("gflops", gflops)
        .set("best_gflops", best_gflops)
        .set("gbytes_per_s", counts.bytes / ms * 1e-6)
        .set("copy_gbytes_per_s", timed.copy_gbytes_per_s)
        .set("floor_ms", floor_ms)
        .set("of_floor", floor_ms / ms)
        .set("gemm_gflops", number_or_null(timed.gemm_gflops))
        .set("of_gemm", number_or_null(of_gemm));
    if (timed.gemm_gflops <= 0.0) row.set("gemm_reason", timed.gemm_reason);
    const double formula = timed.formula;
    const std::int64_t extra = timed.extra;
    const std::int64_t summaries = 4 * shape.blocks() * (shape.D * shape.E + shape.D);
    row.set("workspace_bytes", timed.workspace)
        .set("kept_bytes", timed.kept)
        .set("peak_extra_bytes", extra >= 0 ? JsonValue(extra) : JsonValue())
        .set("summaries_bytes", summaries)
        .set("memory_formula_bytes", formula > 0.0 ? JsonValue(formula) : JsonValue())
        .set("memory_formula", formula > 0.0 ? JsonValue(kMemoryFormula) : JsonValue())
        .set("input_sets", timed.sets)
        .set("rivals", rivals)
        .set("simd_target", on_device(backend) ? JsonValue() : JsonValue(simd_target()))
        .set("driver", on_device(backend) ? JsonValue(version_text(device_facts(0).driver_version)) : JsonValue())
        .set("cpu", machine_.cpu.model)
        .set("compiler", compiler_text());
    row.set("host_ms", number_or_null(timed.host_ms));
    if (timed.backward_by_list) row.set("backward_by_list", true);
    out_.row(row);

    const auto ratio = [&](const char* rival) {
      const JsonValue& value = rivals.at(rival).at("ratio");
      return value.is_null() ? std::string("-") : fmt::format("{:.1f}x", value.as_double());
    };
    table_.row({shape.name, name_of(shape.form), name_of(pass), std::string(name_of(dtype)), backend,
                fmt::format("{:.3f}", ms), fmt::format("{:.3f}", best_ms),
                fmt::format("{:.0f} %", 100.0 * timed.samples.spread()), fmt::format("{:.1f}", gflops),
                of_gemm > 0.0 ? fmt::format("{:.2f}", of_gemm) : "-", fmt::format("{:.1f}", counts.bytes / ms * 1e-6),
                fmt::format("{:.3f}", floor_ms), fmt::format("{:.2f}", floor_ms / ms), ratio("plain"), ratio("linear"),
                ratio("softmax")});
    out_.line(fmt::format(
        "  memory: workspace {}, peak extra {}, at most {} by the formula; one head's summaries 4 M (D E + D) = {}",
        bytes_text(timed.workspace), extra >= 0 ? bytes_text(extra) : "unknown",
        formula > 0.0 ? bytes_text(static_cast<std::int64_t>(formula)) : "anything", bytes_text(summaries)));
    if (timed.kept > 0) out_.line(fmt::format("  forward keeps {} for backward", bytes_text(timed.kept)));
    if (timed.backward_by_list) out_.line(fmt::format("  {} has no backward for this: the list chose one", backend));
    for (const char* rival : {"plain", "linear", "softmax"}) {
      const JsonValue& value = rivals.at(rival);
      if (const JsonValue* variant = value.find("variant"))
        out_.line(fmt::format("  {}: {:.3f} ms, {}, {} thread{}", rival, value.at("ms").as_double(),
                              variant->as_string(), value.at("threads").as_int(),
                              value.at("threads").as_int() == 1 ? "" : "s"));
      else if (!options_.rivals.empty() && value.at("reason").as_string().rfind("not asked", 0) != 0)
        out_.line(fmt::format("  {}: {}", rival, value.at("reason").as_string()));
    }
  }

  const BenchOptions& options_;
  BenchMachine& machine_;
  const Output& out_;
  TextTable table_;
  bool headed_ = false;
  std::map<std::tuple<std::string, DType, std::string>, std::string> reduced_;
};

int run_bench(const BenchOptions& options) {
  const Output out(options.json);
  if (options.scaling && (!options.shape.names.empty() || options.shape.n > 0 || !options.shape.grid.empty()))
    fail("--scaling has shapes of its own, it excludes --shape, --n and --grid");
  if (!options.html.empty() && !options.scaling) fail("--html belongs to --scaling");
  if (!options.html.empty()) const AtomicFile begun(options.html);  // can it be written?
  if (!options.simd_target.empty()) use_simd_target(options.simd_target);
  const int threads = threads_for(options.threads);

  // Everything the caller may have got wrong is looked at before anything is measured.
  std::vector<OpShape> shapes;
  std::vector<Pass> passes;
  std::vector<DType> dtypes;
  if (!options.scaling) shapes = shapes_of(options.shape);
  for (const std::string& name : split_list(options.passes)) passes.push_back(parse_pass(name));
  for (const std::string& name : split_list(options.dtypes)) dtypes.push_back(parse_dtype(name));
  if (passes.empty()) fail("--pass is empty, expected fwd, bwd or fwd+bwd");
  if (dtypes.empty()) fail("--dtype is empty, expected f32, bf16 or f16");
  check_rivals(options);
  for (const OpShape& shape : shapes)
    for (const DType dtype : dtypes) {
      (void)bench_backends(options, shape.form, dtype);
      OpShape needed = shape;
      if (shape.form == OpForm::kDecode)  // the sequences of a step
        needed.B = std::max<std::int64_t>(1, options.shape.batch);
      for (const Pass pass : passes) expect_fits("bench op: " + shape.name, op_memory(needed, dtype, pass, 1));
    }

  BenchMachine machine(threads);
  out.line(fmt::format("{}, {} threads, {}, copy {:.1f} GB/s; of GEMM: best against the best 2048^3 f32 product of {}",
                       machine.cpu.model, threads, compiler_text(), machine.copy_gbytes_per_s,
                       machine.gemm.found() ? "OpenBLAS" : machine.gemm.reason()));
  if (options.scaling) return bench_scaling(options, machine, out);
  int code = kDone;
  OpBench bench(options, machine, out);
  for (const OpShape& shape : shapes) {
    if (shape.form == OpForm::kDecode) {
      code = std::max(code, bench_decode(options, machine, shape, out));
      continue;
    }
    for (const DType dtype : dtypes)
      for (const Pass pass : passes)
        for (const std::string& backend : bench_backends(options, shape.form, dtype))
          code = std::max(code, bench.run(shape, pass, dtype, backend));
  }
  return code;
}

}  // namespace

void add_bench(CLI::App& app, Job& job) {
  CLI::App* bench =
      app.add_subcommand("bench", "time the operator, whole models, teams of processes, data and tokenizers");
  bench->require_subcommand(1);
  add_bench_data(*bench, job);
  add_bench_text(*bench, job);
  add_bench_model(*bench, job);
  add_bench_scale(*bench, job);
  CLI::App* op = bench->add_subcommand(
      "op", "verify, then time the operator, and compare it with the machine's limits and with rivals");
  static BenchOptions o;
  ShapeOptions& s = o.shape;
  op->add_option("--shape", s.names, fmt::format("named shapes, joined by commas: {}", fmt::join(shape_names(), ", ")))
      ->type_name("NAME,...");
  op->add_option("--form", s.form, "bidirectional, causal or decode (default: that of the shape)")->type_name("NAME");
  op->add_option("--batch,--b,--sequences", s.batch,
                 "sequences (default: that of a named shape, else 1; for decode 1, on a device 64)")
      ->check(within(limits::kBatch));
  op->add_option("--n", s.n, "tokens of a sequence")->check(within(limits::kTokens));
  op->add_option("--h", s.h, "heads (default: 1)")->check(within(limits::kHeads));
  op->add_option("--hkv", s.hkv, "key and value heads (default: --h)")->check(within(limits::kHeads));
  op->add_option("--d", s.d, "key size (default: 64)")->check(within(limits::kHeadSize));
  op->add_option("--e", s.e, "value size (default: --d)")->check(within(limits::kHeadSize));
  op->add_option("--grid", s.grid, "tokens per axis, such as 16x16 or 21x30x50")->type_name("RxC");
  op->add_option("--blocks", s.blocks, "blocks per axis of --grid, such as 4x4; one number for all axes")
      ->type_name("N|RxC");
  op->add_option("--block-size", s.block_size, "tokens of a block on a line (default: 64)")
      ->check(within(limits::kTokens));
  op->add_option("--chunk", s.chunk, "tokens of a chunk, for the causal form and decode")
      ->check(within(limits::kChunk));
  op->add_option("--pass", o.passes, "fwd, bwd, fwd+bwd, or several joined by commas")
      ->type_name("NAME,...")
      ->capture_default_str();
  op->add_option("--dtype", o.dtypes, "f32, bf16, f16, or several joined by commas")
      ->type_name("NAME,...")
      ->capture_default_str();
  op->add_option("--backend", o.backends,
                 "candidates joined by commas, all, or gpu: those on a CUDA device (default: the fastest on the CPU)")
      ->type_name("NAME,...");
  op->add_option("--simd-target", o.simd_target, "instruction set of the simd candidate, one that `mhla doctor` lists")
      ->type_name("NAME");
  add_threads(*op, o.threads);
  op->add_option("--repeat", o.repeat, "time at least this many calls")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  add_min_time(*op, o.min_seconds);
  op->add_option("--sets", o.sets, "sets of inputs used in turn (default: enough to exceed the second-level caches)")
      ->check(whole_number(1, 64));
  op->add_option("--layers", o.layers,
                 "decode on a device: calls of one step, each with states of its own (default: 24)")
      ->check(whole_number(1, 1 << 20));
  op->add_option("--rivals", o.rivals, "LibTorch rivals: all, or plain, linear, softmax joined by commas")
      ->type_name("NAME,...")
      ->expected(0, 1)
      ->default_str("");
  op->add_option("--rival-limit", o.rival_limit, "skip a rival whose single call would take longer, in seconds")
      ->check(is_seconds())
      ->capture_default_str();
  op->add_flag("--scaling", o.scaling, "time per token for N = 4^7 to 4^10 with M = sqrt(N), 6 heads of size 64");
  op->add_option("--html", o.html, "with --scaling: write a page with the plot")->type_name("FILE");
  add_json(*op, o.json);
  op->callback([&job, op] {
    if (op->count("--rivals") > 0 && o.rivals.empty()) o.rivals = "all";
    job = [] { return run_bench(o); };
  });
}

}  // namespace mhla::apps
