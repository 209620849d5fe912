// A task of a few hundred weights for tests: two attention-free layers and an MHLA layer with dropout over 16 tokens,
// told to find which of four classes made its random input. Data come from (seed, batch number) alone.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "mhla/models/parts.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/train/shared_eval.h"
#include "mhla/train/trainer.h"

namespace mhla::train {

class TinyModelImpl : public torch::nn::Module {
 public:
  TinyModelImpl()
      : embed_(register_module("embed", torch::nn::Linear(6, 8))),
        attention_(register_module("attention", MhlaAttention(options()))),
        norm_(register_module("norm", TokenNorm(8))),
        head_(register_module("head", torch::nn::Linear(8, 4))) {
    register_buffer("calls", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) {  // [B, 16, 6] to [B, 4]
    if (is_training()) named_buffers()["calls"].add_(1);
    const torch::Tensor y = embed_(x);
    return head_(norm_(y + attention_->forward(y)).mean(1));
  }
  void constrain() { attention_->constrain(); }

 private:
  static MhlaAttentionOptions options() {
    MhlaAttentionOptions o = MhlaAttentionOptions::image(8, 2, Layout::grid2d(4, 4, 2, 2));
    o.lepe = 0, o.dropout = 0.1;
    return o;
  }
  torch::nn::Linear embed_;
  MhlaAttention attention_;
  TokenNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(TinyModel);

class TinyTask : public Task {
 public:
  explicit TinyTask(std::int64_t batch = 8, const torch::Device& device = torch::kCPU)
      : batch_(batch), share_{.each = batch}, device_(device) {
    model_->to(device_);
  }
  // Of the processes that train together.
  explicit TinyTask(const TrainOptions& options) : TinyTask(options.batch, device_of(options.device)) {
    share_ = share_of(options), place_ = options.place;
  }

  torch::nn::Module& model() override { return *model_; }
  [[nodiscard]] JsonValue model_config() const override { return JsonValue().set("model", "tiny").set("dim", 8); }
  [[nodiscard]] const char* samples() const override { return "images"; }
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return 10; }
  TrainBatch next_batch() override {
    const auto [x, label] = data(now_ = next_);
    const std::int64_t begin = (share_.first + turn_) * share_.each;
    turn_ = (turn_ + 1) % share_.count;
    if (turn_ == 0) ++next_;
    if (now_ == kill_at) std::raise(SIGKILL);
    return {.inputs = {x.narrow(0, begin, share_.each), label.narrow(0, begin, share_.each)}, .weight = share_.each};
  }
  BatchResult forward(const TrainBatch& batch) override {
    const torch::Tensor& label = batch.inputs[1];
    torch::Tensor logits = model_->forward(batch.inputs[0]);
    if (now_ == poison_at) logits = logits * std::numeric_limits<double>::quiet_NaN();
    if (now_ == raise_at) raise_at = -1, std::raise(SIGTERM);
    torch::Tensor loss = torch::cross_entropy_loss(logits, label);
    if (now_ == poison_gradient_at) loss = loss + (logits * 0.0).sqrt().sum();  // 0 * inf in backward alone
    return {.loss = loss, .sums = {{"accuracy", (logits.argmax(-1) == label).sum()}}};
  }
  [[nodiscard]] JsonValue cursor() const override { return JsonValue().set("next", next_); }
  void seek(const JsonValue& cursor) override { next_ = cursor.at("next").as_int(); }
  void constrain() override { model_->constrain(); }
  Metrics evaluate(const EvalProgress& progress) override {
    if (++evaluations_ == raise_in_evaluation) std::raise(SIGTERM);
    leave_when_stopped();
    auto [x, label] = data(-1);
    const std::int64_t each = batch_ / place_.ranks;
    x = x.narrow(0, place_.rank * each, each), label = label.narrow(0, place_.rank * each, each);
    progress(batch_, batch_);
    const auto right = (model_->forward(x).argmax(-1) == label).to(torch::kDouble).sum().item<double>();
    return {{"top1", sum_evaluation(place_, {right})[0] / static_cast<double>(batch_)}};
  }

  [[nodiscard]] MainMetric main_metric() const override { return {"top1"}; }

  [[nodiscard]] Metrics derived(double loss, double) const override { return {{"twice_loss", 2 * loss}}; }

  std::int64_t poison_at = -1, poison_gradient_at = -1, raise_at = -1, kill_at = -1;  // batches
  std::int64_t raise_in_evaluation = 0;  // counted from 1, those of the average too

 private:
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> data(std::int64_t number) const {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number + 1000));
    const torch::Tensor label = torch::randint(4, {batch_}, generator, torch::kLong);
    torch::Tensor x = torch::randn({batch_, 16, 6}, generator);
    x += 2.0 * torch::one_hot(label, 6).to(torch::kFloat).unsqueeze(1);
    return {x.to(device_), label.to(device_)};
  }
  std::int64_t batch_, next_ = 0, now_ = -1, evaluations_ = 0;
  int turn_ = 0;
  Share share_;
  Place place_;
  torch::Device device_;
  TinyModel model_;
};

inline TrainOptions tiny_options() {
  TrainOptions o;
  o.max_steps = 24, o.lr = 1e-2, o.warmup_steps = 4, o.ema = 0.9, o.threads = 1, o.seed = 7;
  o.checkpoint_every = 4, o.keep = 3, o.log_every = 3, o.eval_every = 1;
  return o;
}

struct Rows : Observer {
  std::vector<JsonValue> rows;
  void row(const JsonValue& row) override { rows.push_back(row); }
  void progress(const JsonValue&) override {}
};

// In memory where the system has such a folder: every checkpoint waits for a dozen syncs, 5 ms each on a disk.
class TemporaryRun {
 public:
  TemporaryRun() {
    const char* memory = "/dev/shm";
    const std::filesystem::path base =
        ::access(memory, W_OK | X_OK) == 0 ? std::filesystem::path(memory) : std::filesystem::temp_directory_path();
    std::string name = (base / "mhla-train-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryRun() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryRun(const TemporaryRun&) = delete;
  TemporaryRun& operator=(const TemporaryRun&) = delete;
  [[nodiscard]] std::filesystem::path path(const std::string& name = "run") const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A run as a program makes it: seeded, then the model, then the trainer.
inline TrainResult train_tiny(const std::filesystem::path& folder, const TrainOptions& options, bool resume = false,
                              const std::function<void(TinyTask&)>& change = {}, Rows* rows = nullptr) {
  prepare(options);
  TinyTask task(8, device_of(options.device));
  if (change) change(task);
  Rows own;
  Trainer trainer(task, options, folder, JsonValue().set("seed", options.seed), rows == nullptr ? own : *rows);
  return trainer.run(resume);
}

}  // namespace mhla::train
