// `mhla predict`: the classes of a user's own images. They go through the loader of evaluation, a batch at a time, so
// that an image gets the answer it would get there and a large folder takes no more memory than a small one.
#include "apps/engine/predict.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/open_classifier.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

constexpr const char* kPredictCommand = "predict";
constexpr std::int64_t kBatch = 32;

struct Wanted {
  std::vector<ImageFile> files;
  std::int64_t failed = 0;
};

void tell_failed(Observer& observer, const std::string& image, const std::string& reason) {
  observer.row(JsonValue().set("kind", "failed").set("image", image).set("error", reason));
}

std::vector<std::byte> read_stdin() {
  constexpr std::size_t kPiece = 1 << 16;
  const std::uint64_t most = ImageLimits{}.max_bytes;
  std::vector<std::byte> bytes;
  for (std::size_t got = 1; got > 0 && bytes.size() <= most;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kPiece);
    got = std::fread(bytes.data() + before, 1, kPiece, stdin);
    bytes.resize(before + got);
  }
  return bytes;  // the decoder refuses what is larger than it may be
}

// Folders become the images below them. What gives no image is reported, and the others go on.
Wanted wanted_of(const std::vector<std::string>& images, Observer& observer) {
  Wanted wanted;
  bool stdin_read = false;
  for (const std::string& given : images) {
    std::error_code none;
    if (given == "-") {
      if (stdin_read) fail(kPredictCommand, ": - is given more than once, expected once: there is one stdin");
      stdin_read = true;
      wanted.files.push_back({"-", read_stdin()});
    } else if (!fs::is_directory(given, none)) {
      wanted.files.push_back({given, {}});
    } else {
      std::string reason;
      try {
        const std::vector<std::string> found = image_files_in(given);
        for (const std::string& path : found) wanted.files.push_back({(fs::path(given) / path).string(), {}});
        if (found.empty()) reason = str(given, ": has no image, expected ", readable_endings(), " files");
      } catch (const Error& error) {
        reason = error.what();
      }
      if (reason.empty()) continue;
      if (images.size() == 1) fail(kPredictCommand, ": ", reason);
      ++wanted.failed;
      tell_failed(observer, given, reason);
    }
  }
  if (wanted.files.empty())
    fail(kPredictCommand, ": nothing to do, expected image files, folders of them, or - for stdin");
  return wanted;
}

void tell_classes(const ImageFile& file, const float* probabilities, const std::int64_t* classes, std::int64_t count,
                  const std::vector<std::string>& names, Observer& observer) {
  JsonValue top = JsonValue::array();
  for (std::int64_t i = 0; i < count; ++i) {
    top.push(JsonValue()
                 .set("class", classes[i])
                 .set("name", names[static_cast<std::size_t>(classes[i])])
                 .set("probability", static_cast<double>(probabilities[i])));
  }
  observer.row(JsonValue().set("kind", "image").set("image", file.name).set("top", top));
}

}  // namespace

void predict(const PredictRequest& request, Observer& observer) {
  Wanted wanted = wanted_of(request.images, observer);
  const ClassifierRun run = open_classifier(kPredictCommand, request.open, observer);
  const std::vector<std::string> names = read_class_names(request.open.run, run.network.classes);
  const auto top = std::min<std::int64_t>(request.top, run.network.classes);

  const auto total = static_cast<std::int64_t>(wanted.files.size());
  LoaderOptions o;
  o.batch_size = request.open.batch > 0 ? request.open.batch : kBatch;
  o.epochs = 1, o.shuffle = o.drop_last = false;
  o.threads = static_cast<int>(run.options.train.threads);
  o.max_damaged = total, o.give_empty = true;
  o.augment = run.augment_for(run.network);
  Loader loader(images_in_files(wanted.files, static_cast<int>(run.network.channels)), o);
  const torch::NoGradGuard no_gradient;
  run.model->eval();
  Batch batch;
  while (loader.next(batch)) {
    std::size_t good = 0, told = 0;
    torch::Tensor probabilities, classes;
    if (batch.size > 0) {
      const torch::Tensor logits = logits_of(*run.model, batch, run.options.train);
      if (!logits.isfinite().all().item<bool>()) throw not_finite(kPredictCommand, run.weights);
      std::tie(probabilities, classes) = logits.softmax(-1).topk(top, -1);
      probabilities = probabilities.cpu().contiguous(), classes = classes.cpu().contiguous();
    }
    const std::int64_t end = std::min(total, batch.position + o.batch_size);
    for (std::int64_t item = batch.position; item < end; ++item) {  // in the order they were given
      const ImageFile& file = wanted.files[static_cast<std::size_t>(item)];
      if (good < batch.items.size() && batch.items[good] == item) {
        const std::int64_t at = static_cast<std::int64_t>(good++) * top;
        tell_classes(file, probabilities.data_ptr<float>() + at, classes.data_ptr<std::int64_t>() + at, top, names,
                     observer);
      } else {
        ++wanted.failed;
        tell_failed(observer, file.name, batch.damaged.at(told++));
      }
    }
  }
  if (wanted.failed > 0)
    fail(kPredictCommand, ": ", wanted.failed, wanted.failed == 1 ? " input" : " inputs", " could not be read");
}

}  // namespace mhla::apps
