#include "apps/engine/image_source.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/data/augment_item.h"
#include "mhla/data/image_set.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"

namespace mhla::apps {
namespace {

// The number in "000012-class7.png", as `mhla sample` calls its files.
std::optional<std::int64_t> class_in_name(const std::string& name) {
  constexpr std::string_view kMark = "-class";
  const std::string stem = std::filesystem::path(name).stem().string();
  const std::size_t at = stem.rfind(kMark);
  if (at == std::string::npos) return std::nullopt;
  std::int64_t number = 0;
  const char *first = stem.data() + at + kMark.size(), *last = stem.data() + stem.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last || number < 0) return std::nullopt;
  return number;
}

class FolderSource : public SourceImages {
 public:
  explicit FolderSource(const std::string& folder) : folder_(folder), files_(image_files_in(folder)) {
    if (files_.empty())
      fail(kEvalImagesCommand, ": ", folder, " has no image, expected ", readable_endings(), " files");
  }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  [[nodiscard]] std::string name(std::int64_t at) const override { return files_[static_cast<std::size_t>(at)]; }
  Image image(std::int64_t at) override {
    Image image = read_image(std::filesystem::path(folder_) / name(at));
    convert_channels(image, 3);
    return image;
  }
  [[nodiscard]] std::optional<std::int64_t> asked(std::int64_t at) const override { return class_in_name(name(at)); }
  [[nodiscard]] std::optional<std::string> prompt(std::int64_t at) const override {
    const std::filesystem::path path = std::filesystem::path(folder_) / name(at);
    if (path.extension() != ".png") return std::nullopt;
    for (const auto& [key, value] : decode_png_text(read_file(path), path.string()))
      if (key == "prompt") return value;
    return std::nullopt;
  }

 private:
  std::string folder_;
  std::vector<std::string> files_;
};

class NpzSource : public SourceImages {
 public:
  explicit NpzSource(const Npz& file) : array_(file.array("arr_0")) {
    const ConstView& v = array_.view;
    if (v.rank == 4 && !v.contiguous()) fail(file.label(), ": arr_0 is in Fortran order, expected C order");
    if (v.dtype != DType::kU8 || v.rank != 4 || v.shape[3] != 3 || v.shape[0] < 1 || !v.contiguous())
      fail(file.label(), ": arr_0 is ", name_of(v.dtype), " ", shape_text(v), ", expected u8 [N, rows, columns, 3]");
    if (v.shape[1] < 1 || v.shape[2] < 1) fail(file.label(), ": arr_0 has shape ", shape_text(v), ": no pixels");
    if (!file.contains("arr_1")) return;
    labels_ = file.array("arr_1");
    const ConstView& l = labels_.view;
    if (l.dtype != DType::kI64 || l.rank != 1 || l.shape[0] != v.shape[0] || !l.contiguous())
      fail(file.label(), ": arr_1 is ", name_of(l.dtype), " ", shape_text(l), ", expected i64 [", v.shape[0], "]");
  }
  [[nodiscard]] std::int64_t size() const override { return array_.view.shape[0]; }
  [[nodiscard]] std::string name(std::int64_t at) const override { return str("arr_0[", at, "]"); }
  Image image(std::int64_t at) override {
    const ConstView& v = array_.view;
    Image image;
    image.resize(static_cast<int>(v.shape[1]), static_cast<int>(v.shape[2]), 3);
    const auto bytes = static_cast<std::int64_t>(image.pixels.size());
    std::copy_n(data_as<std::uint8_t>(v) + at * bytes, bytes, image.pixels.begin());
    return image;
  }
  [[nodiscard]] std::optional<std::int64_t> asked(std::int64_t at) const override {
    if (!labels_.view.given()) return std::nullopt;
    return data_as<std::int64_t>(labels_.view)[at];
  }

 private:
  NpyArray array_, labels_;
};

class SetSource : public SourceImages {
 public:
  explicit SetSource(ImageSetPtr set) : set_(std::move(set)) {}
  [[nodiscard]] std::int64_t size() const override { return set_->size(); }
  [[nodiscard]] std::string name(std::int64_t at) const override { return set_->item_name(at); }
  Image image(std::int64_t at) override {
    Image image;
    set_->decode(at, image);
    convert_channels(image, 3);
    return image;
  }
  [[nodiscard]] std::optional<std::int64_t> asked(std::int64_t at) const override { return set_->label(at); }
  [[nodiscard]] ImageSize own_size() const override { return {set_->height(), set_->width()}; }

 private:
  ImageSetPtr set_;
};

// "cifar10:DIR@test" and the like; null: the path is none of these.
ImageSetPtr named_set(std::string path) {
  Split split = Split::kTrain;
  for (const Split one : {Split::kTrain, Split::kTest}) {
    const std::string end = str("@", name_of(one));
    if (!path.ends_with(end)) continue;
    split = one, path.resize(path.size() - end.size());
    return open_images(path, split);
  }
  const std::string head = path.substr(0, path.find(':'));
  for (const char* kind : {"fashion-mnist", "mnist", "cifar10", "cifar100", "folder"})
    if (head == kind && (path.size() > head.size() || head == "fashion-mnist")) return open_images(path, split);
  return nullptr;
}

Image fitted(const Image& image, ImageSize size, bool pad) {
  Augment augment;
  augment.height = size[0], augment.width = size[1], augment.channels = 3;
  augment.fit = pad ? Fit::kPad : Fit::kCenterCrop, augment.crop_fraction = 1.0;
  augment.interpolation = Interpolation::kBicubic;
  ItemScratch scratch;
  scratch.image = image;
  Philox nothing_random(0, Philox::kItem, 0, 0);
  ItemAugmenter(augment).fit(scratch, nothing_random);
  return std::move(scratch.image);
}

}  // namespace

torch::Tensor SourceImages::batch(std::int64_t first, std::int64_t most) {
  std::vector<torch::Tensor> images;
  const ImageSize own = own_size();
  const bool pad = size_ && own[0] > 0 && own[0] <= (*size_)[0] && own[1] > 0 && own[1] <= (*size_)[1];
  const std::int64_t end = std::min(size(), first + most);
  for (std::int64_t i = first; i < end; ++i) {
    if (next_at_ != i) {
      Image read = image(i);
      if (size_ && ImageSize{read.height, read.width} != *size_) read = fitted(read, *size_, pad);
      next_ = torch::from_blob(read.pixels.data(), {read.height, read.width, 3}, torch::kByte).clone(), next_at_ = i;
    }
    if (!images.empty() && images.front().sizes() != next_.sizes()) break;
    images.push_back(next_);
  }
  return torch::stack(images).permute({0, 3, 1, 2});
}

ImageSource open_image_source(const std::string& path, const std::string& network) {
  ImageSource source;
  if (is_folder(path)) {
    const std::filesystem::path samples = std::filesystem::path(path) / "images";
    const bool sampled = is_there(std::filesystem::path(path) / "sample.json") && is_folder(samples);
    source.images = std::make_unique<FolderSource>(sampled ? samples.string() : path);
  } else if (const ImageSetPtr set = named_set(path)) {
    source.images = std::make_unique<SetSource>(set);
  } else if (path.ends_with(".npz")) {
    const Npz file = Npz::read(path);
    if (file.contains("arr_0")) source.images = std::make_unique<NpzSource>(file);
    if (file.contains("mu")) source.stats = ImageFeatures::read(path, network);
    if (!source.images && !source.stats) fail(path, ": has neither arr_0 nor mu, expected images or statistics");
  } else if (path.ends_with(".safetensors")) {
    source.stats = ImageFeatures::read(path, network);
  } else {
    fail(kEvalImagesCommand, ": ", path, " is no folder, .npz or .safetensors file, and no set of images");
  }
  return source;
}

}  // namespace mhla::apps
