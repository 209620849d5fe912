// Streaming on a CUDA device as programs run it: recorded into a graph, on a stream of the caller's, over many steps of
// a batch. Skipped, with the reason, where there is no device.
#include <gtest/gtest.h>

#include <optional>

#include "mhla/core/cuda.h"
#include "mhla/core/device_graph.h"
#include "mhla/kernels/streaming/streaming_device_fixture.h"

namespace mhla {
namespace {

constexpr int kDevice = 0;

class CudaStream : public testing::Test {
 protected:
  CudaStream() {
    c_.form = Form::kCausal, c_.dtype = DType::kBF16, c_.B = 3, c_.N = 100, c_.H = 4, c_.Hkv = 2, c_.D = 64, c_.E = 72;
    c_.layout = Layout::line(16), c_.eps = 0.1;
  }
  void SetUp() override {
    if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  }
  [[nodiscard]] Tensor wanted(const CaseInputs& inputs) const {
    RunOptions run;
    run.candidate = "cuda";
    return run_case(c_, inputs, run, kOnlyOut).out;
  }
  Case c_;
};

// Recording moves the counters, launching moves the memory: calls that alternate with launches go on as if all were
// direct. 31 + 1 completes a chunk, so that its summary and the next prefix are in the graph.
TEST_F(CudaStream, IsRecordedIntoAGraph) {
  const CaseInputs inputs(c_);
  const Tensor want = wanted(inputs);
  const DeviceStream stream(kDevice);
  Placed placed(c_, inputs, "cuda");
  std::vector<StreamingState> states = states_of(c_, inputs, "cuda", c_.B);
  RunOptions run;
  run.stream = stream.get();
  placed.append(pointers(states), 0, 31, 0, run);
  std::optional<DeviceGraph> decode, append;
  ASSERT_NO_THROW(decode.emplace(kDevice, stream.get(), [&] { placed.append(pointers(states), 31, 1, 0, run); }));
  decode->launch(stream.get());
  const DeviceBuffer workspace(std::int64_t{64} << 20, kDevice);
  RunOptions given = run;
  given.workspace = workspace.bytes();
  device_synchronize(kDevice);
  ASSERT_NO_THROW(append.emplace(kDevice, stream.get(), [&] { placed.append(pointers(states), 32, 40, 0, given); }));
  append->launch(stream.get());
  for (std::int64_t t = 72; t < c_.N; ++t) placed.append(pointers(states), t, 1, 0, run);
  device_synchronize(kDevice, stream.get());
  const Tensor& got = placed.finish();
  EXPECT_TRUE(got.same_bits(want)) << worst_element(got, want);
}

// The shape of the language models, a batch whose sequences were appended to in different ways, against sequences
// alone.
TEST_F(CudaStream, ABatchHasTheBitsOfItsSequences) {
  c_.B = 6, c_.N = 200, c_.H = c_.Hkv = 4, c_.D = 128, c_.E = 256, c_.layout = Layout::line(64);
  const CaseInputs inputs(c_);
  const Tensor want = wanted(inputs);
  const DeviceStream stream(kDevice);
  RunOptions run;
  run.stream = stream.get();
  Placed placed(c_, inputs, "cuda");
  std::vector<StreamingState> states = states_of(c_, inputs, "cuda", c_.B);
  for (std::int64_t b = 0; b < c_.B; ++b) {
    StreamingState* const own = &states[static_cast<std::size_t>(b)];
    for (std::int64_t t = 0; t < 120; t += own->position() - t)
      placed.append({own}, t, std::min<std::int64_t>(120 - t, 1 + 13 * b), b, run);
  }
  for (std::int64_t t = 120; t < c_.N; ++t) placed.append(pointers(states), t, 1, 0, run);
  device_synchronize(kDevice, stream.get());
  const Tensor& got = placed.finish();
  EXPECT_TRUE(got.same_bits(want)) << worst_element(got, want);
}

// Destroying a state, or copying it, waits for calls that are under way on any stream.
TEST_F(CudaStream, CopiesWaitForTheDevice) {
  const CaseInputs inputs(c_);
  const Tensor want = wanted(inputs);
  const DeviceStream stream(kDevice);
  RunOptions run;
  run.stream = stream.get();
  Placed placed(c_, inputs, "cuda");
  const DeviceBuffer busy(std::int64_t{1} << 30, kDevice);
  device_wait(kDevice);
  std::optional<std::vector<StreamingState>> states = states_of(c_, inputs, "cuda", c_.B);
  device_fill(busy.data(), 1, busy.size(), kDevice, stream.get());
  placed.append(pointers(*states), 0, 40, 0, run);
  std::vector<StreamingState> copies = *states;
  states.reset();
  placed.append(pointers(copies), 40, c_.N - 40);
  const Tensor& got = placed.finish();
  EXPECT_TRUE(got.same_bits(want)) << worst_element(got, want);
}

}  // namespace
}  // namespace mhla
