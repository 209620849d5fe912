#include "mhla/train/lm_task.h"

#include <cmath>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/train/machine_rate.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

static_assert(kNoTarget == kIgnoredTarget);

LmConfig named_network(const LmOptions& o) {
  if (o.model.find('/') == std::string::npos && o.model.find(".json") == std::string::npos)
    return lm_config(o.model, o.attention, o.official);
  LmConfig c = read_lm_config(o.model);
  c.attention = o.attention, c.official = o.official;
  return c;
}

LmConfig with_fields(LmConfig c, const LmOptions& o) {
  fields_from_json(c, o.network, "network");
  return c;
}

// A tokenizer is trained to the vocabulary of the model.
std::string tokenizer_of(const LmOptions& o) {
  return o.tokenizer.empty() ? str("train:", with_fields(named_network(o), o).vocab) : o.tokenizer;
}

}  // namespace

void check(const LmOptions& o) {
  check(o.train);
  if (o.packing != "documents" && o.packing != "concatenate")
    fail("train: packing is '", o.packing, "', expected documents or concatenate");
  if (!(o.valid >= 0.0 && o.valid <= 0.5)) fail("train: valid is ", o.valid, ", expected 0 to 0.5");
  if (o.context < 0) fail("train: context is ", o.context, ", expected at least 1, or 0 for the model's");
  if (o.eval_tokens < 0) fail("train: eval_tokens is ", o.eval_tokens, ", expected at least 0");
  check(with_fields(named_network(o), o));
}

std::string token_folder(const LmOptions& o, const std::string& run,
                         const std::function<void(const std::string&)>& told) {
  if (is_token_set(o.data)) return o.data;
  const std::string folder = !o.tokens.empty() ? o.tokens : (fs::path(run) / "tokens").string();
  if (is_token_set(folder)) {
    const TokenSetInfo info = TokenSet::open(folder).info();
    if (info.source != o.data)
      fail("train: ", folder, " has the tokens of ", info.source, ", expected those of ", o.data);
    return folder;
  }
  TokenizeOptions how;
  how.data = o.data, how.tokenizer = tokenizer_of(o), how.out = folder, how.valid = o.valid;
  const TokenSetInfo info = tokenize_corpus(how);
  told(str(folder, ": ", info.train.tokens + info.valid.tokens, " tokens of ", info.tokenizer_kind, " (",
           info.vocab_size, ") from ", info.bytes, " bytes of ", info.source));
  return folder;
}

LmData open_tokens(const std::string& folder) {
  LmData data{TokenSet::open(folder), std::nullopt};
  if (data.train.info().valid.documents > 0) data.valid = TokenSet::open(folder, /*valid=*/true);
  return data;
}

LmConfig network_of(const LmOptions& o, const TokenSetInfo& info) {
  LmConfig c = named_network(o);
  c.vocab = info.vocab_size;
  c = with_fields(c, o);
  if (c.vocab < info.vocab_size)
    fail("network: vocab is ", c.vocab, ", expected at least the ", info.vocab_size, " of the tokens");
  if (o.context > 0 && o.context > c.context) c.context = o.context;
  check(c);
  return c;
}

LmOptions resolved(const LmOptions& options, const LmConfig& network) {
  LmOptions o = options;
  if (o.context == 0) o.context = network.context;
  if (o.official) o.train.clip_mix_apart = false;
  return o;
}

LmTask::LmTask(const LmOptions& options, LmData data, const LmConfig& network)
    : options_(options), data_(std::move(data)), device_(device_of(options.train.device)), model_(network) {
  model_->to(device_);
  model_->set_recompute(options_.recompute);
  loader_options_.batch_size = options_.train.batch, loader_options_.length = options_.context;
  loader_options_.packed = options_.packing == "documents";
  loader_options_.seed = static_cast<std::uint64_t>(options_.train.seed);
  loader_.emplace(data_.train, loader_options_);
  work_ = 3.0 * model_->flops_per_token(options_.context);
  peak_ = gemm_rate(device_, options_.train.precision == "bf16");
  if (!data_.valid)
    warnings_.push_back(str(data_.train.folder(),
                            ": nothing is held out, so nothing is evaluated; data tokenize --valid "
                            "makes such a part"));
}

BatchResult LmTask::forward_next() {
  loader_->next(batch_);
  at_ = batch_.next;
  const auto tensor = [&](std::vector<std::int64_t>& list) {
    const torch::Tensor host = torch::from_blob(list.data(), {batch_.rows, batch_.length}, torch::kLong);
    return device_.is_cuda() ? host.to(device_) : host.clone();
  };
  torch::Tensor cu_seqlens;
  if (!batch_.cu_seqlens.empty()) cu_seqlens = torch::tensor(batch_.cu_seqlens, torch::kLong);
  const auto known = std::count_if(batch_.targets.begin(), batch_.targets.end(),
                                   [](std::int64_t target) { return target != kNoTarget; });
  const torch::Tensor hidden = model_->hidden(tensor(batch_.tokens), cu_seqlens);
  const torch::Tensor sum = head_loss(hidden, model_->head(), tensor(batch_.targets));
  const auto weight = std::max<std::int64_t>(1, known);
  return {.loss = sum / static_cast<double>(weight), .weight = weight, .sums = {}};
}

JsonValue LmTask::cursor() const { return JsonValue().set("epoch", at_.epoch).set("position", at_.position); }

void LmTask::seek(const JsonValue& cursor) {
  at_ = loader_options_.start = {.epoch = cursor.at("epoch").as_int(), .position = cursor.at("position").as_int()};
  loader_.emplace(data_.train, loader_options_);
}

Metrics LmTask::derived(double loss, double tokens_per_s) const {
  return {{"perplexity", std::exp(loss)}, {"mfu", work_ * tokens_per_s / peak_}};
}

Metrics LmTask::evaluate() {
  if (!data_.valid) return {};
  PerplexityOptions o;
  o.length = options_.context, o.documents = options_.packing == "documents";
  o.tokens = options_.eval_tokens, o.batch = options_.train.batch;
  const Perplexity now = perplexity(*model_, *data_.valid, o);
  return {{"loss", now.loss}, {"perplexity", std::exp(now.loss)}};
}

std::vector<std::string> LmTask::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace mhla::train
