// CIFAR, the binary version: records of a label (CIFAR-100: a coarse one, then the fine one that counts) and 3 planes
// of 32 x 32 bytes.
#include <array>

#include "mhla/core/error.h"
#include "mhla/data/sets.h"
#include "mhla/io/folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr std::size_t kPlane = std::size_t{kSide} * kSide;
constexpr std::array<const char*, 10> kThings = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                 "dog",      "frog",       "horse", "ship", "truck"};

std::vector<std::string> file_names(Split split, int classes) {
  if (classes == 100) return {split == Split::kTrain ? "train.bin" : "test.bin"};
  if (split == Split::kTest) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

bool holds(const fs::path& folder, Split split, int classes) {
  for (const std::string& file : file_names(split, classes))
    if (is_there(folder / file)) return true;
  return false;
}

// The folder itself, or the one that the published archive unpacks to.
fs::path inside(const fs::path& folder, Split split, int classes) {
  const fs::path unpacked = folder / (classes == 10 ? "cifar-10-batches-bin" : "cifar-100-binary");
  return !holds(folder, split, classes) && holds(unpacked, split, classes) ? unpacked : folder;
}

std::vector<std::string> names_of(const fs::path& folder, int classes) {
  const fs::path listed = folder / (classes == 10 ? "batches.meta.txt" : "fine_label_names.txt");
  std::vector<std::string> names;
  if (is_there(listed)) {
    names = read_lines(listed);
    if (names.size() != static_cast<std::size_t>(classes))
      fail(listed.string(), ": ", names.size(), " class names, expected ", classes);
    return names;
  }
  for (int i = 0; i < classes; ++i)
    names.push_back(classes == 10 ? std::string(kThings[static_cast<std::size_t>(i)]) : str("class ", i));
  return names;
}

class CifarImages final : public ImageSet {
 public:
  CifarImages(const fs::path& folder, Split split, int classes)
      : split_(split), head_(classes == 10 ? 1 : 2), names_(names_of(folder, classes)) {
    const std::size_t record = head_ + 3 * kPlane;
    for (const std::string& file : file_names(split, classes)) {
      if (!is_there(folder / file))
        fail((folder / file).string(), ": is missing, expected ", cifar_files(split, classes));
      files_.push_back(std::make_unique<FileBytes>(folder / file));
      const std::size_t bytes = files_.back()->bytes().size();
      if (bytes == 0 || bytes % record != 0)
        fail(files_.back()->path(), ": ", bytes, " bytes, expected a multiple of ", record,
             " (a label and 3 x 32 x 32 pixels)");
      if (bytes != files_.front()->bytes().size())
        fail(files_.back()->path(), ": ", bytes / record, " images, expected as many as in ", files_.front()->path(),
             ": ", files_.front()->bytes().size() / record);
      per_file_ = static_cast<std::int64_t>(bytes / record);
    }
    for (std::int64_t item = 0; item < size(); ++item)
      if (label(item) >= classes) fail(item_name(item), ": label ", label(item), ", expected 0 to ", classes - 1);
  }
  [[nodiscard]] std::string name() const override { return str(kind(), ", ", name_of(split_)); }
  [[nodiscard]] std::string kind() const override { return head_ == 1 ? "cifar10" : "cifar100"; }
  [[nodiscard]] std::int64_t size() const override { return per_file_ * static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] int channels() const override { return 3; }
  [[nodiscard]] int height() const override { return kSide; }
  [[nodiscard]] int width() const override { return kSide; }
  [[nodiscard]] int label(std::int64_t item) const override { return std::to_integer<int>(record(item)[head_ - 1]); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override {
    return str(files_[static_cast<std::size_t>(item / per_file_)]->path(), ", item ", item % per_file_);
  }
  void decode(std::int64_t item, Image& image) const override {
    image.resize(kSide, kSide, 3);
    const std::byte* planes = record(item) + head_;
    for (std::size_t i = 0; i < kPlane; ++i)
      for (std::size_t c = 0; c < 3; ++c)
        image.pixels[3 * i + c] = std::to_integer<std::uint8_t>(planes[c * kPlane + i]);
  }

 private:
  [[nodiscard]] const std::byte* record(std::int64_t item) const {
    return files_[static_cast<std::size_t>(item / per_file_)]->bytes().data() +
           static_cast<std::size_t>(item % per_file_) * (head_ + 3 * kPlane);
  }

  Split split_;
  std::size_t head_;  // bytes before the pixels
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<FileBytes>> files_;
  std::int64_t per_file_ = 0;
};

}  // namespace

bool has_cifar(const fs::path& folder, Split split, int classes) {
  return holds(inside(folder, split, classes), split, classes);
}

std::string cifar_files(Split split, int classes) {
  const std::vector<std::string> files = file_names(split, classes);
  return files.size() == 1 ? files.front() : str(files.front(), " to ", files.back());
}

ImageSetPtr open_cifar(const fs::path& folder, Split split, int classes) {
  return std::make_shared<CifarImages>(inside(folder, split, classes), split, classes);
}

}  // namespace mhla
