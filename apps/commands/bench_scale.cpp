// mhla bench scale: whole training steps, and the operator with one sequence over all processes, by the number of
// processes on this machine: time, throughput over that of one process with the same threads in all, and bytes that
// each process sends, counted by the kernel, beside the formula of docs/scaling.md. Every row is a team of fresh
// processes; rounds go over all numbers of processes in turn, so that a busy machine is busy for all of them. Rows have
// "what": "step" or "operator".
#include "apps/commands/bench_scale.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>

#include "apps/bench/shape.h"
#include "apps/cli/engine.h"
#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/joined.h"
#include "apps/cli/limit_flags.h"
#include "mhla/core/error.h"
#include "mhla/models/names.h"
#include "mhla/train/distributed/world.h"

namespace mhla::apps {
namespace {

struct ScaleBenchOptions {
  BenchScaleRequest request;
  std::vector<std::string> models, ops;  // none of both: the usual ones
  std::vector<std::int64_t> ranks{1, 2, 4};
  std::int64_t rounds = 3;
  bool json = false;
};

constexpr std::int64_t kLeaves = 8;  // of --deterministic-reduce

bool is_trained(const std::string& name) {
  return std::any_of(std::begin(kModelNames), std::end(kModelNames), [&](const ModelName& known) {
    return known.name == name && (known.task == "lm" || known.task == "classify");
  });
}

// What is timed: a model, or the operator of a shape by one method.
struct Timee {
  std::string model, op, method;
  [[nodiscard]] std::string name() const { return op.empty() ? model : op + " " + method; }
};

std::vector<Timee> timed_by(const ScaleBenchOptions& o) {
  const bool usual = o.models.empty() && o.ops.empty();
  std::vector<Timee> all;
  for (const std::string& model : usual ? std::vector<std::string>{"mhla_10m", "vit_demo"} : o.models)
    all.push_back({model, "", ""});
  for (const std::string& op : usual ? std::vector<std::string>{"lm_2048"} : o.ops)
    for (const char* method : {"summaries", "heads"}) all.push_back({"", op, method});
  return all;
}

// Whether so many processes can share the sequences.
bool is_possible(const Timee& what, std::int64_t ranks) {
  if (what.op.empty()) return true;
  const OpShape shape = named_shape(what.op);
  if (what.method == "heads") return shape.H % ranks == 0 && shape.Hkv % ranks == 0 && ranks <= shape.blocks();
  return ranks <= shape.blocks();
}

void set_shape(BenchScaleRequest& r, const std::string& name) {
  const OpShape shape = named_shape(name);
  r.op = name;
  r.op_sizes = {shape.B, shape.N, shape.H, shape.Hkv, shape.D, shape.E};
  if (shape.causal()) r.op_grid = {shape.chunk()};
  for (int axis = 3 - shape.layout.rank; shape.layout.rank > 1 && axis < 3; ++axis) {
    r.op_grid.push_back(shape.layout.grid[static_cast<std::size_t>(axis)]);
    r.op_blocks.push_back(shape.layout.blocks[static_cast<std::size_t>(axis)]);
  }
}

void check_scale(const ScaleBenchOptions& o) {
  for (const std::string& op : o.ops) (void)named_shape(op);
  for (const std::string& model : o.models)
    if (!is_trained(model))
      fail("bench scale: --model is '", model, "', expected ", model_list("lm"), " or ", model_list("classify"));
  const bool steps = !o.models.empty() || o.ops.empty();
  for (const std::int64_t ranks : steps ? o.ranks : std::vector<std::int64_t>()) {
    if (o.request.batch % ranks != 0)
      fail("bench scale: --batch is ", o.request.batch, ", expected a multiple of the ", ranks, " processes");
    if (o.request.deterministic_reduce && (kLeaves % ranks != 0 || o.request.batch % kLeaves != 0))
      fail("bench scale: --deterministic-reduce with ", ranks, " processes and --batch ", o.request.batch,
           ", expected a number of processes that divides ", kLeaves, " and a batch that is a multiple of it");
  }
}

// The command line of a process that is one of `ranks`.
std::vector<std::string> words_of(const ScaleBenchOptions& o, const Timee& what, std::int64_t ranks, int threads) {
  const BenchScaleRequest& r = o.request;
  std::vector<std::string> words{"mhla", "bench", "scale", "--ranks", std::to_string(ranks)};
  const auto add = [&](const char* flag, const std::string& value) {
    words.emplace_back(flag), words.push_back(value);
  };
  if (what.op.empty())
    add("--model", what.model);
  else
    add("--op", what.op), add("--context-method", what.method);
  add("--batch", std::to_string(r.batch)), add("--accumulate", std::to_string(r.accumulate)),
      add("--context", std::to_string(r.length));
  add("--steps", std::to_string(r.steps)), add("--device", r.device), add("--precision", r.precision);
  add("--threads", std::to_string(std::max<std::int64_t>(1, threads / ranks)));
  if (r.deterministic_reduce) words.emplace_back("--deterministic-reduce");
  if (r.shard_optimizer) words.emplace_back("--shard-optimizer");
  if (r.ema) words.emplace_back("--ema");
  return words;
}

// As one process of a team: the row goes to the process that started it, or else to stdout.
int run_as_rank(const ScaleBenchOptions& o) {
  const Output out(o.json);
  const char* tell = std::getenv(kTellVariable);
  Rows rows(
      [&](const JsonValue& row) {
        if (said_warning(row)) return;
        const std::string line = write_json(row) + "\n";
        if (tell == nullptr)
          out.row(row), out.line(line.substr(0, line.size() - 1));
        else if (::write(std::atoi(tell), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
          complain("bench scale: the process that started this one is gone");
      },
      [](const JsonValue&) {});
  BenchScaleRequest request = o.request;
  if (!o.models.empty()) request.model = o.models.front();
  if (!o.ops.empty()) set_shape(request, o.ops.front());
  return run_engine(&Engine::bench_scale, request, rows);
}

JsonValue median_row(std::vector<JsonValue> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const JsonValue& a, const JsonValue& b) { return a.at("ms").as_double() < b.at("ms").as_double(); });
  return rows[rows.size() / 2];
}

std::string in_megabytes(const JsonValue& row, const char* key) {
  return row.contains(key) ? fmt::format("{:.3f}", row.at(key).as_double() / 1e6) : "-";
}

int run_bench_scale(const ScaleBenchOptions& o) {
  check_scale(o);
  const Output out(o.json);
  const int threads = threads_for(o.request.threads);
  out.line(fmt::format("{}, {} threads in all, {}", read_cpu_facts().model, threads, compiler_text()));
  const TextTable table(out, {{"model or shape", -20},
                              {"ranks", 5},
                              {"threads", 7},
                              {"ms", 10},
                              {"spread", 7},
                              {"samples/s", 10},
                              {"of one", 7},
                              {"waited ms", 9},
                              {"sent MB", 10},
                              {"by formula", 10},
                              {"state MB", 9},
                              {"peak MiB", 9}});
  table.head();
  for (const Timee& what : timed_by(o)) {
    std::map<std::int64_t, std::vector<JsonValue>> found;  // by ranks, one a round
    for (std::int64_t round = 0; round < o.rounds; ++round) {
      for (const std::int64_t ranks : o.ranks) {
        if (!is_possible(what, ranks)) continue;
        Rows rows([&](const JsonValue& row) { found[ranks].push_back(row); }, [](const JsonValue&) {});
        const int code = run_engine(&Engine::launch, {ranks, words_of(o, what, ranks, threads), true}, rows);
        if (code != kDone) return code;
      }
    }
    const double one = found.contains(1) ? median_row(found[1]).at("samples_per_s").as_double() : 0.0;
    for (const std::int64_t ranks : o.ranks) {
      if (found[ranks].empty()) continue;
      JsonValue row = median_row(found[ranks]);
      const double of_one = one > 0 ? row.at("samples_per_s").as_double() / one : 0.0;
      row.set("rounds", o.rounds).set("of_one", one > 0 ? JsonValue(of_one) : JsonValue());
      table.row({what.name(), fmt::format("{}", ranks), fmt::format("{:.0f}", row.at("threads").as_double()),
                 fmt::format("{:.1f}", row.at("ms").as_double()), fmt::format("{:.2f}", row.at("spread").as_double()),
                 fmt::format("{:.1f}", row.at("samples_per_s").as_double()),
                 one > 0 ? fmt::format("{:.2f}", of_one) : "-",
                 row.contains("waited_ms") ? fmt::format("{:.1f}", row.at("waited_ms").as_double()) : "-",
                 in_megabytes(row, "sent"), in_megabytes(row, "sent_formula"), in_megabytes(row, "state_bytes"),
                 row.contains("peak_mib") ? fmt::format("{:.0f}", row.at("peak_mib").as_double()) : "-"});
      out.row(row);
    }
  }
  return kDone;
}

}  // namespace

void add_bench_scale(CLI::App& bench, Job& job) {
  CLI::App* scale = bench.add_subcommand(
      "scale",
      "time training steps and the operator by the number of processes on this machine, and count the bytes they send");
  static ScaleBenchOptions o;
  BenchScaleRequest& r = o.request;
  scale
      ->add_option("--model", o.models,
                   str("whole steps of ", model_list("lm"), "; ", model_list("classify"),
                       "; several joined by commas (default without --op: mhla_10m,vit_demo)"))
      ->type_name("NAME,...")
      ->delimiter(',');
  scale
      ->add_option("--op", o.ops,
                   str("the operator with every sequence over all processes, by summaries and by heads: ",
                       joined(shape_names()), " (default without --model: lm_2048)"))
      ->type_name("NAME,...")
      ->delimiter(',');
  scale->add_option("--context-method", r.context_method, "")->group("");  // of the processes that this one starts
  scale->add_option("--ranks", o.ranks, "numbers of processes, joined by commas")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  scale->add_option("--batch", r.batch, "sequences or images of a pass, of all processes together")
      ->check(within(limits::kBatch))
      ->capture_default_str();
  scale->add_option("--accumulate", r.accumulate, "passes of a step, whose gradients are sent once")
      ->check(within(limits::kAccumulate))
      ->capture_default_str();
  scale->add_option("--context,--length", r.length, "language models: tokens of a sequence")
      ->check(within(limits::kContext))
      ->capture_default_str();
  scale->add_option("--steps", r.steps, "timed steps of a team")->check(whole_number(1, 100000))->capture_default_str();
  scale->add_option("--rounds", o.rounds, "teams of every size, in turns; the median is shown")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  scale->add_option("--threads", r.threads, "CPU threads of all processes together; 0: all")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  scale->add_option("--device", r.device, "cpu, cuda or cuda:N")->type_name("NAME")->capture_default_str();
  add_precision(*scale, r.precision, "f32, or bf16: autocast");
  scale->add_flag("--deterministic-reduce", r.deterministic_reduce, "the same bits for any number of processes");
  scale->add_flag("--shard-optimizer", r.shard_optimizer,
                  "each process keeps its share of AdamW's moments and of the EMA");
  scale->add_flag("--ema", r.ema, "with a running average of the weights");
  add_json(*scale, o.json);
  scale->callback([&job] {
    job = [] { return distributed::world_from_environment().started ? run_as_rank(o) : run_bench_scale(o); };
  });
}

}  // namespace mhla::apps
