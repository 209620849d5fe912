// Associative recall as what a language model learns from.
#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/mqar_loader.h"
#include "mhla/train/lm/lm_batch.h"
#include "mhla/train/lm/lm_data.h"
#include "mhla/train/shared_eval.h"

namespace mhla::train {
namespace {

constexpr std::int64_t kRows = 4096;  // answers at a time: 128 MiB of logits over 8192 ids

class MqarData final : public LmData {
 public:
  explicit MqarData(std::int64_t vocab) : vocab_(vocab) {}
  [[nodiscard]] std::int64_t vocab() const override { return vocab_; }
  [[nodiscard]] const char* whose() const override { return "mqar"; }
  [[nodiscard]] TokenizerPtr maybe_tokenizer() const override { return nullptr; }
  [[nodiscard]] std::string name() const override { return kMqar; }
  [[nodiscard]] std::int64_t checksum() const override { return -1; }
  [[nodiscard]] std::vector<std::string> warnings() const override { return {}; }
  [[nodiscard]] std::unique_ptr<TokenBatches> batches(const LmOptions& o, const Cursor& start) const override {
    MqarLoaderOptions loader;
    loader.mqar = mqar_options(o, o.context), loader.mqar.seed = static_cast<std::uint64_t>(o.train.seed);
    set_share(loader, o.train);
    loader.items = o.mqar_items, loader.start = start;
    return std::make_unique<MqarLoader>(loader);
  }

  [[nodiscard]] const char* samples() const override { return "answers"; }
  [[nodiscard]] double tokens_per_sample(const LmOptions& o) const override {
    return static_cast<double>(o.context) / static_cast<double>(o.mqar_pairs);
  }
  [[nodiscard]] Metrics derived(const LmOptions& o, double, double answers_per_s) const override {
    return {{"tokens_per_s", answers_per_s * tokens_per_sample(o)}};
  }

  // The first sequences of `mhla eval lm --task mqar`, whatever the seed of the run; as many whole batches as
  // eval_tokens needs.
  [[nodiscard]] Metrics evaluate(LanguageModelImpl& model, const LmOptions& o, const EvalProgress& progress,
                                 ContextShare*) const override {
    const std::int64_t wanted = o.eval_tokens > 0 ? o.eval_tokens / o.context : o.mqar_items;
    const Place& place = o.train.place;
    const std::int64_t batch_size = share_of(o.train).each,
                       batches = std::max<std::int64_t>(1, (wanted + batch_size - 1) / batch_size);
    MqarLoaderOptions held_out;
    held_out.mqar = mqar_options(o, o.context), held_out.held_out = true;
    held_out.batch_size = batch_size, held_out.items = batches * batch_size;
    MqarLoader loader(held_out);
    const torch::NoGradGuard no_gradient;
    const torch::Device device = model.device();
    torch::Tensor loss = torch::zeros({}, torch::TensorOptions(torch::kDouble).device(device)), right = loss.clone();
    std::int64_t answers = 0;
    TokenBatch next;
    for (std::int64_t i = 0; i < batches; ++i) {
      leave_when_stopped();
      loader.next(next);
      if (i % place.ranks != place.rank) continue;
      const LmBatch batch = batch_on(device, next);
      const torch::Tensor asked = batch.asked(model.hidden(batch.tokens));
      for (std::int64_t first = 0; first < batch.known; first += kRows) {
        const std::int64_t rows = std::min(kRows, batch.known - first);
        const torch::Tensor target = batch.targets.narrow(0, first, rows);
        const torch::Tensor logits = model.logits(asked.narrow(0, first, rows)).to(torch::kFloat);
        loss += (logits.logsumexp(1) - logits.gather(1, target.unsqueeze(1)).squeeze(1)).sum(torch::kDouble);
        right += (logits.argmax(1) == target).sum();
      }
      answers += batch.known;
      const std::int64_t all = batches * batch_size * o.mqar_pairs;
      if (progress) progress(std::min(answers * place.ranks, all), all);
    }
    const std::vector<double> sums =
        sum_evaluation(place, {loss.item<double>(), right.item<double>(), static_cast<double>(answers)});
    return {{"loss", sums[0] / sums[2]}, {"accuracy", sums[1] / sums[2]}};
  }

 private:
  std::int64_t vocab_;
};

}  // namespace

MqarOptions mqar_options(const LmOptions& o, std::int64_t length) {
  MqarOptions mqar;
  mqar.length = length, mqar.pairs = o.mqar_pairs, mqar.vocab_size = o.mqar_vocab, mqar.skew = o.mqar_skew;
  return mqar;
}

LmDataPtr mqar_data(const LmOptions& options) { return std::make_unique<MqarData>(options.mqar_vocab); }

}  // namespace mhla::train
