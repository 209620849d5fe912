#include "mhla/train/image_data.h"

#include <cstring>

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

void cut(ImageSetPtr& set, std::int64_t count, std::int64_t seed, const char* field) {
  if (count < 0 || count > set->size())
    fail("train: ", field, " is ", count, ", expected 0 to the ", set->size(), " of ", set->name());
  if (count > 0) set = subset(set, count, static_cast<std::uint64_t>(seed));
}

}  // namespace

ImageData open_test_images_of(const ImageChoice& choice) {
  const std::int64_t seed = choice.test_seed.value_or(0);
  if (seed < 0) fail("train: test_seed is ", seed, ", expected 0 to ", INT64_MAX);
  ImageData data;
  data.held_out = needs_hold_out(choice.data);
  if (!data.held_out) {
    data.test = open_images(choice.data, Split::kTest);
  } else {
    if (!(choice.hold_out > 0 && choice.hold_out < 1))
      fail("train: hold_out is ", choice.hold_out, ", expected above 0 and below 1: ", choice.data, " has no test set");
    std::tie(data.train, data.test) =
        hold_out(open_images(choice.data, Split::kTrain), choice.hold_out, static_cast<std::uint64_t>(seed));
  }
  cut(data.test, choice.test_images, seed, "test_images");
  return data;
}

ImageData open_images_of(const ImageChoice& choice) {
  ImageData data = open_test_images_of(choice);
  if (!data.held_out) data.train = open_images(choice.data, Split::kTrain);
  if (data.train->classes() != data.test->classes())
    fail("train: ", data.train->name(), " has ", data.train->classes(), " classes, expected the ", data.test->classes(),
         " of ", data.test->name());
  cut(data.train, choice.train_images, choice.seed, "train_images");
  return data;
}

torch::Tensor to_device(const void* data, at::IntArrayRef shape, torch::ScalarType dtype, const torch::Device& device) {
  const torch::Tensor host = torch::empty(shape, torch::TensorOptions(dtype).pinned_memory(device.is_cuda()));
  std::memcpy(host.data_ptr(), data, host.nbytes());
  return host.to(device, /*non_blocking=*/true);
}

torch::Tensor images_of(const Batch& batch, const torch::Device& device) {
  return to_device(batch.images.data(), {batch.size, batch.channels, batch.height, batch.width}, torch::kFloat, device);
}

torch::Tensor labels_of(const Batch& batch, const torch::Device& device) {
  return to_device(batch.labels.data(), {batch.size}, torch::kLong, device);
}

ImageBatches::ImageBatches(ImageSetPtr set, LoaderOptions options)
    : set_(std::move(set)), options_(std::move(options)), labels_(labels_checksum(*set_)) {
  options_.give_empty = parts() > 1;
  if (per_epoch() < 1)
    fail("train: batch is ", batch(), ", expected at most the ", set_->size(), " images of ", set_->name());
}

const Batch& ImageBatches::next(std::vector<std::string>& warnings) {
  if (!loader_) loader_ = std::make_unique<Loader>(set_, options_);
  do {
    if (!loader_->next(batch_)) fail("train: ", set_->name(), " came to an end");
    for (const std::string& text : batch_.damaged) warnings.push_back("left out: " + text);
  } while (batch_.size == 0 && parts() == 1);
  return batch_;
}

JsonValue ImageBatches::cursor() const {
  const Cursor at = loader_ ? loader_->cursor() : options_.start;
  JsonValue damaged = JsonValue::array();
  for (const std::int64_t item : loader_ ? loader_->damaged_items() : options_.known_damaged) damaged.push(item);
  return JsonValue()
      .set("epoch", at.epoch)
      .set("position", at.position)
      .set("labels", static_cast<std::int64_t>(labels_))
      .set("damaged", damaged);
}

void ImageBatches::seek(const JsonValue& cursor) {
  const Cursor start{.epoch = cursor.at("epoch").as_int(), .position = cursor.at("position").as_int()};
  if (start.epoch < 0 || start.position < 0 || start.position > set_->size())
    fail("train: the cursor is at epoch ", start.epoch, ", position ", start.position,
         ", expected a position up to the ", set_->size(), " items of ", set_->name());
  options_.start = start;
  // Older checkpoints have neither.
  if (const JsonValue* labels = cursor.find("labels"); labels != nullptr && labels->as_int() != labels_)
    fail("train: ", set_->name(), " has other labels than the data of the run, or in another order");
  options_.known_damaged.clear();
  if (const JsonValue* damaged = cursor.find("damaged")) {
    for (const JsonValue& item : damaged->items()) options_.known_damaged.push_back(item.as_int());
  }
  loader_.reset();
}

}  // namespace mhla::train
