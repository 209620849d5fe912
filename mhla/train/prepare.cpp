// What is set once for a whole process: threads, generators, deterministic algorithms, autocast.
#include <algorithm>
#include <cstdlib>

#include "mhla/core/error.h"
#include "mhla/core/thread_count.h"
#include "mhla/ops/linear.h"
#include "mhla/ops/ops.h"
#include "mhla/train/trainer.h"

namespace mhla::train {

torch::Device device_of(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  const std::string number = name.size() > 5 ? name.substr(5) : "0";
  const bool cuda = name == "cuda" || (name.rfind("cuda:", 0) == 0 && number.size() < 4 &&
                                       number.find_first_not_of("0123456789") == std::string::npos);
  if (!cuda) fail("train: device is '", name, "', expected cpu, cuda or cuda:N");
  const auto index = static_cast<c10::DeviceIndex>(std::stoi(number));
  if (!torch::cuda::is_available()) fail("train: device is ", name, ", but this LibTorch sees no CUDA device");
  const auto count = static_cast<int>(torch::cuda::device_count());
  if (index >= count) fail("train: device is ", name, ", but there are ", count);
  return {torch::kCUDA, index};
}

namespace {

// All cores where nothing else is asked for: each process its part of them, and one thread where the bits are not to
// depend on their number.
std::int64_t threads_of(const TrainOptions& options, const torch::Device& device) {
  if (options.threads > 0) return options.threads;
  if (options.deterministic_reduce && device.is_cpu()) return 1;
  if (options.place.local_ranks == 1) return 0;
  return std::max(1, usable_threads(0).threads / options.place.local_ranks);
}

}  // namespace

void expect_precision(const std::string& command, const std::string& precision, const torch::Device& device) {
  if (precision != "bf16" || !device.is_cpu()) return;
  if (const std::string why = ops::cpu_bf16_fit(); !why.empty())
    fail(command, ": precision is bf16, expected f32 on cpu: ", why);
}

std::string prepare(const TrainOptions& options) {
  check(options);
  const torch::Device device = device_of(options.device);
  expect_precision("train", options.precision, device);
  const ThreadCount threads = ops::set_num_threads(threads_of(options, device));
  if (options.deterministic) {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // read when cuBLAS starts
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  }
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  return threads.fewer;
}

Autocast::Autocast(const TrainOptions& options, const torch::Device& device)
    : on_(options.precision == "bf16"), device_(device.type()) {
  if (on_) ops::set_autocast(device_, true);
}

Autocast::~Autocast() {
  if (!on_) return;
  ops::set_autocast(device_, false);
  at::autocast::clear_cache();  // casts of weights that the next step changes
}

}  // namespace mhla::train
