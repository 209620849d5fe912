#include "apps/bench/machine.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "apps/bench/timing.h"
#include "apps/cli/host.h"
#include "mhla/testing/random.h"

namespace mhla::apps {
namespace {

void fill(const AlignedBuffer& buffer) {
  Random random(7);
  auto* values = buffer.as<float>();
  for (std::size_t i = 0; i < buffer.bytes().size() / sizeof(float); ++i)
    values[i] = static_cast<float>(random.uniform()) - 0.5f;
}

// The loads should be as wide as the machine's: one clone per instruction set. Sanitizers and run-time dispatch
// by the loader do not mix.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define MHLA_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MHLA_WIDEST
#endif

// Sums with eight independent vectors, enough to be bound by the loads. The compiler vectorises the inner loop.
MHLA_WIDEST float read_through(const float* data, std::int64_t count) {
  constexpr int kLanes = 128;  // floats: eight 64-byte vectors
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += data[i + lane];
  float total = 0.0f;
  for (; i < count; ++i) total += data[i];
  for (const float sum : sums) total += sum;
  return total;
}

// A line of /proc/self/status, "VmRSS:  1234 kB".
std::int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == key && file >> kib) return kib << 10;
  }
  return -1;
}

}  // namespace

GemmRuler::GemmRuler(int threads) : threads_(threads) {
  if (!found()) return;
  const std::int64_t bytes = kSize * kSize * static_cast<std::int64_t>(sizeof(float));
  for (AlignedBuffer* matrix : {&a_, &b_, &c_}) {
    *matrix = AlignedBuffer(bytes);
    fill(*matrix);
  }
}

double GemmRuler::sample() {
  if (!found()) return 0.0;
  blas_.set_threads(threads_);
  const double before = now_seconds();
  blas_.multiply(kSize, a_.as<float>(), b_.as<float>(), c_.as<float>());
  const double seconds = now_seconds() - before;
  return 2.0 * static_cast<double>(kSize * kSize * kSize) / seconds * 1e-9;
}

double copy_bandwidth(Executor& executor) {
  const CpuFacts cpu = read_cpu_facts();
  const std::int64_t bytes = std::min<std::int64_t>(4 * last_level_cache(cpu), std::int64_t{512} << 20);
  const AlignedBuffer from(bytes), to(bytes);
  std::memset(from.as<char>(), 1, static_cast<std::size_t>(bytes));
  std::memset(to.as<char>(), 2, static_cast<std::size_t>(bytes));
  const std::int64_t parts = executor.concurrency();
  Samples samples;
  take_samples(samples, {.min_seconds = 0.15, .min_repeats = 4}, [&](int) {
    executor.run(parts, [&](std::int64_t part, int) {
      const std::int64_t begin = bytes * part / parts, end = bytes * (part + 1) / parts;
      std::memcpy(to.as<char>() + begin, from.as<char>() + begin, static_cast<std::size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(bytes) / samples.best_ms() * 1e-6;
}

double read_bandwidth(Executor& executor, std::int64_t bytes, std::int64_t buffers) {
  std::vector<AlignedBuffer> memory;
  for (std::int64_t i = 0; i < buffers; ++i) {
    memory.emplace_back(bytes);
    std::memset(memory.back().as<char>(), 0, static_cast<std::size_t>(bytes));
  }
  const std::int64_t floats = bytes / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t workers = executor.concurrency();
  std::vector<float> sinks(static_cast<std::size_t>(workers) * 16);  // a cache line apart
  // One visit of a small buffer takes microseconds: enough of them for the clock and the start of workers to vanish.
  const std::int64_t visits = std::max(buffers, (std::int64_t{256} << 20) / std::max<std::int64_t>(bytes, 1));
  Samples samples;
  take_samples(samples, {.min_seconds = 0.3, .min_repeats = 6}, [&](int) {
    executor.run(workers, [&](std::int64_t worker, int) {
      const std::int64_t begin = floats * worker / workers, end = floats * (worker + 1) / workers;
      float sum = 0.0f;
      for (std::int64_t visit = 0; visit < visits; ++visit)
        sum += read_through(memory[static_cast<std::size_t>(visit % buffers)].as<float>() + begin, end - begin);
      sinks[static_cast<std::size_t>(worker) * 16] += sum;
    });
  });
  float total = 0.0f;
  for (const float sink : sinks) total += sink;
  if (total != 0.0f) return 0.0;  // never: the buffers hold zeros. Keeps the sums alive
  return static_cast<double>(visits) * static_cast<double>(bytes) / samples.best_ms() * 1e-6;
}

std::int64_t peak_extra_bytes(const std::function<void()>& work) {
  malloc_trim(0);  // memory that earlier calls gave back must count again when this one takes it
  const std::int64_t before = status_bytes("VmRSS:");
  {
    std::ofstream reset("/proc/self/clear_refs");  // 5: the peak starts again from here
    reset << 5;
    reset.flush();
    if (!reset || before < 0) return -1;
  }
  work();
  return std::max<std::int64_t>(status_bytes("VmHWM:") - before, 0);
}

}  // namespace mhla::apps
