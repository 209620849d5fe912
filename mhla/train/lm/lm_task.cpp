#include "mhla/train/lm/lm_task.h"

#include "mhla/core/limits.h"
#include "mhla/data/preprocess.h"
#include "mhla/io/file.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/train/lm/lm_batch.h"
#include "mhla/train/lm/lm_sharing.h"
#include "mhla/train/lm/run_tokenizer.h"
#include "mhla/train/machine_rate.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

static_assert(kNoTarget == kIgnoredTarget);

LmConfig named_network(const LmOptions& o) {
  if (!is_model_file(o.model)) return lm_config(o.model, o.attention.value_or("mhla"), o.official);
  LmConfig c = read_lm_config(o.model);
  if (o.attention) c.attention = *o.attention;
  if (o.official) c.official = true;
  return c;
}

LmConfig with_fields(LmConfig c, const LmOptions& o) {
  fields_from_json(c, o.network, "network");
  return c;
}

// Rows of mix for what is trained, and no others; `context` among the fields of the network says otherwise.
LmConfig with_context(LmConfig c, const LmOptions& o) {
  if (o.context > 0 && (o.context > c.context || o.network.find("context") == nullptr)) c.context = o.context;
  return c;
}

void check_mqar(const LmOptions& o, const LmConfig& network) {
  check(mqar_options(o, o.context > 0 ? o.context : network.context));
  if (o.mqar_items < o.train.batch)
    fail("train: mqar_items is ", o.mqar_items, ", expected at least the batch of ", o.train.batch);
  for (const auto& [name, value] : {std::pair{"tokenizer", &o.tokenizer}, {"tokens", &o.tokens}})
    if (!value->empty()) fail("train: ", name, " is '", *value, "', expected none: data mqar is no text");
}

}  // namespace

void check(const LmOptions& o) {
  check(o.train);
  if (o.packing != "documents" && o.packing != "concatenate")
    fail("train: packing is '", o.packing, "', expected documents or concatenate");
  if (o.valid && !(*o.valid >= 0.0 && *o.valid <= 0.5)) fail("train: valid is ", *o.valid, ", expected 0 to 0.5");
  if (o.context < 0 || o.context == 1 || o.context > limits::kContext.most)
    fail("train: context is ", o.context, ", expected at least 2 and at most ", limits::kContext.most,
         ", or 0 for the model's");
  if (o.eval_tokens < 0) fail("train: eval_tokens is ", o.eval_tokens, ", expected at least 0");
  const LmConfig network = with_fields(named_network(o), o);
  check(network);
  if (o.train.place.context > 1) check_sharing(o, network);
  if (is_mqar(o)) check_mqar(o, network);
}

std::string tokenizer_of(const LmOptions& o) {
  return o.tokenizer.empty() ? str("train:", with_fields(named_network(o), o).vocab) : o.tokenizer;
}

LmConfig least_network(const LmOptions& o) {
  LmConfig c = named_network(o);
  c.vocab = is_mqar(o) ? o.mqar_vocab : limits::kVocab.least;
  return with_context(with_fields(c, o), o);
}

void expect_fits(const LmOptions& o, const LmConfig& network) {
  const std::int64_t context = o.context > 0 ? o.context : network.context;
  const bool alone = is_mqar(o) || o.packing == "concatenate";
  expect_training_fits("train lm", size_of(network, context, o.recompute, alone), o.train);
}

LmConfig network_of(const LmOptions& o, const LmData& data) {
  LmConfig c = named_network(o);
  // Weights to start from have rows for their own vocabulary, which may have more.
  const bool has_rows = !o.train.init.empty() && is_model_file(o.model);
  if (!has_rows) c.vocab = data.vocab();
  c = with_fields(c, o);
  if (c.vocab < data.vocab())
    fail("network: vocab is ", c.vocab, ", expected at least the ", data.vocab(), " of ", data.whose());
  c = with_context(c, o);
  check(c);
  return c;
}

LmOptions resolved(const LmOptions& options, const LmConfig& network) {
  LmOptions o = options;
  o.attention = network.attention, o.official = network.official;
  if (o.context == 0) o.context = network.context;
  if (is_model_file(o.model))  // all of it, so that the options are enough where the file is not
    o.model = network.model, o.network = network_fields(network, {"model", "attention", "official"});
  if (!o.train.mix_weight_decay)
    o.train.mix_weight_decay = o.official ? o.train.weight_decay : 0.0;  // the published recipe decays mix
  if (!o.train.clip_mix_apart) o.train.clip_mix_apart = !o.official;
  return o;
}

LmTask::LmTask(const LmOptions& options, LmDataPtr data, const LmConfig& network)
    : options_(options),
      data_(std::move(data)),
      device_(device_of(options.train.device)),
      model_(network),
      batches_(data_->batches(options_, Cursor{})),
      warnings_(data_->warnings()) {
  model_->to(device_);
  model_->set_recompute(options_.recompute);
  const double head = 2.0 * static_cast<double>(network.vocab * network.dim);  // of samples alone
  work_ = 3.0 * ((model_->flops_per_token(options_.context) - head) * data_->tokens_per_sample(options_) + head);
  peak_ = gemm_rate(device_, options_.train.precision == "bf16");
  sharing_.emplace(*model_, options_.train);
}

void LmTask::write_companions(const std::filesystem::path& folder) const {
  if (const TokenizerPtr tokenizer = data_->maybe_tokenizer()) keep_tokenizer(*tokenizer, folder);
  write_file(folder / kPreprocessFile, preprocess_text(text_preprocess(fields_to_json(options_))));
}

TrainBatch LmTask::next_batch() {
  batches_->next(batch_);
  at_ = batch_.next;
  if (ContextShare* const share = sharing_->maybe_share()) {
    const ops::TokenRange mine = share->begin(Layout::line(model_->config().chunk), batch_.length, device_);
    cut_columns(batch_, mine.first, mine.count);
  }
  const LmBatch next = batch_on(device_, batch_);
  return {.inputs = {next.tokens, next.maybe_cu_seqlens, next.maybe_places, next.targets},
          .weight = std::max<std::int64_t>(1, next.known)};
}

BatchResult LmTask::forward(const TrainBatch& given) {
  const LmBatch batch{.tokens = given.inputs.at(0),
                      .maybe_cu_seqlens = given.inputs.at(1),
                      .maybe_places = given.inputs.at(2),
                      .targets = given.inputs.at(3),
                      .known = given.weight};
  const torch::Tensor hidden = model_->hidden(batch.tokens, batch.maybe_cu_seqlens);
  const torch::Tensor sum = head_loss(batch.asked(hidden), model_->head(), batch.targets);
  return {.loss = sum / static_cast<double>(given.weight), .sums = {}};
}

std::string LmTask::why_not_recorded() const {
  if (options_.data == kMqar || options_.packing == "concatenate") return {};
  return "packing is documents, whose lengths differ from batch to batch, expected concatenate";
}

Metrics LmTask::evaluate(const EvalProgress& progress) {
  return data_->evaluate(*model_, options_, progress, sharing_->maybe_share());
}

JsonValue LmTask::cursor() const {
  return JsonValue().set("epoch", at_.epoch).set("position", at_.position).set("tokens", data_->checksum());
}

void LmTask::seek(const JsonValue& cursor) {
  // Checkpoints of before do not say.
  if (const JsonValue* tokens = cursor.find("tokens"); tokens != nullptr && tokens->as_int() != data_->checksum())
    fail("train: ", data_->name(), " has other tokens than the data of the run");
  at_ = {.epoch = cursor.at("epoch").as_int(), .position = cursor.at("position").as_int()};
  batches_ = data_->batches(options_, at_);
}

Metrics LmTask::derived(double loss, double samples_per_s) const {
  Metrics metrics = data_->derived(options_, loss, samples_per_s);
  metrics.emplace_back("mfu", work_ * samples_per_s / peak_);
  return metrics;
}

std::vector<std::string> LmTask::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace mhla::train
