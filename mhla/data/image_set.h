// A labelled set of images: one interface over IDX files, CIFAR and image folders. Opening one checks what can be
// checked without decoding (magic numbers, lengths, counts, labels); an image that turns out damaged is an Error of its
// own decode() that names it, and the set goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/codecs/image.h"

namespace mhla {

// Files among the images that are not taken, by the ending of their names.
struct LeftOut {
  std::string ending;  // ".txt", or empty
  std::int64_t files = 0;
};

class ImageSet {
 public:
  virtual ~ImageSet() = default;
  [[nodiscard]] virtual std::string name() const = 0;  // "fashion-mnist, train"
  [[nodiscard]] virtual std::string kind() const = 0;  // fashion-mnist, mnist, cifar10, cifar100, folder or memory
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual const std::vector<std::string>& class_names() const = 0;
  [[nodiscard]] virtual int channels() const = 0;  // 1 or 3, of every image
  [[nodiscard]] virtual int height() const = 0;    // 0: images of different sizes
  [[nodiscard]] virtual int width() const = 0;
  [[nodiscard]] virtual int label(std::int64_t item) const = 0;  // in [0, classes())
  [[nodiscard]] virtual std::string item_name(std::int64_t item) const = 0;
  // Several threads may decode at once, each into an image of its own, which keeps its memory. An Error says which item
  // is damaged, and how.
  virtual void decode(std::int64_t item, Image& image) const = 0;

  [[nodiscard]] virtual std::vector<LeftOut> left_out() const { return {}; }  // of a folder; hidden files are not told

  [[nodiscard]] int classes() const { return static_cast<int>(class_names().size()); }
};

using ImageSetPtr = std::shared_ptr<const ImageSet>;

enum class Split { kTrain, kTest };
const char* name_of(Split split);  // "train", "test"

// `data` is one of
//   fashion-mnist              Debian's dataset-fashion-mnist
//   fashion-mnist:FOLDER       IDX files, plain or .gz; also mnist:FOLDER
//   cifar10:FOLDER             the binary version; also cifar100:FOLDER
//   folder:FOLDER              one folder per class, below train/ and val/ (or test/) where these exist
//   FOLDER                     any of these, by what lies in it
// Throws an Error that says what was looked for and where.
ImageSetPtr open_images(const std::string& data, Split split);

// Whether `data` has that split, without reading it: a folder of class folders has no test split.
bool has_split(const std::string& data, Split split);

// The kind() of `data` without reading it: by its name, or by what lies in its folder; "folder" where that is gone.
std::string image_kind(const std::string& data);

// Whether test images must be held out of the training images: class folders without val/ or test/. IDX and CIFAR have
// a test set; where its files are missing, open_images() says so.
bool needs_hold_out(const std::string& data);

// What was left out, for people: "52 files: 50 .webp (this build cannot read WebP), 2 .txt". Empty: nothing was.
std::string left_out_text(const std::vector<LeftOut>& left_out);
// The same of a set, as a warning. Empty: nothing was.
std::string left_out_warning(const ImageSet& set);

// The folder of `data`, there or not: the same for every spelling of it.
std::string folder_of(const std::string& data);

// `count` items chosen by `seed`, the same share of every class as in `set`; the order is that of `set`.
ImageSetPtr subset(ImageSetPtr set, std::int64_t count, std::uint64_t seed);

// Two sets without a common item: the second holds `fraction` of every class. For data without a test split.
std::pair<ImageSetPtr, ImageSetPtr> hold_out(const ImageSetPtr& set, double fraction, std::uint64_t seed);

// A number of the labels in their order: another set, or the same images otherwise sorted, has another.
std::uint32_t labels_checksum(const ImageSet& set);

// Image files as a set without labels: all are of class 0.
struct ImageFile {
  std::string name;                                   // the path
  std::optional<std::vector<std::byte>> maybe_bytes;  // of an image that is in no file
};
ImageSetPtr images_in_files(std::vector<ImageFile> files, int channels);

// The folder of a split below `root`: train/ for training, or `root` where it is missing; val/, validation/ or test/
// beside it for the other, empty where there is none.
std::filesystem::path folder_of_split(const std::filesystem::path& root, Split split);
// Files below `folder` that are called as images (readable_endings()), at any depth, relative to it, sorted.
std::vector<std::string> image_files_in(const std::string& folder);

// A set held in memory, for tests and for data that comes from elsewhere.
struct MemoryImages {
  std::string name;
  std::vector<std::string> class_names;
  std::vector<Image> images;  // of one number of channels
  std::vector<int> labels;
};
ImageSetPtr images_in_memory(MemoryImages images);

}  // namespace mhla
