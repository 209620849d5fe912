#include "apps/engine/step_profile.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>

#include "apps/engine/timed.h"
#include "mhla/core/error.h"

#ifdef MHLA_TORCH_CUDA
#include <torch/csrc/autograd/profiler_kineto.h>
#endif

namespace mhla::apps {
namespace {

using Clock = std::chrono::steady_clock;

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

// A name without arguments of templates and calls, return type and namespaces that every kernel has.
std::string short_name(std::string name) {
  for (const std::string_view useless : {"void ", "(anonymous namespace)::", "at::native::", "torch::autograd::"})
    for (std::size_t at = name.find(useless); at != std::string::npos; at = name.find(useless))
      name.erase(at, useless.size());
  constexpr std::size_t kLongest = 100;
  if (name.size() > kLongest) name = name.substr(0, kLongest) + "...";
  return name;
}

std::vector<StepProfile::Row> in_order(const std::map<std::string, StepProfile::Row>& found) {
  std::vector<StepProfile::Row> rows;
  for (const auto& [name, row] : found) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.ms > b.ms; });
  return rows;
}

void add(std::map<std::string, StepProfile::Row>& rows, const std::string& name, StepPart part, double calls,
         double ms) {
  StepProfile::Row& row = rows[name];
  row.name = name, row.part = part, row.calls += calls, row.ms += ms;
}

// What this thread is in, innermost last. Autograd on the CPU works in the thread that asks for it.
struct Call {
  std::string name;
  StepPart part;
  Clock::time_point begin;
  double inner_ms = 0;
};

struct HostRecord {
  std::vector<Call> open;
  std::map<std::string, StepProfile::Row> rows;
};

thread_local HostRecord* maybe_record = nullptr;

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (maybe_record == nullptr) return nullptr;
  const std::string name = function.name();
  StepPart part = part_of_operator(name);
  // What attention and the optimiser call is part of them.
  if (!maybe_record->open.empty()) {
    const StepPart outer = maybe_record->open.back().part;
    if (outer == StepPart::kAttention || outer == StepPart::kOptimizer) part = outer;
  }
  maybe_record->open.push_back({name, part, Clock::now()});
  return nullptr;
}

void end_call(const at::RecordFunction&, at::ObserverContext*) {
  if (maybe_record == nullptr || maybe_record->open.empty()) return;
  const Call call = maybe_record->open.back();
  maybe_record->open.pop_back();
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - call.begin).count();
  if (!maybe_record->open.empty()) maybe_record->open.back().inner_ms += ms;
  add(maybe_record->rows, short_name(call.name), call.part, 1, ms - call.inner_ms);
}

StepProfile profile_on_host(int steps, const std::function<void()>& step) {
  HostRecord record;
  struct Watch {
    explicit Watch(HostRecord& to)
        : handle(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_call, end_call)
                                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE,
                                                         at::RecordScope::BACKWARD_FUNCTION}))) {
      maybe_record = &to;
    }
    ~Watch() {
      maybe_record = nullptr;
      at::removeCallback(handle);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    at::CallbackHandle handle;
  };
  const Clock::time_point begin = Clock::now();
  {
    const Watch watch(record);
    for (int i = 0; i < steps; ++i) step();
  }
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  double inside = 0;
  for (auto& [name, row] : record.rows) inside += row.ms, row.ms /= steps, row.calls /= steps;
  StepProfile profile{.ms = ms / steps, .rows = in_order(record.rows)};
  profile.rows.push_back({"between operators", StepPart::kWaiting, 1, std::max(0.0, ms - inside) / steps});
  return profile;
}

#ifdef MHLA_TORCH_CUDA

double milliseconds(const torch::autograd::profiler::KinetoEvent& event) {
  return 1e-6 * static_cast<double>(event.durationNs());
}

StepProfile profile_on_device(const torch::Device& device, int steps, const std::function<void()>& step) {
  namespace kineto = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CUDA};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
  double ms = 0;
  try {
    for (int i = 0; i < steps; ++i) ms += milliseconds_of(device, step);
  } catch (...) {
    kineto::disableProfiler();
    throw;
  }
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  std::map<std::string, StepProfile::Row> rows;
  std::vector<std::pair<double, double>> busy;  // begin and end of kernels and copies, ms
  for (const kineto::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const double begin = 1e-6 * static_cast<double>(event.startNs() - result->trace_start_ns());
    busy.emplace_back(begin, begin + milliseconds(event));
    add(rows, short_name(event.name()), part_of_kernel(event.name()), 1.0 / steps, milliseconds(event) / steps);
  }
  if (busy.empty()) fail("bench model: the profiler saw no kernel; CUPTI of this CUDA is missing or refused");
  std::sort(busy.begin(), busy.end());
  double together = 0, last = busy.front().first;
  for (const auto& [begin, end] : busy) {
    together += std::max(0.0, end - std::max(begin, last));
    last = std::max(last, end);
  }
  StepProfile profile{.ms = ms / steps, .rows = in_order(rows)};
  profile.rows.push_back({"no kernel runs", StepPart::kWaiting, 1, std::max(0.0, ms - together) / steps});
  return profile;
}

#endif

}  // namespace

const char* step_part_name(StepPart part) {
  switch (part) {
    case StepPart::kAttention: return "attention";
    case StepPart::kProducts: return "products";
    case StepPart::kElementwise: return "elementwise";
    case StepPart::kOptimizer: return "optimizer";
    case StepPart::kCopies: return "copies";
    case StepPart::kWaiting: return "waiting";
  }
  return "";
}

StepPart part_of_kernel(const std::string& name) {
  if (has_any(name, {"Memcpy", "Memset"})) return StepPart::kCopies;
  if (has_any(name, {"multi_tensor_apply", "FusedAdam"})) return StepPart::kOptimizer;
  if (has_any(name, {"gemm", "gemv", "cutlass", "nvjet", "cublas", "splitK", "linear_rows", "implicit_conv", "xmma"}) &&
      !has_any(name, {"fmha", "flash"}))
    return StepPart::kProducts;
  if (has_any(name, {"fmha", "flash", "sdpa", "softmax"})) return StepPart::kAttention;
  // Ours beside the operator.
  if (has_any(name, {"norm", "rope", "swiglu", "grid_conv", "row_", "cross_entropy"})) return StepPart::kElementwise;
  return has_any(name, {"mhla::"}) ? StepPart::kAttention : StepPart::kElementwise;
}

StepPart part_of_operator(const std::string& name) {
  if (has_any(name, {"AdamW", "gradient_norms", "_foreach", "_fused_adam"})) return StepPart::kOptimizer;
  if (has_any(name, {"bidirectional", "chunkwise", "Bidirectional", "Chunkwise", "PackedFunction", "mhla::streaming",
                     "scaled_dot_product", "softmax", "Softmax"}))
    return StepPart::kAttention;
  if (has_any(name, {"linear_layer", "linear_rows", "LinearFunction", "aten::linear", "aten::addmm", "aten::mm",
                     "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum", "convolution", "Convolution",
                     "aten::_mkldnn", "mkldnn_"}))
    return StepPart::kProducts;
  if (has_any(name, {"aten::copy_", "aten::contiguous", "aten::clone", "aten::_to_copy", "aten::to"}))
    return StepPart::kCopies;
  return StepPart::kElementwise;
}

double StepProfile::ms_of(StepPart part) const {
  double sum = 0;
  for (const Row& row : rows)
    if (row.part == part) sum += row.ms;
  return sum;
}

JsonValue StepProfile::json(std::size_t most) const {
  JsonValue all = JsonValue().set("ms", ms);
  for (const StepPart part : {StepPart::kAttention, StepPart::kProducts, StepPart::kElementwise, StepPart::kOptimizer,
                              StepPart::kCopies, StepPart::kWaiting})
    all.set(step_part_name(part), ms_of(part));
  JsonValue list = JsonValue::array();
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i)
    list.push(JsonValue()
                  .set("name", rows[i].name)
                  .set("part", step_part_name(rows[i].part))
                  .set("calls", rows[i].calls)
                  .set("ms", rows[i].ms));
  return all.set("rows", list);
}

StepProfile profile_of(const torch::Device& device, int steps, const std::function<void()>& step) {
  milliseconds_of(device, step);
#ifdef MHLA_TORCH_CUDA
  if (device.is_cuda()) return profile_on_device(device, steps, step);
#endif
  return profile_on_host(steps, step);
}

}  // namespace mhla::apps
