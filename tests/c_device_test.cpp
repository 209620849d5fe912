// mhla/c.h on a CUDA device: tensors, workspace and stream of the caller there, the bits of the C++ calls. Skipped,
// with the reason, where there is no device; mistakes are refused everywhere.
#include <gtest/gtest.h>

#include "mhla/c.h"
#include "mhla/core/cuda.h"
#include "mhla/core/device_graph.h"
#include "mhla/testing/run_case.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {
namespace {

mhla_tensor c_tensor(const ConstView& view) {
  mhla_tensor tensor{};
  tensor.data = const_cast<void*>(view.data);
  tensor.dtype = static_cast<std::int32_t>(view.dtype), tensor.rank = view.rank, tensor.device = view.device + 1;
  std::copy_n(view.shape.begin(), view.rank, tensor.shape);
  std::copy_n(view.stride.begin(), view.rank, tensor.stride);
  return tensor;
}

mhla_tensor tokens_of(const ConstView& view, std::int64_t t, std::int64_t count) {
  mhla_tensor tensor = c_tensor(view);
  tensor.data = static_cast<char*>(tensor.data) + t * view.stride[1] * size_of(view.dtype);
  tensor.shape[1] = count;
  return tensor;
}

class CDevice : public testing::Test {
 protected:
  CDevice() {
    c_.form = Form::kCausal, c_.dtype = DType::kBF16, c_.B = 1, c_.N = 50, c_.H = 4, c_.Hkv = 2, c_.D = 16, c_.E = 24;
    c_.layout = Layout::line(8), c_.scale = 0.25;
  }
  void SetUp() override {
    if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  }
  Case c_;
};

TEST_F(CDevice, CallsRunOnTheStreamOfTheCaller) {
  const CaseInputs host(c_);
  RunOptions cuda;
  cuda.candidate = "cuda";
  const Tensor want = run_case(c_, host, cuda, kOnlyOut).out;
  Tensor got(c_.dtype, {c_.B, c_.N, c_.H, c_.E});
  const DeviceStream stream(0);
  DevicePlace place(0, stream.get());
  CaseInputs inputs = host.alias();
  View out = got.view();
  place.move_input(inputs.q, "q"), place.move_input(inputs.k, "k"), place.move_input(inputs.v, "v");
  place.move_input(inputs.mix, "mix"), place.move_output(out, got.guarded_bytes(), "out");

  mhla_chunkwise_params params;
  mhla_chunkwise_params_init(&params, sizeof params);
  params.q = c_tensor(inputs.q), params.k = c_tensor(inputs.k), params.v = c_tensor(inputs.v);
  params.mix = c_tensor(inputs.mix), params.chunk = c_.layout.block_size;
  params.normalizer = static_cast<std::int32_t>(c_.normalizer), params.eps = c_.eps;
  params.feature_map = static_cast<std::int32_t>(c_.feature_map);
  params.has_scale = 1, params.scale = 0.25;
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  EXPECT_EQ(options.stream, nullptr);
  options.candidate = "cuda", options.stream = stream.get();
  const mhla_tensor c_out = c_tensor(out);
  std::int64_t bytes = 0;
  ASSERT_EQ(mhla_chunkwise_forward_workspace(&params, &c_out, &options, &bytes), MHLA_OK) << mhla_last_error();
  const DeviceBuffer workspace(bytes, 0, stream.get());
  options.workspace = workspace.data(), options.workspace_bytes = static_cast<std::size_t>(bytes);
  const DeviceGraph graph(0, stream.get(), [&] {
    EXPECT_EQ(mhla_chunkwise_forward(&params, &c_out, &options), MHLA_OK) << mhla_last_error();
  });
  graph.launch(stream.get());
  place.finish(c_.name());
  EXPECT_TRUE(got.same_bits(want)) << worst_element(got, want);
}

TEST_F(CDevice, StreamsLiveOnTheDevice) {
  const CaseInputs host(c_);
  RunOptions cuda;
  cuda.candidate = "cuda";
  const Tensor want = run_case(c_, host, cuda, kOnlyOut).out;
  Tensor got(c_.dtype, {c_.B, c_.N, c_.H, c_.E});
  const DeviceStream stream(0);
  DevicePlace place(0, stream.get());
  CaseInputs inputs = host.alias();
  View out = got.view();
  place.move_input(inputs.q, "q"), place.move_input(inputs.k, "k"), place.move_input(inputs.v, "v");
  place.move_output(out, got.guarded_bytes(), "out");

  mhla_stream_config config;
  mhla_stream_config_init(&config, sizeof config);
  EXPECT_EQ(config.device, 0);
  config.H = c_.H, config.Hkv = c_.Hkv, config.D = c_.D, config.E = c_.E, config.chunk = c_.layout.block_size;
  config.dtype = MHLA_BF16, config.device = 1, config.has_scale = 1, config.scale = 0.25, config.eps = c_.eps;
  config.normalizer = static_cast<std::int32_t>(c_.normalizer);
  config.feature_map = static_cast<std::int32_t>(c_.feature_map);
  const mhla_tensor mix = c_tensor(host.mix);
  mhla_stream* state = nullptr;
  ASSERT_EQ(mhla_stream_create(&config, &mix, nullptr, &state), MHLA_OK) << mhla_last_error();
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  options.stream = stream.get();
  const auto append = [&](std::int64_t t, std::int64_t count) {
    mhla_append_params params;
    mhla_append_params_init(&params, sizeof params);
    params.streams = &state, params.count = 1;
    params.q = tokens_of(inputs.q, t, count), params.k = tokens_of(inputs.k, t, count);
    params.v = tokens_of(inputs.v, t, count);
    const mhla_tensor part = tokens_of(out, t, count);
    ASSERT_EQ(mhla_stream_append(&params, &part, &options), MHLA_OK) << mhla_last_error();
  };
  append(0, 21);
  for (std::int64_t t = 21; t < 30; ++t) append(t, 1);
  // Saved and loaded on the way.
  const mhla_named_tensor* tensors = nullptr;
  const mhla_text_pair* pairs = nullptr;
  std::size_t tensor_count = 0, pair_count = 0;
  ASSERT_EQ(mhla_stream_tensors(state, &tensors, &tensor_count), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(mhla_stream_metadata(state, &pairs, &pair_count), MHLA_OK) << mhla_last_error();
  mhla_stream* loaded = nullptr;
  ASSERT_EQ(mhla_stream_load_on(tensors, tensor_count, pairs, pair_count, 1, &loaded), MHLA_OK) << mhla_last_error();
  mhla_stream_destroy(state);
  state = loaded;
  append(30, c_.N - 30);
  place.finish(c_.name());
  EXPECT_TRUE(got.same_bits(want)) << worst_element(got, want);
  mhla_stream_destroy(state);
}

::testing::AssertionResult fails_with(mhla_status got, const std::string& part) {
  const std::string message = mhla_last_error();
  if (got == MHLA_ERROR_ARGUMENT && message.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << got << ", message '" << message << "', expected '" << part
                                       << "'";
}

TEST(CDeviceErrors, NameTheDevice) {
  mhla_stream_config config;
  mhla_stream_config_init(&config, sizeof config);
  config.H = config.D = config.E = 8;
  Tensor weights(DType::kF32, {2, 2});
  weights.fill(1.0);
  const mhla_tensor mix = c_tensor(weights.view());
  mhla_stream* state = nullptr;
  config.device = -1;
  EXPECT_TRUE(fails_with(mhla_stream_create(&config, &mix, nullptr, &state), "device is -1, expected 0"));
  config.device = 1000;
  EXPECT_TRUE(fails_with(mhla_stream_create(&config, &mix, nullptr, &state), "device is cuda:999, "));
  config.device = 0, config.reserved = 7;
  EXPECT_TRUE(fails_with(mhla_stream_create(&config, &mix, nullptr, &state), "reserved is 7"));
  config.reserved = 0;
  config.struct_size = offsetof(mhla_stream_config, device);  // a program that does not know of devices
  ASSERT_EQ(mhla_stream_create(&config, &mix, nullptr, &state), MHLA_OK) << mhla_last_error();
  mhla_stream_destroy(state);
  EXPECT_TRUE(fails_with(mhla_stream_load_on(nullptr, 0, nullptr, 0, 0, &state), "device is 0, expected 1"));
}

}  // namespace
}  // namespace mhla
