// What the parts of `mhla bench op` share: the options of one run and the measured limits of the machine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/machine.h"
#include "apps/bench/problem.h"
#include "apps/bench/shape.h"
#include "apps/bench/timing.h"
#include "apps/cli/host.h"
#include "apps/cli/output.h"

namespace mhla::apps {

struct BenchOptions {
  ShapeOptions shape;
  std::string passes = "fwd";  // comma separated, like dtypes and backends
  std::string dtypes = "f32";
  std::string backends;     // empty: the fastest on the CPU
  std::string simd_target;  // empty: the best
  std::string rivals;       // "all", or names
  int threads = 0;          // 0: all
  int repeat = 10;          // at least so many timed calls
  double min_seconds = 1.0;
  double rival_limit = 30.0;  // seconds one call of a rival may take, by estimate
  int sets = 0;
  std::int64_t layers = 0;  // of a decode step on a device; 0: 24
  bool scaling = false;
  std::string html;
  bool json = false;
};

// Opened and measured once per run.
struct BenchMachine {
  explicit BenchMachine(int threads)
      : cpu(read_cpu_facts()), pool(threads), gemm(threads), copy_gbytes_per_s(copy_bandwidth(pool)) {}
  CpuFacts cpu;
  ThreadPool pool;
  GemmRuler gemm;
  double copy_gbytes_per_s;
  std::optional<double> device_copy_gbytes_per_s;  // measured with the first backend on a CUDA device
};

// Samples of `work` and of the large product in turns, the workers of each pool asleep while the other one runs.
struct Measured {
  Samples samples;
  double gemm_gflops = 0.0;  // best; 0 without OpenBLAS
};
Measured measure(const BenchOptions& options, BenchMachine& machine, const std::function<void(int)>& work);

// Which candidates to time: the named ones, all, those on a CUDA device (gpu), or the fastest that is available on the
// CPU.
std::vector<std::string> bench_backends(const BenchOptions& options, OpForm form, DType dtype);

// {"plain": {"ms": ..., "ratio": ...}, ...}: every rival has its fields, null with a reason where there is no time.
JsonValue time_rivals(const BenchOptions& options, BenchMachine& machine, const OpShape& shape, Pass pass, DType dtype,
                      OpTensors& tensors, double our_ms);

void check_rivals(const BenchOptions& options);  // throws mhla::Error on a name that is not known

JsonValue no_rivals(const std::string& reason);  // every rival without a time, and why

// The rows of one form; each returns the exit code.
int bench_decode(const BenchOptions& options, BenchMachine& machine, const OpShape& shape, const Output& out);
int bench_decode_device(const BenchOptions& options, const OpShape& shape, DType dtype, const std::string& backend,
                        const Output& out);
int bench_scaling(const BenchOptions& options, BenchMachine& machine, const Output& out);

JsonValue number_or_null(double value);  // null unless positive

}  // namespace mhla::apps
