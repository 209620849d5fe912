// Image files by name, without labels: what a trained model is asked about.
#include "mhla/core/error.h"
#include "mhla/data/image_set.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

class FileImages final : public ImageSet {
 public:
  FileImages(std::vector<ImageFile> files, int channels) : files_(std::move(files)), channels_(channels) {
    if (files_.empty()) fail("images_in_files: no files, expected at least one");
  }
  [[nodiscard]] std::string name() const override { return str(files_.size(), " image files"); }
  [[nodiscard]] std::string kind() const override { return "files"; }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] int channels() const override { return channels_; }
  [[nodiscard]] int height() const override { return 0; }
  [[nodiscard]] int width() const override { return 0; }
  [[nodiscard]] int label(std::int64_t) const override { return 0; }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return at(item).name; }
  void decode(std::int64_t item, Image& image) const override {
    const ImageFile& file = at(item);
    if (file.maybe_bytes)
      decode_image(*file.maybe_bytes, file.name, image);
    else
      decode_image(read_file(file.name, ImageLimits{}.max_bytes), file.name, image);
    convert_channels(image, channels_);
  }

 private:
  [[nodiscard]] const ImageFile& at(std::int64_t item) const { return files_[static_cast<std::size_t>(item)]; }

  std::vector<ImageFile> files_;
  int channels_;
  std::vector<std::string> names_{"unknown"};
};

}  // namespace

ImageSetPtr images_in_files(std::vector<ImageFile> files, int channels) {
  return std::make_shared<FileImages>(std::move(files), channels);
}

}  // namespace mhla
