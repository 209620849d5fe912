// One candidate against the reference, and simple timings, in a program that needs nothing but this repository:
// no GoogleTest, no Highway. smoke.sh builds it, for a GPU or for the emulator.
//   smoke [CANDIDATE] check [quick] [seed]   every check of mhla/testing over fixed and random cases; a line per
//   failure smoke [CANDIDATE] case|accuracy NAME     one case, as a failure names it: all checks or the first smoke
//   [CANDIDATE] time [shape]           median milliseconds of the named shapes in bf16
// CANDIDATE: cuda unless given; in the emulator also sm80 and sm90, of which checks are cases that they take.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/testing/accuracy.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

std::string_view candidate = "cuda";

struct Counts {
  int checks = 0, failures = 0;
};

void check(Counts& counts, const char* what, const Case& c, const std::function<std::string()>& run) {
  std::string wrong;
  try {
    wrong = run();
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  ++counts.checks;
  if (wrong.empty()) return;
  ++counts.failures;
  std::replace(wrong.begin(), wrong.end(), '\n', ' ');
  std::printf("FAIL %s: %s: %s\n", what, c.name().c_str(), wrong.substr(0, 300).c_str());
  std::fflush(stdout);
}

std::int64_t count_of(Random& random, std::int64_t grid) {  // of blocks, none of them empty
  const std::int64_t step = 1 + random.below(grid);
  return (grid + step - 1) / step;
}

// Any layout, any options, sizes around the tiles of the kernels.
Case random_case(Random& random, Form form, bool quick) {
  const auto pick = [&](std::initializer_list<std::int64_t> list) {
    return *(list.begin() + random.below(static_cast<std::int64_t>(list.size())));
  };
  Case c;
  c.form = form;
  c.dtype = static_cast<DType>(random.below(3));
  c.B = 1 + random.below(3), c.Hkv = 1 + random.below(2), c.H = c.Hkv * (1 + random.below(2));
  const auto head_size = [&] {
    return quick ? pick({1, 3, 8, 16, 20, 33, 64, 72}) : pick({1, 2, 5, 8, 16, 24, 31, 40, 64, 72, 80, 128, 130, 256});
  };
  c.D = head_size(), c.E = head_size();
  const int rank = form == Form::kCausal ? 1 : 1 + static_cast<int>(random.below(3));
  if (rank == 1) {
    c.layout = Layout::line(quick ? pick({1, 7, 16, 33, 64, 70}) : pick({1, 7, 16, 31, 33, 64, 70, 100, 128, 150}));
    c.N = 1 + random.below(quick ? 160 : 700);
    if (c.layout.block_size == 1) c.N = 1 + c.N % 90;
  } else {
    const std::int64_t frames = rank == 3 ? 1 + random.below(4) : 1;
    const std::int64_t rows = 1 + random.below(quick ? 9 : 16), columns = 1 + random.below(quick ? 9 : 18);
    c.layout = rank == 2 ? Layout::grid2d(rows, columns, count_of(random, rows), count_of(random, columns))
                         : Layout::grid3d({frames, rows, columns}, {count_of(random, frames), count_of(random, rows),
                                                                    count_of(random, columns)});
    c.N = frames * rows * columns;
  }
  c.feature_map = static_cast<FeatureMap>(random.below(4));
  c.normalizer = static_cast<Normalizer>(random.below(form == Form::kCausal ? 2 : 3));
  c.eps = 0.1;
  if (random.below(2) != 0) c.scale = 0.6;
  c.den = c.normalizer != Normalizer::kNone && random.below(3) == 0;
  c.per_head = random.below(2) != 0;
  c.fused = random.below(3) == 0;
  if (rank == 1 && random.below(3) == 0) {
    c.B = 1;
    c.cu_seqlens = {0};
    for (std::int64_t cuts = random.below(4); cuts > 0; --cuts)
      c.cu_seqlens.push_back(c.cu_seqlens.back() + random.below(c.N - c.cu_seqlens.back() + 1));
    c.cu_seqlens.push_back(c.N);
  }
  for (const Sequence& sequence : c.sequences()) {
    if (c.normalizer == Normalizer::kOfficial && !BlockMap(c.layout, sequence.length).equal_blocks())
      c.normalizer = Normalizer::kPaper;
  }
  if (rank == 1 && random.below(3) == 0) c.rows = c.blocks() + random.below(3);
  if (form == Form::kCausal && random.below(3) == 0) c.rows = 1 + random.below(c.blocks()), c.extend = true;
  // With one block mix cancels out of the normalised output: one entry of dmix that is nothing but rounding.
  if (c.blocks() <= 1) c.normalizer = Normalizer::kNone, c.den = false;
  c.seed = random.bits() % 100000;
  return c;
}

void check_all(Counts& counts, const Case& c, bool accuracy_only) {
  if (candidate != "cuda" && !steps_aside(c, candidate, true).empty()) return;
  check(counts, "accuracy", c, [&] { return check_accuracy(c, candidate); });
  if (accuracy_only) return;
  check(counts, "repeatable", c, [&] { return check_repeatable(c, candidate); });
  check(counts, "alone", c, [&] { return check_alone(c, candidate); });
  check(counts, "nan", c, [&] { return check_nan_stays(c, candidate); });
  check(counts, "strides", c, [&] { return check_strides(c, candidate); });
}

int run_checks(bool quick, std::uint64_t seed) {
  Counts counts;
  for (const Form form : {Form::kBidirectional, Form::kCausal}) {
    const Counts before = counts;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      if (candidate != "cuda" && dtype != DType::kBF16) continue;
      int index = 0;
      for (Case c : candidate == "cuda" ? std::vector<Case>() : fast_path_shapes(form)) {
        c.dtype = dtype;
        check_all(counts, c, ++index % (quick ? 16 : 3) != 0);
      }
      index = 0;
      for (Case c : forgotten_shapes(form)) {
        c.dtype = dtype;
        if (dtype == DType::kF16) c.eps = std::max(c.eps, 0.01);  // plain f16 code must be able to divide by it
        check_all(counts, c, ++index % (quick ? 16 : 3) != 0);
      }
      index = 0;
      for (Case c : option_combinations(form)) {
        c.dtype = dtype;
        if (quick && ++index % 4 != 0) continue;
        check_all(counts, c, index % 8 != 0);
      }
    }
    Random random(seed);
    for (int repeat = 0; repeat < (quick ? 40 : 150); ++repeat)
      check_all(counts, random_case(random, form, quick), repeat % 4 != 0);
    std::printf("%s: %d checks, %d failures\n", form == Form::kCausal ? "causal" : "bidirectional",
                counts.checks - before.checks, counts.failures - before.failures);
    std::fflush(stdout);
  }
  std::printf("%s", accuracy_summary().c_str());
  std::printf("smoke: %d checks, %d failures\n", counts.checks, counts.failures);
  return counts.failures == 0 ? 0 : 1;
}

int run_case_alone(const char* name, bool accuracy_only) {
  Counts counts;
  if (const std::string why = steps_aside(parse_case(name), candidate, true); !why.empty())
    fail(candidate, " does not take it: ", why);
  check_all(counts, parse_case(name), accuracy_only);
  std::printf("%ssmoke: %d checks, %d failures\n", accuracy_summary().c_str(), counts.checks, counts.failures);
  return counts.failures == 0 ? 0 : 1;
}

struct Named {
  const char* name;
  Form form;
  std::int64_t B, H, N, D, E;
  Layout layout;
};

std::vector<Named> named_shapes() {
  const Form two = Form::kBidirectional, causal = Form::kCausal;
  return {{"deit_t_224", two, 128, 3, 256, 64, 64, Layout::grid2d(16, 16, 4, 4)},
          {"dit_s_256", two, 64, 6, 256, 64, 64, Layout::grid2d(16, 16, 4, 4)},
          {"dit_xl_512", two, 16, 16, 1024, 72, 72, Layout::grid2d(32, 32, 4, 4)},
          {"sana_1024", two, 8, 36, 1024, 32, 32, Layout::grid2d(32, 32, 4, 4)},
          {"dit_s_4096", two, 1, 6, 65536, 64, 64, Layout::grid2d(256, 256, 16, 16)},
          {"wan_480p", two, 1, 12, 31500, 128, 128, Layout::grid3d({21, 30, 50}, {7, 3, 5})},
          {"lm_2048", causal, 16, 4, 2048, 128, 256, Layout::line(64)},
          {"lm_16384", causal, 2, 4, 16384, 128, 256, Layout::line(128)},
          {"lm_65536", causal, 1, 4, 65536, 128, 256, Layout::line(256)}};
}

// Memory of a device with random bf16 in [0, 2), the same for every tensor: only time is looked at.
class DeviceValues {
 public:
  explicit DeviceValues(std::int64_t count) : buffer_(2 * count, 0) {
    std::vector<bf16> values(1 << 20);
    Random random(7);
    for (bf16& value : values) value = to_bf16(static_cast<float>(2 * random.uniform()));
    for (std::int64_t done = 0; done < count; done += static_cast<std::int64_t>(values.size())) {
      const auto some = std::min<std::int64_t>(count - done, static_cast<std::int64_t>(values.size()));
      device_copy(buffer_.data() + 2 * done, values.data(), 2 * some, 0);
    }
  }
  View view(std::initializer_list<std::int64_t> shape) const {
    View v(buffer_.data(), DType::kBF16, shape);
    v.device = 0;
    return v;
  }

 private:
  DeviceBuffer buffer_;
};

// Median of the time on the device, the L2 cache overwritten before every run.
double median_ms(const DeviceBuffer& flush, const std::function<void()>& work) {
  DeviceTimer timer(0);
  std::vector<double> times;
  for (int run = 0; run < 15; ++run) {
    device_fill(flush.data(), 0, flush.size(), 0);
    timer.start(nullptr);
    work();
    timer.stop(nullptr);
    if (run >= 4) times.push_back(timer.milliseconds());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void time_shape(const Named& s, const DeviceBuffer& flush) {
  const std::int64_t keys = s.B * s.N * s.H * s.D, values = s.B * s.N * s.H * s.E;
  const DeviceValues q(keys), k(keys), v(values), dout(values), out(values), dq(keys), dk(keys), dv(values);
  const std::int64_t M = BlockMap(s.layout, s.N).blocks();
  std::vector<float> ones(static_cast<std::size_t>(M * M), 1.0f / static_cast<float>(M));
  const DeviceBuffer mix_memory(4 * M * M, 0), dmix_memory(4 * M * M, 0);
  device_copy(mix_memory.data(), ones.data(), 4 * M * M, 0);
  ConstView mix(mix_memory.data(), DType::kF32, {M, M});
  View dmix(dmix_memory.data(), DType::kF32, {M, M});
  mix.device = dmix.device = 0;
  RunOptions run;
  run.candidate = candidate;
  double forward = 0, backward = 0;
  std::int64_t forward_bytes = 0, backward_bytes = 0;
  DeviceBuffer workspace;
  const auto measure = [&](std::int64_t bytes, const std::function<void()>& work) {
    workspace = DeviceBuffer(bytes, 0);
    run.workspace = workspace.bytes();
    return median_ms(flush, work);
  };
  const View out_view = out.view({s.B, s.N, s.H, s.E});
  const auto fill = [&](auto& params) {
    params.q = q.view({s.B, s.N, s.H, s.D}), params.k = k.view({s.B, s.N, s.H, s.D});
    params.v = v.view({s.B, s.N, s.H, s.E}), params.mix = mix;
  };
  const auto give = [&](auto& grads) {
    grads.dout = dout.view({s.B, s.N, s.H, s.E}), grads.dq = dq.view({s.B, s.N, s.H, s.D});
    grads.dk = dk.view({s.B, s.N, s.H, s.D}), grads.dv = dv.view({s.B, s.N, s.H, s.E}), grads.dmix = dmix;
  };
  if (s.form == Form::kBidirectional) {
    BidirectionalParams params;
    BidirectionalGrads grads;
    fill(params), give(grads);
    params.layout = s.layout;
    forward_bytes = bidirectional_forward_workspace(params, out_view, run);
    backward_bytes = bidirectional_backward_workspace(params, grads, run);
    forward = measure(forward_bytes, [&] { bidirectional_forward(params, out_view, run); });
    backward = measure(backward_bytes, [&] { bidirectional_backward(params, grads, run); });
  } else {
    ChunkwiseParams params;
    ChunkwiseGrads grads;
    fill(params), give(grads);
    params.chunk = s.layout.block_size;
    forward_bytes = chunkwise_forward_workspace(params, out_view, run);
    backward_bytes = chunkwise_backward_workspace(params, grads, run);
    forward = measure(forward_bytes, [&] { chunkwise_forward(params, out_view, run); });
    backward = measure(backward_bytes, [&] { chunkwise_backward(params, grads, run); });
  }
  const double floor = 2.0 * static_cast<double>(2 * keys + 2 * values) / 4.2e9;  // ms at 4.2 TB/s
  std::printf("%-11s forward %8.3f ms (%5.1f x floor)  backward %8.3f ms  sum %8.3f  workspace %6.1f / %6.1f MiB\n",
              s.name, forward, forward / floor, backward, forward + backward,
              static_cast<double>(forward_bytes) / (1 << 20), static_cast<double>(backward_bytes) / (1 << 20));
  std::fflush(stdout);
}

int run_times(std::string_view only) {
  const DeviceFacts facts = device_facts(0);
  std::printf("%s, %d multiprocessors, L2 %.0f MiB; bf16, median of 11, L2 flushed\n", facts.name.c_str(),
              facts.multiprocessors, static_cast<double>(facts.l2_bytes) / (1 << 20));
  const DeviceBuffer flush(2 * std::max<std::int64_t>(facts.l2_bytes, 1 << 20), 0);
  for (const Named& shape : named_shapes()) {
    if (only.empty() || std::string_view(shape.name).find(only) != std::string_view::npos) time_shape(shape, flush);
  }
  return 0;
}

}  // namespace
}  // namespace mhla

int main(int argc, char** argv) {
  using namespace mhla;
  try {
    if (const std::string missing = cuda_missing(); !missing.empty()) fail(missing);
    if (const std::string_view first = argc > 1 ? argv[1] : ""; first == "cuda" || first == "sm80" || first == "sm90")
      candidate = first, --argc, ++argv;
    const std::string_view command = argc > 1 ? argv[1] : "check";
    if (command == "time") return run_times(argc > 2 ? argv[2] : "");
    if ((command == "case" || command == "accuracy") && argc > 2) return run_case_alone(argv[2], command == "accuracy");
    const bool quick = argc > 2 && std::strcmp(argv[2], "quick") == 0;
    const char* seed = argc > 2 ? argv[argc - 1] : "1";
    return run_checks(quick, std::strtoull(seed, nullptr, 10));
  } catch (const std::exception& error) {
    std::printf("smoke: %s\n", error.what());
    return 2;
  }
}
