// A batch as a CUDA graph against the same batch kernel by kernel, and what cannot be recorded.
#include "mhla/train/batch_pass.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/testing/messages.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

struct Twin {  // the same weights whenever it is made
  explicit Twin(TrainOptions options)
      : task((torch::manual_seed(3), 8), device_of(options.device)), pass(task, options, device_of(options.device)) {}

  // The loss of `batch` with its gradients, behind one step down these.
  std::vector<torch::Tensor> step(const TrainBatch& batch, int number) {
    torch::manual_seed(static_cast<std::uint64_t>(number));  // of dropout
    const BatchResult result = pass(batch);
    std::vector<torch::Tensor> seen{result.loss.clone(), result.sums.at(0).second.clone()};
    const torch::NoGradGuard no_gradient;
    for (const torch::Tensor& parameter : task.model().parameters()) {
      seen.push_back(parameter.grad().clone());
      parameter.sub_(parameter.grad(), 0.05);
      parameter.mutable_grad().reset();
    }
    return seen;
  }

  TinyTask task;
  BatchPass pass;
};

TrainOptions on_a_gpu(bool graph, const char* precision) {
  TrainOptions options = tiny_options();
  options.device = "cuda", options.precision = precision, options.cuda_graph = graph;
  return options;
}

TEST(BatchPass, AGraphDoesWhatKernelByKernelDoes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  for (const char* precision : {"f32", "bf16"}) {
    Twin recorded(on_a_gpu(true, precision)), plain(on_a_gpu(false, precision));
    for (int i = 0; i < 12; ++i) {
      TrainBatch batch = plain.task.next_batch();
      recorded.task.next_batch();  // the same
      const bool odd = i == 8;     // of another shape: it is not recorded, and leaves the recording alone
      if (odd) batch = {.inputs = {batch.inputs[0].narrow(0, 0, 5), batch.inputs[1].narrow(0, 0, 5)}, .weight = 5};
      const std::vector<torch::Tensor> want = plain.step(batch, i), got = recorded.step(batch, i);
      EXPECT_EQ(recorded.pass.replayed(), i >= 3 && !odd) << precision << " batch " << i;
      EXPECT_FALSE(plain.pass.replayed());
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t j = 0; j < want.size(); ++j) {
        const double error = (got[j].to(torch::kDouble) - want[j].to(torch::kDouble)).abs().max().item<double>();
        const double size = want[j].to(torch::kDouble).abs().max().item<double>();
        EXPECT_LE(error, 1e-5 * size + 1e-7) << precision << " batch " << i << " value " << j;
      }
    }
    EXPECT_EQ(recorded.task.model().named_buffers()["calls"].item<float>(), 12.0f);
  }
}

TEST(BatchPass, ATrainingWithAGraphLearnsAndResumes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TemporaryRun run;
  TrainOptions options = on_a_gpu(true, "bf16");
  options.max_steps = 60, options.checkpoint_every = 50;
  train_tiny(run.path(), options);
  options.max_steps = 200;
  const TrainResult whole = train_tiny(run.path(), options, true);
  EXPECT_EQ(whole.step, 200);
  EXPECT_GE(whole.metrics.at(0).second, 0.75);
}

TEST(BatchPass, WhatCannotBeRecordedIsNamed) {
  TrainOptions options = tiny_options();
  options.cuda_graph = true;
  EXPECT_EQ(message_of([&] { Twin twin(options); }), "train: cuda_graph is on, expected a CUDA device, not cpu");
}

// Two batches a step: the second replay adds to the gradients of the first and leaves its results alone.
TEST(BatchPass, GraphsAddUpTheBatchesOfAStep) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  TrainOptions with = on_a_gpu(true, "f32"), without = on_a_gpu(false, "f32");
  with.accumulate = without.accumulate = 2;
  Twin recorded(with), plain(without);
  for (int step = 0; step < 6; ++step) {
    std::vector<BatchResult> want, got;
    for (int i = 0; i < 2; ++i) {
      const TrainBatch batch = plain.task.next_batch();
      recorded.task.next_batch();  // the same
      torch::manual_seed(static_cast<std::uint64_t>(2 * step + i));
      want.push_back(plain.pass(batch));
      torch::manual_seed(static_cast<std::uint64_t>(2 * step + i));
      got.push_back(recorded.pass(batch));
    }
    EXPECT_EQ(recorded.pass.replayed(), step >= 1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::allclose(got[i].loss, want[i].loss, 1e-5, 1e-7)) << "step " << step << " batch " << i;
      EXPECT_TRUE(torch::allclose(got[i].sums.at(0).second, want[i].sums.at(0).second, 1e-5, 1e-7));
    }
    const auto own = recorded.task.model().parameters(), theirs = plain.task.model().parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(torch::allclose(own[i].grad(), theirs[i].grad(), 1e-4, 1e-6))
          << "step " << step << " parameter " << i;
      own[i].mutable_grad().reset(), theirs[i].mutable_grad().reset();
    }
  }
}

}  // namespace
}  // namespace mhla::train
