// The streaming part of mhla/c.h: any split gives the bits of one causal pass, a stream forks, goes back, is saved and
// loaded, and every mistake has a status and a message.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/c.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

constexpr std::int64_t N = 45, H = 4, Hkv = 2, D = 8, E = 6, C = 8, L = 6;

mhla_tensor c_tensor(const Tensor& tensor) {
  return mhla_dense(tensor.data(), static_cast<std::int32_t>(tensor.dtype()),
                    static_cast<std::int32_t>(tensor.shape().size()), tensor.shape().data());
}

// Tokens [start, start + count) of a tensor [1, N, heads, size].
mhla_tensor part(const Tensor& tensor, std::int64_t start, std::int64_t count) {
  mhla_tensor result = c_tensor(tensor);
  result.data = static_cast<char*>(result.data) + start * result.stride[1] * size_of(tensor.dtype());
  result.shape[1] = count;
  return result;
}

::testing::AssertionResult fails_with(mhla_status got, const std::string& part) {
  const std::string message = mhla_last_error();
  if (got == MHLA_ERROR_ARGUMENT && message.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << got << ", message '" << message << "', expected '" << part
                                       << "'";
}

class CStream : public ::testing::Test {
 protected:
  CStream() {
    for (Tensor* tensor : {&q_, &k_, &v_}) tensor->normal(random_);
    mix_.uniform(random_, 0.1, 1.0);
    ChunkwiseParams params;
    params.q = q_.view(), params.k = k_.view(), params.v = v_.view(), params.mix = mix_.view();
    params.chunk = C;
    params.scale = 0.25;
    chunkwise_forward(params, whole_.view());
    mhla_stream_config_init(&config_, sizeof config_);
    config_.H = H, config_.Hkv = Hkv, config_.D = D, config_.E = E, config_.chunk = C, config_.rollback = 12;
    config_.scale = 0.25, config_.has_scale = 1;
    const mhla_tensor mix = c_tensor(mix_);
    EXPECT_EQ(mhla_stream_create(&config_, &mix, nullptr, &stream_), MHLA_OK) << mhla_last_error();
  }
  ~CStream() override { mhla_stream_destroy(stream_); }

  mhla_status append(mhla_stream* stream, std::int64_t start, std::int64_t count) {
    mhla_append_params params;
    mhla_append_params_init(&params, sizeof params);
    params.streams = &stream;
    params.count = 1;
    params.q = part(q_, start, count), params.k = part(k_, start, count), params.v = part(v_, start, count);
    const mhla_tensor out = part(streamed_, start, count);
    return mhla_stream_append(&params, &out, nullptr);
  }

  static std::int64_t position(const mhla_stream* stream) {
    mhla_stream_info info;
    EXPECT_EQ(mhla_stream_get_info(stream, &info, sizeof info), MHLA_OK) << mhla_last_error();
    return info.position;
  }

  Random random_{11};
  Tensor q_{DType::kF32, {1, N, H, D}}, k_{DType::kF32, {1, N, Hkv, D}}, v_{DType::kF32, {1, N, Hkv, E}};
  Tensor mix_{DType::kF32, {H, L, L}}, whole_{DType::kF32, {1, N, H, E}}, streamed_{DType::kF32, {1, N, H, E}};
  mhla_stream_config config_{};
  mhla_stream* stream_ = nullptr;
};

TEST_F(CStream, AnySplitGivesTheBitsOfOnePass) {
  ASSERT_EQ(append(stream_, 0, 19), MHLA_OK) << mhla_last_error();
  for (std::int64_t t = 19; t < 30; ++t) ASSERT_EQ(append(stream_, t, 1), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(append(stream_, 30, N - 30), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(streamed_.same_bits(whole_));
  mhla_stream_info info;
  ASSERT_EQ(mhla_stream_get_info(stream_, &info, sizeof info), MHLA_OK);
  EXPECT_EQ(info.struct_size, sizeof info);
  EXPECT_EQ(info.position, N);
  EXPECT_EQ(info.capacity, L * C);
  EXPECT_EQ(info.rollback_limit, 12);
  EXPECT_GT(info.bytes, 0);
}

TEST_F(CStream, GoesBackForksAndRestores) {
  ASSERT_EQ(append(stream_, 0, 25), MHLA_OK) << mhla_last_error();
  mhla_stream* fork = nullptr;
  ASSERT_EQ(mhla_stream_fork(stream_, &fork), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(append(stream_, 25, 12), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(position(fork), 25);
  ASSERT_EQ(mhla_stream_rollback(stream_, 9), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(position(stream_), 28);
  EXPECT_TRUE(fails_with(mhla_stream_rollback(stream_, 13), "12"));
  streamed_.fill(0);
  ASSERT_EQ(append(stream_, 28, N - 28), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(append(fork, 25, 3), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(mhla_stream_reset(fork), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(append(fork, 0, 25), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(streamed_.same_bits(whole_));
  ASSERT_EQ(mhla_stream_restore(stream_, fork), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(position(stream_), 25);
  streamed_ = whole_.clone();
  streamed_.set(25 * H * E, 99);  // overwritten again if the restored stream goes on from 25
  ASSERT_EQ(append(stream_, 25, N - 25), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(streamed_.same_bits(whole_));
  mhla_stream_destroy(fork);
  mhla_stream_destroy(nullptr);
}

TEST_F(CStream, SavedAndLoaded) {
  ASSERT_EQ(append(stream_, 0, 21), MHLA_OK) << mhla_last_error();
  const mhla_named_tensor* tensors = nullptr;
  const mhla_text_pair* pairs = nullptr;
  std::size_t tensor_count = 0, pair_count = 0;
  ASSERT_EQ(mhla_stream_tensors(stream_, &tensors, &tensor_count), MHLA_OK) << mhla_last_error();
  ASSERT_EQ(mhla_stream_metadata(stream_, &pairs, &pair_count), MHLA_OK) << mhla_last_error();
  ASSERT_GT(tensor_count, 0u);
  ASSERT_GT(pair_count, 0u);
  mhla_stream* loaded = nullptr;
  ASSERT_EQ(mhla_stream_load(tensors, tensor_count, pairs, pair_count, &loaded), MHLA_OK) << mhla_last_error();
  EXPECT_EQ(position(loaded), 21);
  ASSERT_EQ(append(loaded, 21, N - 21), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(streamed_.same_bits(whole_));
  EXPECT_EQ(position(stream_), 21);
  mhla_stream_destroy(loaded);

  loaded = nullptr;
  EXPECT_EQ(mhla_stream_load(tensors, tensor_count - 1, pairs, pair_count, &loaded), MHLA_ERROR_ARGUMENT);
  EXPECT_EQ(mhla_stream_load(tensors, tensor_count, pairs, 0, &loaded), MHLA_ERROR_ARGUMENT);
  EXPECT_TRUE(fails_with(mhla_stream_load(nullptr, 1, pairs, pair_count, &loaded), "tensors is null"));
  std::vector<mhla_text_pair> twice(pairs, pairs + pair_count);
  twice.push_back(twice[0]);
  EXPECT_TRUE(fails_with(mhla_stream_load(tensors, tensor_count, twice.data(), twice.size(), &loaded), "twice"));
  EXPECT_EQ(loaded, nullptr);
}

TEST_F(CStream, WorkspaceIsAnswered) {
  mhla_append_params params;
  mhla_append_params_init(&params, sizeof params);
  params.streams = &stream_;
  params.count = 1;
  params.q = part(q_, 0, 20), params.k = part(k_, 0, 20), params.v = part(v_, 0, 20);
  const mhla_tensor out = part(streamed_, 0, 20);
  std::int64_t bytes = -1;
  ASSERT_EQ(mhla_stream_append_workspace(&params, &out, nullptr, &bytes), MHLA_OK) << mhla_last_error();
  ASSERT_GE(bytes, 0);
  const AlignedBuffer memory(bytes);
  mhla_run_options options;
  mhla_run_options_init(&options, sizeof options);
  options.workspace = memory.bytes().data();
  options.workspace_bytes = static_cast<std::size_t>(bytes);
  EXPECT_EQ(mhla_stream_append(&params, &out, &options), MHLA_OK) << mhla_last_error();
}

TEST_F(CStream, MistakesAreNamed) {
  const mhla_tensor mix = c_tensor(mix_);
  mhla_stream* none = nullptr;
  EXPECT_TRUE(fails_with(mhla_stream_create(nullptr, &mix, nullptr, &none), "config is null"));
  EXPECT_TRUE(fails_with(mhla_stream_create(&config_, nullptr, nullptr, &none), "mix is null"));
  EXPECT_TRUE(fails_with(mhla_stream_create(&config_, &mix, nullptr, nullptr), "stream is null"));
  EXPECT_TRUE(fails_with(mhla_stream_create(&config_, &mix, "magic", &none), "magic"));
  mhla_stream_config wrong = config_;
  wrong.rollback = -2;
  EXPECT_TRUE(fails_with(mhla_stream_create(&wrong, &mix, nullptr, &none), "rollback is -2"));
  wrong = config_;
  wrong.beyond_mix = 2;
  EXPECT_TRUE(fails_with(mhla_stream_create(&wrong, &mix, nullptr, &none), "beyond_mix is 2"));
  wrong = config_;
  wrong.D = -1;
  EXPECT_EQ(mhla_stream_create(&wrong, &mix, nullptr, &none), MHLA_ERROR_ARGUMENT);
  EXPECT_EQ(none, nullptr);

  EXPECT_EQ(append(stream_, 0, 7), MHLA_OK) << mhla_last_error();
  EXPECT_TRUE(fails_with(append(nullptr, 7, 1), "streams[0] is null"));
  mhla_append_params params;
  mhla_append_params_init(&params, sizeof params);
  params.count = 2;
  const mhla_tensor out = part(streamed_, 7, 1);
  EXPECT_TRUE(fails_with(mhla_stream_append(&params, &out, nullptr), "streams is null"));
  EXPECT_TRUE(fails_with(mhla_stream_append(&params, nullptr, nullptr), "null"));
  EXPECT_TRUE(fails_with(mhla_stream_rollback(nullptr, 1), "stream is null"));
  EXPECT_TRUE(fails_with(mhla_stream_fork(nullptr, &none), "stream is null"));
  EXPECT_TRUE(fails_with(mhla_stream_get_info(stream_, nullptr, sizeof(mhla_stream_info)), "info is null"));
  EXPECT_EQ(position(stream_), 7);
}

}  // namespace
}  // namespace mhla
