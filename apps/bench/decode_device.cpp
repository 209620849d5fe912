// bench op --form decode on a CUDA device: one token for every sequence, layer after layer, as a language model calls
// it.
//   together   all sequences at the same place of their chunk: most steps read prefixes and open chunks alone, one in C
//              completes a chunk everywhere
//   apart      spread evenly over a chunk, as a server has them: every step completes a chunk of some
// A step is one call per layer. Its time is that between two events around all of them; before it a buffer is written
// for as long as the calls take to launch, so that launching costs no time and nothing is left in the cache.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/bench/bench.h"
#include "apps/bench/device.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/run_case.h"
#include "mhla/testing/run_case_device.h"

namespace mhla::apps {
namespace {

constexpr int kDevice = 0;
constexpr std::int64_t kDefaultSequences = 64, kDefaultLayers = 24;

StreamingConfig config_of(const OpShape& shape, DType dtype) {
  StreamingConfig c;
  c.H = shape.H, c.Hkv = shape.Hkv, c.D = shape.D, c.E = shape.E, c.chunk = shape.chunk(), c.dtype = dtype;
  c.device = kDevice;
  return c;
}

// Decode must agree, bit for bit, with one chunkwise pass over the same tokens.
std::string verify_decode(const OpShape& shape, DType dtype, const std::string& backend) {
  Case c;
  c.form = Form::kCausal, c.dtype = dtype, c.normalizer = Normalizer::kNone, c.layout = Layout::line(shape.chunk());
  c.B = 1, c.N = 2 * shape.chunk() + 3, c.H = shape.H, c.Hkv = shape.Hkv, c.D = shape.D, c.E = shape.E;
  const CaseInputs host(c);
  RunOptions run;
  run.candidate = backend;
  const Tensor want = run_case(c, host, run, kOnlyOut).out;
  CaseInputs inputs = host.alias();
  Tensor got(dtype, {1, c.N, c.H, c.E});
  View out = got.view();
  DevicePlace place(kDevice, nullptr);
  place.move_input(inputs.q, "q"), place.move_input(inputs.k, "k"), place.move_input(inputs.v, "v");
  place.move_output(out, got.guarded_bytes(), "out");
  StreamingState state(config_of(shape, dtype), host.mix, backend);
  StreamingState* const pointer = &state;
  const auto token = [](auto view, std::int64_t t) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
    view.data = static_cast<Byte*>(view.data) + t * view.stride[1] * size_of(view.dtype);
    view.shape[1] = 1;
    return view;
  };
  for (std::int64_t t = 0; t < c.N; ++t) {
    StreamingParams params;
    params.states = {&pointer, 1};
    params.q = token(inputs.q, t), params.k = token(inputs.k, t), params.v = token(inputs.v, t);
    params.out = token(out, t);
    streaming_append(params, run);
  }
  place.finish(c.name());
  return got.same_bits(want) ? std::string() : "decode differs from one pass, " + worst_element(got, want);
}

// T tokens of `sequences` sequences on the device.
class DeviceTokens {
 public:
  DeviceTokens(const StreamingConfig& c, std::int64_t sequences, std::int64_t T) {
    q_ = put(c.dtype, {sequences, T, c.H, c.D}), k_ = put(c.dtype, {sequences, T, c.Hkv, c.D});
    v_ = put(c.dtype, {sequences, T, c.Hkv, c.E}), out_ = put(c.dtype, {sequences, T, c.H, c.E});
  }
  void append(std::span<StreamingState* const> states, const RunOptions& run) const {
    StreamingParams params;
    params.states = states;
    params.q = q_, params.k = k_, params.v = v_, params.out = out_;
    streaming_append(params, run);
  }

 private:
  View put(DType dtype, const std::vector<std::int64_t>& shape) {
    Random random(11 + memory_.size());
    Tensor host(dtype, shape);
    host.normal(random);
    View view = host.view();
    const std::int64_t bytes = host.numel() * size_of(dtype);
    memory_.emplace_back(bytes, kDevice);
    device_copy(memory_.back().data(), host.data(), bytes, kDevice);
    view.data = memory_.back().data(), view.device = kDevice;
    return view;
  }
  std::vector<DeviceBuffer> memory_;
  View q_, k_, v_, out_;
};

struct StepTimes {
  Samples device, host;
  double bytes = 0.0;                             // of the mean step: prefixes, open chunks, q and out
  double boundary_bytes = 0.0;                    // summaries read and prefixes written where chunks are complete
  double quiet_seconds = 0.0, quiet_bytes = 0.0;  // the median step that completes none; 0: there is none
  double mean_seconds = 0.0;
};

class DeviceDecodeBench {
 public:
  DeviceDecodeBench(const BenchOptions& options, const OpShape& shape, DType dtype, const std::string& backend,
                    const Output& out)
      : shape_(shape), config_(config_of(shape, dtype)), backend_(backend), out_(out) {
    sequences_ = options.shape.batch > 0 ? options.shape.batch : kDefaultSequences;
    layers_ = options.layers > 0 ? options.layers : kDefaultLayers;
    run_.candidate = backend_;
  }

  int run() {
    if (const std::string failure = verify_decode(shape_, config_.dtype, backend_); !failure.empty()) {
      complain(str("bench op: decode by ", backend_, " fails its check, so it is not timed: ", failure));
      out_.row(head("all").set("verified", false).set("failure", failure).set("ms", nullptr));
      return kFailed;
    }
    copy_gbytes_per_s_ = device_copy_bandwidth(kDevice);
    row("together", false);
    row("apart", true);
    return kDone;
  }

 private:
  // Positions in [N - C, N) at first, then 2 C steps: the chunk before them warms up, the one after is timed.
  [[nodiscard]] std::int64_t start() const { return std::max<std::int64_t>(0, shape_.N - 2 * config_.chunk); }

  StepTimes time(bool apart) {
    const std::int64_t C = config_.chunk, rows = (start() + 4 * C) / C + 1;
    Random random(5);
    Tensor mix(DType::kF32, {rows, rows});
    mix.uniform(random, 0.1, 1.0);
    const DeviceStream stream(kDevice);
    run_.stream = stream.get();
    StreamingState first(config_, mix.view(), backend_);
    check_memory(first.bytes());
    StreamingState* const pointer = &first;
    if (start() > 0) DeviceTokens(config_, 1, start()).append({&pointer, 1}, run_);
    std::vector<StreamingState> states;
    states.reserve(static_cast<std::size_t>(sequences_ * layers_));
    const DeviceTokens one(config_, 1, 1);
    for (std::int64_t b = 0; b < sequences_; ++b) {
      states.push_back(first);
      StreamingState* const own = &states.back();
      for (std::int64_t t = apart ? b * C / sequences_ : 0; t > 0; --t) one.append({&own, 1}, run_);
    }
    for (std::int64_t i = sequences_; i < sequences_ * layers_; ++i)
      states.push_back(states[static_cast<std::size_t>(i - sequences_)]);
    std::vector<StreamingState*> pointers;
    for (StreamingState& state : states) pointers.push_back(&state);

    const DeviceTokens tokens(config_, sequences_, 1);
    const DeviceBuffer flush(std::min(std::max<std::int64_t>(layers_, 2) << 27, device_free_bytes(kDevice) / 2),
                             kDevice);
    device_wait(kDevice);
    DeviceTimer timer(kDevice);
    StepTimes times;
    Samples quiet;
    double seconds = 0.0;
    for (std::int64_t step = 0; step < 2 * C; ++step) {
      Counts counts, boundary;
      for (std::int64_t b = 0; b < sequences_; ++b) {
        const std::int64_t position = states[static_cast<std::size_t>(b)].position(), inside = position % C + 1;
        counts.bytes += count_decode(shape_.sizes(), inside, size_of(config_.dtype), prefix_bytes()).bytes;
        if (inside == C) boundary.bytes += count_boundary(shape_.sizes(), position / C + 1, prefix_bytes()).bytes;
      }
      device_fill(flush.data(), static_cast<unsigned char>(step), flush.size(), kDevice, run_.stream);
      timer.start(run_.stream);
      const double before = now_seconds();
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        const auto offset = static_cast<std::size_t>(layer * sequences_);
        tokens.append(std::span(pointers).subspan(offset, static_cast<std::size_t>(sequences_)), run_);
      }
      const double host = now_seconds() - before;
      timer.stop(run_.stream);
      const double device = timer.milliseconds() * 1e-3;
      if (step < C) continue;
      times.device.add(device), times.host.add(host);
      times.bytes += counts.bytes / static_cast<double>(C) * static_cast<double>(layers_);
      times.boundary_bytes += boundary.bytes / static_cast<double>(C) * static_cast<double>(layers_);
      seconds += device;
      if (boundary.bytes == 0.0) quiet.add(device), times.quiet_bytes += counts.bytes * static_cast<double>(layers_);
    }
    times.mean_seconds = seconds / static_cast<double>(C);
    times.quiet_seconds = quiet.quantile(0.5);
    if (quiet.count() > 0) times.quiet_bytes /= quiet.count();
    return times;
  }

  [[nodiscard]] std::int64_t prefix_bytes() const { return config_.dtype == DType::kBF16 ? 2 : 4; }  // of an element

  void check_memory(std::int64_t state_bytes) const {
    const std::int64_t needed = state_bytes * sequences_ * layers_, free = device_free_bytes(kDevice);
    if (needed > free / 10 * 9)
      fail("bench op: decode of ", sequences_, " sequences x ", layers_, " layers needs ", bytes_text(needed),
           ", cuda:", kDevice, " has ", bytes_text(free), " free; a smaller --batch or --layers needs less");
  }

  [[nodiscard]] JsonValue head(const char* level) const {
    return JsonValue()
        .set("shape", shape_.name)
        .set("form", "decode")
        .set("dtype", name_of(config_.dtype))
        .set("pass", "fwd")
        .set("backend", backend_)
        .set("device", device_facts(kDevice).name)
        .set("driver", version_text(device_facts(kDevice).driver_version))
        .set("H", shape_.H)
        .set("Hkv", shape_.Hkv)
        .set("D", shape_.D)
        .set("E", shape_.E)
        .set("chunk", shape_.chunk())
        .set("sequences", sequences_)
        .set("layers", layers_)
        .set("position", start() + config_.chunk)
        .set("level", level);
  }

  void row(const char* level, bool apart) {
    out_.progress(fmt::format("decode on the device, {}", level));
    const StepTimes t = time(apart);
    const auto of_copy = [&](double bytes, double seconds) {
      return seconds > 0.0 ? bytes / seconds * 1e-9 / copy_gbytes_per_s_ : 0.0;
    };
    const double share = of_copy(t.bytes + t.boundary_bytes, t.mean_seconds);
    const double quiet = of_copy(t.quiet_bytes, t.quiet_seconds);
    const std::string without = t.quiet_seconds > 0.0 ? fmt::format("; {:.1f} us and {:.0f} % without a boundary",
                                                                    t.quiet_seconds * 1e6, 100.0 * quiet)
                                                      : std::string();
    out_.line(fmt::format(
        "{} decode {} {} {}: {:.1f} us a token of {} sequences x {} layers (mean over a chunk, {:.1f} MB, {:.0f} % of "
        "the {:.0f} GB/s copy){}; host {:.1f} us",
        shape_.name, name_of(config_.dtype), backend_, level, t.mean_seconds * 1e6, sequences_, layers_,
        (t.bytes + t.boundary_bytes) * 1e-6, 100.0 * share, copy_gbytes_per_s_, without, t.host.quantile(0.5) * 1e6));
    out_.row(
        head(level)
            .set("verified", true)
            .set("ms", t.device.median_ms())
            .set("mean_ms", t.mean_seconds * 1e3)
            .set("best_ms", t.device.best_ms())
            .set("spread", t.device.spread())
            .set("repeats", t.device.count())
            .set("host_ms", t.host.median_ms())
            .set("bytes", t.bytes)
            .set("boundary_bytes", t.boundary_bytes)
            .set(
                "bytes_formula",
                "per sequence and layer: mixed prefix Hkv D E p + (open chunk Hkv t (D + E) + q and out H (D + E)) w; "
                "where chunk i is complete: Hkv D E (4 (i + 2) + p) more; p: 2 in bf16, else 4; w: bytes of an element")
            .set("gbytes_per_s", (t.bytes + t.boundary_bytes) / t.mean_seconds * 1e-9)
            .set("copy_gbytes_per_s", copy_gbytes_per_s_)
            .set("of_bandwidth", share)
            .set("quiet_ms", t.quiet_seconds > 0.0 ? JsonValue(t.quiet_seconds * 1e3) : JsonValue())
            .set("quiet_of_bandwidth", t.quiet_seconds > 0.0 ? JsonValue(quiet) : JsonValue()));
  }

  OpShape shape_;
  StreamingConfig config_;
  std::string backend_;
  const Output& out_;
  std::int64_t sequences_ = 0, layers_ = 0;
  RunOptions run_;
  double copy_gbytes_per_s_ = 0.0;
};

}  // namespace

int bench_decode_device(const BenchOptions& options, const OpShape& shape, DType dtype, const std::string& backend,
                        const Output& out) {
  return DeviceDecodeBench(options, shape, dtype, backend, out).run();
}

}  // namespace mhla::apps
