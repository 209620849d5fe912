// AdamW against LibTorch's own in f64, groups, schedule, averages, norms and the refusals of options and weights.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "mhla/core/error.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/ops/ops.h"
#include "mhla/testing/messages.h"
#include "mhla/train/adamw.h"
#include "mhla/train/ema.h"
#include "mhla/train/gradients.h"
#include "mhla/train/schedule.h"
#include "mhla/train/tiny_task_fixture.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

// One for each of three groups.
std::vector<torch::Tensor> scales_of(double scale, torch::DeviceType device = torch::kCPU) {
  return std::vector<torch::Tensor>(3, torch::full({}, scale, torch::TensorOptions(torch::kFloat).device(device)));
}

// Parameters of three groups and gradients of step t, the same for every caller.
std::vector<torch::Tensor> parameters(torch::ScalarType dtype) {
  torch::manual_seed(3);
  std::vector<torch::Tensor> all;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{37, 11}, {5}, {4, 4}})
    all.push_back(torch::randn(shape, torch::kDouble).to(dtype).requires_grad_());
  return all;
}

void set_gradients(const std::vector<torch::Tensor>& params, std::int64_t t) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + t));
  for (const torch::Tensor& p : params) p.mutable_grad() = torch::randn(p.sizes(), torch::kDouble).to(p.scalar_type());
}

std::vector<ParamGroup> three_groups(const std::vector<torch::Tensor>& p) {
  return {{"decay", false, 1.0, 0.05, {"a"}, {p[0]}},
          {"no_decay", false, 1.0, 0.0, {"b"}, {p[1]}},
          {"mix", true, 0.5, 0.2, {"mix"}, {p[2]}}};
}

TEST(AdamW, IsLibTorchsOwn) {
  const std::vector<torch::Tensor> ours = parameters(torch::kDouble), theirs = parameters(torch::kDouble);
  AdamW adamw(three_groups(ours), {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const ParamGroup& group : three_groups(theirs)) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(1e-2 * group.lr_scale);
    options->betas(std::make_tuple(0.8, 0.95)).eps(1e-6).weight_decay(group.weight_decay);
    groups.emplace_back(group.params, std::move(options));
  }
  torch::optim::AdamW reference(groups, torch::optim::AdamWOptions(1e-2));
  for (std::int64_t t = 0; t < 20; ++t) {
    set_gradients(ours, t), set_gradients(theirs, t);
    for (const torch::Tensor& p : ours) p.mutable_grad().mul_(4.0);
    adamw.step(1e-2, scales_of(0.25));
    reference.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_LT((ours[i] - theirs[i]).abs().max().item<double>(), 1e-13) << i;
}

TEST(AdamW, InF32TheSameBitsForEveryNumberOfThreads) {
  std::vector<torch::Tensor> results;
  for (const int threads : {1, 2, 3}) {
    ops::set_num_threads(threads);
    torch::manual_seed(1);
    torch::Tensor p = torch::randn({70000}).requires_grad_();
    AdamW adamw({{"all", false, 1.0, 0.1, {"p"}, {p}}}, {});
    for (int t = 0; t < 3; ++t) {
      p.mutable_grad() = torch::randn({70000});
      adamw.step(1e-3, {scales_of(1.0)[0]});
    }
    results.push_back(p.detach().clone());
  }
  ops::set_num_threads(1);
  EXPECT_TRUE(torch::equal(results[0], results[1]));
  EXPECT_TRUE(torch::equal(results[0], results[2]));
}

TEST(AdamW, OnAGpuItIsTheOneOfTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const std::vector<torch::Tensor> host = parameters(torch::kFloat);
  std::vector<torch::Tensor> device;
  for (const torch::Tensor& p : host) device.push_back(p.detach().to(torch::kCUDA).requires_grad_());
  AdamW on_host(three_groups(host), {}), on_device(three_groups(device), {});
  for (std::int64_t t = 0; t < 20; ++t) {
    set_gradients(host, t);
    for (std::size_t i = 0; i < host.size(); ++i) device[i].mutable_grad() = host[i].grad().to(torch::kCUDA);
    on_host.step(1e-2, scales_of(0.5));
    on_device.step(1e-2, scales_of(0.5, torch::kCUDA));
  }
  for (std::size_t i = 0; i < host.size(); ++i)
    EXPECT_LT((host[i] - device[i].cpu()).abs().max().item<double>(), 1e-5) << i;
}

TEST(AdamW, WithoutAGradientNothingChangesAndOddParametersAreRefused) {
  const std::vector<torch::Tensor> p = parameters(torch::kFloat);
  const torch::Tensor before = p[0].detach().clone();
  AdamW adamw(three_groups(p), {});
  adamw.step(1e-2, scales_of(1.0));
  EXPECT_TRUE(torch::equal(before, p[0]));
  const auto make = [](const torch::Tensor& x) { AdamW({{"all", false, 1.0, 0.0, {"head.weight"}, {x}}}, {}); };
  EXPECT_EQ(message_of([&] { make(torch::zeros({2}, torch::kBFloat16)); }),
            "AdamW: head.weight is BFloat16, expected f32 (or f64)");
  EXPECT_EQ(message_of([&] {
              make(torch::zeros({2, 3}).t());
            }),
            "AdamW: head.weight is strided, expected contiguous memory");
  EXPECT_EQ(message_of([&] { adamw.step(1e-2, {scales_of(1.0)[0]}); }),
            "AdamW: 1 scales for 3 groups, expected one for each");
}

TEST(ParamGroups, ByRoleAndShape) {
  TrainOptions options;
  options.weight_decay = 0.1, options.mix_weight_decay = 0.3, options.mix_lr_scale = 2.0;
  const TinyModel model;
  const std::vector<ParamGroup> groups = param_groups(*model, options);
  ASSERT_EQ(groups.size(), 3u);
  const std::vector<std::string> decayed{"embed.weight", "attention.qkv.weight", "attention.out.weight", "head.weight"};
  EXPECT_EQ(groups[0].names, decayed);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  for (const torch::Tensor& p : groups[1].params) EXPECT_EQ(p.dim(), 1);
  EXPECT_EQ(groups[1].names.size(), 7u);  // three biases, two gains of q and k, gain and bias of the norm
  EXPECT_EQ(groups[1].weight_decay, 0.0);
  EXPECT_EQ(groups[2].names, std::vector<std::string>{"attention.mix"});
  EXPECT_EQ(groups[2].weight_decay, 0.3);
  EXPECT_EQ(groups[2].lr_scale, 2.0);
  for (torch::Tensor& p : model->parameters()) p.set_requires_grad(false);
  EXPECT_EQ(message_of([&] { param_groups(*model, options); }), "train: the model has no parameter that is trained");
}

// Every parameter of every attention that is no weight of a layer: tables have a role, whatever they are called.
TEST(ParamGroups, TablesOfModelsAreNotDecayed) {
  TrainOptions options;
  options.weight_decay = 0.1;
  const auto not_decayed = [&](const char* model, const char* attention) {
    std::set<std::string> names;
    for (const ParamGroup& group : param_groups(*make_classifier(classifier_config(model, attention)), options)) {
      if (group.name != "no_decay") continue;
      for (std::size_t i = 0; i < group.names.size(); ++i) {
        int axes = 0;
        for (const std::int64_t size : group.params[i].sizes()) axes += size > 1 ? 1 : 0;
        if (axes > 1) names.insert(group.names[i].substr(group.names[i].rfind('.') + 1));
      }
    }
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(not_decayed("vit_demo", "mhla"), Names{"pos_embed"});
  EXPECT_EQ(not_decayed("vit_demo", "focused"), (Names{"pos_embed", "positional_encoding"}));
  EXPECT_EQ(not_decayed("deit_tiny", "mamba"), (Names{"A_log", "pos_embed"}));
}

TEST(Schedule, WarmUpThenCosineOrConstant) {
  TrainOptions o;
  o.lr = 1.0, o.warmup_lr = 0.2, o.warmup_steps = 4, o.min_lr = 0.1;
  const Schedule cosine(o, 14);
  EXPECT_DOUBLE_EQ(cosine(0), 0.4);
  EXPECT_DOUBLE_EQ(cosine(3), 1.0);
  EXPECT_DOUBLE_EQ(cosine(4), 1.0);
  EXPECT_DOUBLE_EQ(cosine(9), 0.55);
  EXPECT_DOUBLE_EQ(cosine(14), 0.1);
  EXPECT_DOUBLE_EQ(cosine(99), 0.1);
  o.schedule = "constant";
  EXPECT_DOUBLE_EQ(Schedule(o, 14)(13), 1.0);
  EXPECT_DOUBLE_EQ(Schedule(o, 4)(3), 1.0);
  EXPECT_EQ(message_of([&] { Schedule(o, 3); }), "train: warmup_steps is 4, expected at most the 3 steps of the run");
  o.warmup_steps.reset();
  EXPECT_EQ(warmup_of(o, 10), 0);  // none is usual
  o.usual_warmup = 100;
  EXPECT_EQ(warmup_of(o, 5000), 100);
  EXPECT_EQ(warmup_of(o, 999), 99);
  EXPECT_EQ(warmup_of(o, 3), 0);
  EXPECT_EQ(Schedule(o, 3)(0), 1.0);
  EXPECT_DOUBLE_EQ(Schedule(o, 40)(0), 0.2 + 0.8 / 4);
}

TEST(Ema, FollowsItsFormulaAndSwaps) {
  const TinyModel model;
  Ema ema(*model, 0.5);
  const torch::Tensor live = model->named_parameters()["head.bias"];
  const torch::NoGradGuard no_gradient;
  torch::Tensor want = live.clone();
  for (std::int64_t t = 1; t <= 12; ++t) {
    live.add_(static_cast<double>(t));
    model->named_buffers()["calls"].fill_(static_cast<double>(t));
    const double d = std::min(0.5, (1.0 + static_cast<double>(t)) / (10.0 + static_cast<double>(t)));
    want = d * want + (1 - d) * live;
    ema.update(t);
  }
  const auto average = [&](const std::string& name) {
    for (const auto& [known, tensor] : ema.state())
      if (known == name) return tensor.clone();
    return torch::Tensor();
  };
  EXPECT_LT((average("head.bias") - want).abs().max().item<double>(), 1e-5);
  EXPECT_EQ(average("calls").item<double>(), 12.0);
  const torch::Tensor kept = live.clone();
  ema.swap();
  EXPECT_LT((live - want).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(torch::equal(average("head.bias"), kept));
  ema.swap();
  EXPECT_TRUE(torch::equal(live, kept));
}

TEST(Gradients, NormsScaleAndBlame) {
  const std::vector<torch::Tensor> p = parameters(torch::kFloat);
  p[0].mutable_grad() = torch::full({37, 11}, 3.0 / std::sqrt(37.0 * 11.0)),
  p[2].mutable_grad() = torch::full({4, 4}, 1.0);
  const auto scale = [](const GradientNorms& norms, double weight, double clip_norm, std::size_t group) {
    return gradient_scales(norms, weight, clip_norm).at(group).item<double>();
  };
  const GradientNorms norms = gradient_norms(three_groups(p), /*mix_apart=*/false);
  EXPECT_EQ(norms.names, (std::vector<std::string>{"a", "mix"}));
  EXPECT_NEAR(norms.total.item<double>(), 5.0, 1e-5);
  for (const std::size_t group : {0u, 1u, 2u}) {
    EXPECT_NEAR(scale(norms, 1.0, 2.0, group), 0.4, 1e-6);
    EXPECT_NEAR(scale(norms, 10.0, 2.0, group), 0.1, 1e-6);  // 0.5 needs no clipping
    EXPECT_NEAR(scale(norms, 1.0, 0.0, group), 1.0, 0.0);
  }
  const GradientNorms apart = gradient_norms(three_groups(p), /*mix_apart=*/true);  // 3 without mix, 4 of mix
  EXPECT_NEAR(apart.total.item<double>(), 5.0, 1e-5);
  EXPECT_NEAR(scale(apart, 1.0, 2.0, 0), 2.0 / 3.0, 1e-6);
  EXPECT_NEAR(scale(apart, 1.0, 2.0, 1), 2.0 / 3.0, 1e-6);
  EXPECT_NEAR(scale(apart, 1.0, 2.0, 2), 0.5, 1e-6);
  p[2].mutable_grad().fill_(1e6);  // does not touch the rest
  EXPECT_NEAR(scale(gradient_norms(three_groups(p), true), 1.0, 2.0, 0), 2.0 / 3.0, 1e-6);
  const double nan = std::nan("");
  EXPECT_EQ(blame({"a", "b"}, {1.5, 2.5}), "the largest gradient is that of b, norm 2.5");
  EXPECT_EQ(
      blame({"a", "b", "c"}, {1.5, nan, 1.0 / 0.0}),
      "2 of 3 gradients are not finite, the first is b (norm nan); the largest finite gradient is that of a, norm 1.5");
  EXPECT_EQ(blame({"a"}, {nan}), "1 of 1 gradients are not finite, the first is a (norm nan)");
}

TEST(Options, RefusalsNameTheField) {
  const auto refused = [](const std::function<void(TrainOptions&)>& change) {
    TrainOptions o;
    change(o);
    return message_of([&] { check(o); });
  };
  EXPECT_EQ(refused([](auto& o) { o.batch = 0; }), "train: batch is 0, expected 1 to 1048576");
  EXPECT_EQ(refused([](auto& o) { o.lr = 0; }), "train: lr is 0, expected a number above 0");
  EXPECT_EQ(refused([](auto& o) { o.lr = std::nan(""); }), "train: lr is nan, expected a number above 0");
  EXPECT_EQ(refused([](auto& o) { o.beta2 = 1; }), "train: beta2 is 1, expected 0 or more and below 1");
  EXPECT_EQ(refused([](auto& o) { o.schedule = "step"; }), "train: schedule is step, expected cosine or constant");
  EXPECT_EQ(refused([](auto& o) { o.precision = "f16"; }), "train: precision is f16, expected f32 or bf16");
  EXPECT_EQ(refused([](auto& o) { o.min_lr = 1; }), "train: min_lr is 1, expected 0 to lr");
  EXPECT_EQ(message_of([] { device_of("gpu"); }), "train: device is 'gpu', expected cpu, cuda or cuda:N");
  TrainOptions bf16;
  bf16.precision = "bf16";
  at::globalContext().setUserEnabledMkldnn(false);
  const std::string refusal = message_of([&] { prepare(bf16); });
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_TRUE(has(refusal, "train: precision is bf16, expected f32 on cpu: this ")) << refusal;
}

TEST(Weights, RoundTripAndRefusals) {
  const TemporaryRun run;
  std::filesystem::create_directory(run.path());
  const std::filesystem::path path = run.path("run") / "w.safetensors";
  const torch::Tensor a = torch::randn({3, 4}), one = torch::ones({1}), turned = torch::randn({4, 2}).t();
  write_tensors(path, {{"a", a}, {"one", one}, {"turned", turned}});
  const Safetensors file = Safetensors::read(path);
  torch::Tensor a2 = torch::zeros({3, 4}), one2 = torch::zeros({1}), turned2 = torch::zeros({2, 4});
  read_tensors(file, "", {{"a", a2}, {"one", one2}, {"turned", turned2}});
  EXPECT_TRUE(torch::equal(a, a2) && torch::equal(one, one2) && torch::equal(turned, turned2));
  const auto refused = [&](const NamedTensors& wanted) { return message_of([&] { read_tensors(file, "", wanted); }); };
  const std::string label = path.string();
  EXPECT_EQ(refused({{"b", a2}}), label + ": tensor 'b' is missing, expected [3, 4]");
  EXPECT_EQ(refused({{"a", turned2}}), label + ": tensor 'a' has shape [3, 4], expected [2, 4]");
  EXPECT_EQ(refused({{"a", a2.to(torch::kDouble)}}), label + ": tensor 'a' is F32, expected Double");
  EXPECT_EQ(refused({{"a", a2}, {"turned", turned2}}), label + ": tensor 'one' is no part of this model");
}

}  // namespace
}  // namespace mhla::train
