#include "apps/bench/device.h"

#include <algorithm>
#include <memory>

#include "apps/cli/host.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"

namespace mhla::apps {
namespace {

constexpr int kQueued = 20;  // samples in the queue at once
// Some 60 us on the fastest cards: longer than a call takes to launch.
constexpr std::int64_t kLeastFlush = std::int64_t{256} << 20;

std::int64_t bytes_of(const ConstView& view) { return view.numel() * size_of(view.dtype); }

}  // namespace

DeviceProblem::DeviceProblem(const OpShape& shape, DType dtype, Pass pass, const std::string& backend, int device)
    : shape_(shape), pass_(pass), backend_(backend), device_(device), stream_(device) {
  run_.candidate = backend_;
  run_.stream = stream_.get();
  expect_fits("bench op: " + shape.name, op_memory(shape, dtype, pass, 1));
  expect_fits("bench op: " + shape.name,
              MemoryEstimate().add("tensors", static_cast<double>(tensor_bytes(shape, dtype, pass))),
              device_memory_at_hand(device));
  host_ = make_tensors(shape, dtype, pass, 1000);
  views_ = views_of(host_);
  for (ConstView* view : {&views_.q, &views_.k, &views_.v, &views_.mix, &views_.dout}) move(*view);
  for (View* view : {&views_.out, &views_.dq, &views_.dk, &views_.dv, &views_.dmix}) move(*view);
  backward_run_ = run_;
  if (pass == Pass::kBoth) (void)backward_workspace();  // who runs it
  if (pass == Pass::kBoth && keeps_summaries() && !backward_by_list())
    kept_ = DeviceBuffer(kept_bytes(shape_, views_, run_), device_);
  run_.kept = backward_run_.kept = kept_.bytes();
  std::int64_t bytes = pass == Pass::kBackward ? 0 : workspace_bytes(shape_, Pass::kForward, views_, run_);
  if (pass != Pass::kForward) bytes = std::max(bytes, backward_workspace());
  workspace_ = DeviceBuffer(bytes, device_);
  run_.workspace = backward_run_.workspace = workspace_.bytes();
  flush_ = DeviceBuffer(std::max(2 * device_facts(device).l2_bytes, kLeastFlush), device_);
  device_synchronize(device_);
}

std::int64_t DeviceProblem::backward_workspace() {
  try {
    return workspace_bytes(shape_, Pass::kBackward, views_, backward_run_);
  } catch (const NoCandidate&) {
    if (pass_ != Pass::kBoth) throw;
    backward_run_.candidate = {};
    return workspace_bytes(shape_, Pass::kBackward, views_, backward_run_);
  }
}

void DeviceProblem::move(ConstView& view) {
  if (!view.given()) return;
  memory_.emplace_back(bytes_of(view), device_);
  device_copy(memory_.back().data(), view.data, bytes_of(view), device_);
  view.data = memory_.back().data();
  view.device = device_;
}

void DeviceProblem::move(View& view) {
  if (!view.given()) return;
  ConstView moved = view;
  move(moved);
  view.data = memory_.back().data();
  view.device = device_;
}

void DeviceProblem::bring_back(const View& from, Tensor& to) const {
  if (from.given()) device_copy(to.data(), from.data, bytes_of(from), device_);
}

OpTensors& DeviceProblem::bring_back() {
  bring_back(views_.out, host_.out);
  bring_back(views_.dq, host_.dq);
  bring_back(views_.dk, host_.dk);
  bring_back(views_.dv, host_.dv);
  bring_back(views_.dmix, host_.dmix);
  return host_;
}

void DeviceProblem::call() {
  if (pass_ != Pass::kBackward) run_pass(shape_, Pass::kForward, views_, run_);
  if (pass_ != Pass::kForward) run_pass(shape_, Pass::kBackward, views_, backward_run_);
}

void DeviceProblem::run() {
  call();
  device_synchronize(device_, stream_.get());
}

DeviceProblem::Times DeviceProblem::time(int repeat, double min_seconds) {
  std::vector<std::unique_ptr<DeviceTimer>> timers;
  for (int i = 0; i < kQueued; ++i) timers.push_back(std::make_unique<DeviceTimer>(device_));
  Times times;
  double started = 0.0;
  for (int round = 0; round == 0 || times.device.count() < repeat || now_seconds() - started < min_seconds; ++round) {
    for (int i = 0; i < kQueued; ++i) {
      device_fill(flush_.data(), static_cast<unsigned char>(i), flush_.size(), device_, stream_.get());
      timers[static_cast<std::size_t>(i)]->start(stream_.get());
      const double before = now_seconds();
      call();
      if (round > 0) times.host.add(now_seconds() - before);
      timers[static_cast<std::size_t>(i)]->stop(stream_.get());
    }
    device_synchronize(device_, stream_.get());
    if (round == 0) started = now_seconds();  // the first is warm-up
    for (int i = 0; round > 0 && i < kQueued; ++i)
      times.device.add(timers[static_cast<std::size_t>(i)]->milliseconds() * 1e-3);
  }
  return times;
}

double device_copy_bandwidth(int device) {
  const std::int64_t bytes = std::min(std::int64_t{1} << 30, device_free_bytes(device) / 8);
  const DeviceStream stream(device);
  const DeviceBuffer from(bytes, device, stream.get()), to(bytes, device, stream.get());
  device_fill(from.data(), 1, bytes, device, stream.get());
  DeviceTimer timer(device);
  Samples samples;
  for (int i = 0; i < 12; ++i) {
    timer.start(stream.get());
    device_copy(to.data(), from.data(), bytes, device, stream.get());
    timer.stop(stream.get());
    samples.add(timer.milliseconds() * 1e-3);
  }
  return 2.0 * static_cast<double>(bytes) / samples.best_ms() * 1e-6;
}

}  // namespace mhla::apps
