#include "mhla/train/classify/classification.h"

#include <algorithm>
#include <chrono>

#include "mhla/core/error.h"
#include "mhla/data/preprocess.h"
#include "mhla/io/file.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"
#include "mhla/train/shared_eval.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

void expect_between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) fail("train: ", field, " is ", value, ", expected ", least, " to ", most);
}

// The fields of a file with another attention. Weights of softmax attention have biases, which stay where a training
// starts from them.
JsonValue with_attention_of(JsonValue file, const std::string& attention, const ClassifyOptions& options) {
  const JsonValue* before = file.find("attention");
  const bool from_softmax = before != nullptr && *before == JsonValue("softmax") && attention != "softmax";
  if (from_softmax && !options.train.init.empty()) file.set("qkv_bias", true);
  return file.set("attention", attention);
}

ImageChoice images_chosen_by(const ClassifyOptions& o) {
  return {.data = o.data,
          .train_images = o.train_images,
          .test_images = o.test_images,
          .hold_out = o.hold_out,
          .test_seed = o.test_seed,
          .seed = o.train.seed};
}

LoaderOptions loader_options_of(const ClassifyOptions& o, const Augment& augment) {
  LoaderOptions loader;
  set_share(loader, o.train);
  loader.seed = static_cast<std::uint64_t>(o.train.seed);
  loader.threads = static_cast<int>(o.train.threads);
  loader.repeats = static_cast<int>(o.repeats.value_or(o.augment == "deit" || o.augment == "vlt" ? 3 : 1));
  loader.max_damaged = o.max_damaged;
  loader.augment = augment;
  return loader;
}

}  // namespace

ClassifyData open_test(const ClassifyOptions& options) { return open_test_images_of(images_chosen_by(options)); }

ClassifyData open_data(const ClassifyOptions& options) {
  expect_between("max_damaged", options.max_damaged, 0, INT32_MAX);
  if (options.repeats) expect_between("repeats", *options.repeats, 1, 1000);
  if (options.shift) expect_between("shift", *options.shift, 0, 4096);
  return open_images_of(images_chosen_by(options));
}

ClassifierConfig network_of(const ClassifyOptions& options, const ImageSet& set) {
  const bool is_file = is_model_file(options.model);
  ClassifierConfig network;
  JsonValue file = JsonValue::object();
  if (is_file) {
    file = read_json(options.model);
    if (!file.is_object()) fail(options.model, ": is no object, expected the fields of a model");
    if (options.attention) file = with_attention_of(std::move(file), *options.attention, options);
    if (options.official) file.set("official", true);
    network = parse_classifier_config(file, options.model);
  } else {
    network = classifier_config(options.model, options.attention.value_or("mhla"), options.official);
  }
  if (file.find("channels") == nullptr) network.channels = set.channels();
  const bool own_head = !options.train.init.empty();  // another number of classes gets a new one
  if (file.find("classes") == nullptr || own_head) network.classes = set.classes();
  fields_from_json(network, options.network, "network");
  if (network.channels != set.channels() && network.channels != 3)
    fail("network: channels is ", network.channels, ", expected the ", set.channels(), " of ", set.name(), ", or 3");
  if (network.classes != set.classes())
    fail("network: classes is ", network.classes, ", expected the ", set.classes(), " of ", set.name());
  check(network);
  return network;
}

void expect_fits(const ClassifyOptions& o, const ClassifierConfig& network) {
  const double image = static_cast<double>(network.channels) * static_cast<double>(network.image[0]) *
                       static_cast<double>(network.image[1]);
  const double ready = static_cast<double>(LoaderOptions{}.prefetch) * static_cast<double>(o.train.batch);
  expect_training_fits("train classify", size_of(network), o.train, ready * image);
}

ClassifyOptions resolved(const ClassifyOptions& options, const ClassifierConfig& network, const ImageSet& set) {
  ClassifyOptions o = options;
  o.attention = network.attention, o.official = network.official;
  if (is_model_file(o.model)) {  // all of it, so that the options are enough where the file is not
    std::set<std::string> without{"model", "attention", "official", "classes"};  // options of their own, or the data's
    if (network.channels == set.channels()) without.insert("channels");
    o.model = network.model, o.network = network_fields(network, without);
  }
  if (!o.test_seed) o.test_seed = 0;
  if (o.normalize.empty()) o.normalize = normalization_name(set);
  TrainOptions& t = o.train;  // as the published recipe
  if (!t.mix_weight_decay) t.mix_weight_decay = o.official ? t.weight_decay : 0.0;
  if (!t.clip_mix_apart) t.clip_mix_apart = !o.official;
  if (o.augment.empty()) {
    const bool small = network.image[0] <= 64 && network.image[1] <= 64;
    o.augment = o.official ? "official" : small ? (set.channels() == 3 ? "strong" : "small") : "deit";
  }
  return o;
}

Augment augment_of(const ClassifyOptions& o, const ClassifierConfig& network, const ImageSet& set) {
  Augment augment =
      augment_recipe(o.augment, set, static_cast<int>(network.image[0]), static_cast<int>(network.image[1]));
  augment.channels = static_cast<int>(network.channels);
  if (!o.normalize.empty()) {
    const Normalization by = normalization_called(o.normalize);
    if (by.mean.size() != 1 && by.mean.size() != static_cast<std::size_t>(set.channels()))
      fail("augment: normalize is ", o.normalize, ", of colour, but ", set.name(), " has ", set.channels(), " channel");
    augment.mean = by.mean, augment.std = by.std;
  }
  if (o.flip) augment.flip = *o.flip;
  if (o.shift) augment.shift = static_cast<int>(*o.shift);
  if (o.color_jitter) augment.color_jitter = *o.color_jitter;
  if (o.rand_augment) augment.rand_augment = parse_rand_augment(*o.rand_augment);
  if (o.erase) augment.erase = *o.erase;
  if (o.mixup) augment.mixup = *o.mixup;
  if (o.cutmix) augment.cutmix = *o.cutmix;
  check_augment(augment);
  return augment;
}

torch::Tensor soft_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets, double smoothing) {
  return torch::cross_entropy_loss(logits.to(torch::kFloat), targets, {}, at::Reduction::Mean, -100, smoothing);
}

torch::Tensor soft_targets(const Batch& batch, std::int64_t classes) {
  torch::Tensor targets = torch::zeros({batch.size, classes});
  auto rows = targets.accessor<float, 2>();
  for (std::int64_t i = 0; i < batch.size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    rows[i][batch.labels[at]] += batch.weights[at];
    rows[i][batch.other_labels[at]] += 1.0f - batch.weights[at];
  }
  return targets;
}

torch::Tensor logits_of(Classifier& model, const Batch& batch, const TrainOptions& options) {
  const torch::Device device = device_of(options.device);
  const Autocast autocast(options, device);
  return model.forward(images_of(batch, device)).to(torch::kFloat);
}

Score score(Classifier& model, const ImageSetPtr& images, const Augment& augment, const ClassifyOptions& given,
            const EvalProgress& progress) {
  const TrainOptions& options = given.train;
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_gradient;
  const torch::Device device = device_of(options.device);
  LoaderOptions loader_options;
  set_share(loader_options, options), loader_options.per_rank = 1, loader_options.epochs = 1;
  loader_options.shuffle = loader_options.drop_last = false;
  loader_options.threads = static_cast<int>(options.threads);
  loader_options.max_damaged = given.max_damaged;
  loader_options.augment = without_chance(augment);
  Loader loader(images, loader_options);
  const std::int64_t classes = images->classes();
  torch::Tensor confusion = torch::zeros({classes * classes}, torch::TensorOptions(torch::kLong).device(device));
  torch::Tensor sums = torch::zeros({2}, torch::TensorOptions(torch::kDouble).device(device));  // loss, top 5
  const bool was_training = model.is_training();
  model.eval();
  Score score;
  Batch batch;
  while (loader.next(batch)) {
    leave_when_stopped();
    for (const std::string& text : batch.damaged) score.warnings.push_back("left out: " + text);
    if (batch.size == 0) continue;
    const torch::Tensor labels = labels_of(batch, device);
    const torch::Tensor logits = logits_of(model, batch, options);
    const torch::Tensor best = std::get<1>(logits.topk(std::min<std::int64_t>(5, classes), -1));
    const torch::Tensor loss = torch::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
    sums += torch::stack({loss.to(torch::kDouble), (best == labels.unsqueeze(1)).sum().to(torch::kDouble)});
    confusion.index_add_(0, labels * classes + best.select(1, 0), torch::ones_like(labels));
    score.images += batch.size;
    if (progress) progress(std::min(score.images * options.place.ranks, images->size()), images->size());
  }
  model.train(was_training);
  const torch::Tensor mine = torch::cat({sums.cpu(), confusion.cpu().to(torch::kDouble)});
  std::vector<double> numbers(mine.data_ptr<double>(), mine.data_ptr<double>() + mine.numel());
  numbers.push_back(static_cast<double>(score.images)), numbers.push_back(static_cast<double>(loader.damaged()));
  numbers = sum_evaluation(options.place, numbers);  // loss, top 5, confusion, images, damaged
  score.damaged = static_cast<std::int64_t>(numbers.back());
  score.images = static_cast<std::int64_t>(numbers[numbers.size() - 2]);
  if (score.images == 0) fail("eval: ", images->name(), " has no image that can be read");
  for (std::int64_t i = 0; i < classes * classes; ++i)
    score.confusion.push_back(static_cast<std::int64_t>(numbers[static_cast<std::size_t>(i + 2)]));
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < classes; ++i) right += score.confusion[static_cast<std::size_t>(i * classes + i)];
  const auto count = static_cast<double>(score.images);
  score.loss = numbers[0] / count;
  score.top1 = static_cast<double>(right) / count;
  score.top5 = numbers[1] / count;
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

ClassificationTask::ClassificationTask(const ClassifyOptions& options, const ClassifyData& data,
                                       const ClassifierConfig& network)
    : options_(options),
      data_(data),
      augment_(augment_of(options, network, *data.train)),
      device_(device_of(options.train.device)),
      batches_(data.train, loader_options_of(options, augment_)),
      model_(make_classifier(network)) {
  if (!(options_.label_smoothing >= 0 && options_.label_smoothing < 1))
    fail("train: label_smoothing is ", options_.label_smoothing, ", expected 0 or more and below 1");
  model_->to(device_);
  for (const ImageSetPtr& set : {data_.train, data_.test}) {
    const std::string text = left_out_warning(*set);
    if (!text.empty() && (set == data_.train || !data_.held_out)) warnings_.push_back(text);
  }
}

JsonValue ClassificationTask::model_config() const { return fields_to_json(model_->config()); }

void ClassificationTask::write_companions(const std::filesystem::path& folder) const {
  keep_classes(folder, *data_.train);
  const Preprocess preprocess = preprocess_of(augment_of(options_, model_->config(), *data_.train));
  write_file(folder / kPreprocessFile, preprocess_text(fields_to_json(preprocess)));
}

TrainBatch ClassificationTask::next_batch() {
  const Batch& next = batches_.next(warnings_);
  TrainBatch batch{.inputs = {images_of(next, device_), labels_of(next, device_)}, .weight = next.size};
  if (next.mixed) batch.inputs.push_back(soft_targets(next, model_->config().classes).to(device_));
  return batch;
}

BatchResult ClassificationTask::forward(const TrainBatch& batch) {
  const torch::Tensor &labels = batch.inputs.at(1), &targets = batch.inputs.back();
  const torch::Tensor logits = model_->forward(batch.inputs.at(0));
  return {.loss = soft_cross_entropy(logits, targets, options_.label_smoothing),
          .sums = {{"accuracy", (logits.detach().argmax(-1) == labels).sum()}}};
}

std::string ClassificationTask::tested_on() const {
  return data_.held_out ? str(data_.test->size(), " images held out of the training set") : "";
}

Metrics ClassificationTask::evaluate(const EvalProgress& progress) {
  const Score now = score(*model_, data_.test, augment_, options_, progress);
  warnings_.insert(warnings_.end(), now.warnings.begin(), now.warnings.end());
  return {{"loss", now.loss}, {"top1", now.top1}, {"top5", now.top5}};
}

std::vector<std::string> ClassificationTask::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace mhla::train
