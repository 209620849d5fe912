#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/sets.h"
#include "mhla/io/codecs/gzip.h"
#include "mhla/io/folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDebianFashion = "/usr/share/datasets/fashion-mnist";
constexpr const char* kKinds[] = {"fashion-mnist", "mnist", "cifar10", "cifar100", "folder"};
constexpr std::uint64_t kMaxUnpacked = std::uint64_t{16} << 30;

struct Place {
  std::string kind;  // empty: by what lies there
  fs::path folder;
};

bool is_kind(const std::string& text) {
  return std::find(std::begin(kKinds), std::end(kKinds), text) != std::end(kKinds);
}

// What `data` says, whether it is there or not.
Place named(const std::string& data) {
  if (data == "fashion-mnist") return {data, kDebianFashion};
  const std::size_t colon = data.find(':');
  if (colon == std::string::npos || !is_kind(data.substr(0, colon))) return {"", data};
  return {data.substr(0, colon), data.substr(colon + 1)};
}

Place place_of(const std::string& data) {
  if (data.empty()) fail("data: is empty, expected fashion-mnist, a folder, or KIND:FOLDER");
  const Place place = named(data);
  if (data == "fashion-mnist") {
    if (!is_folder(kDebianFashion))
      fail("data: ", kDebianFashion,
           " is missing: install Debian's dataset-fashion-mnist, or give fashion-mnist:FOLDER");
    return place;
  }
  if (is_kind(data) && !is_there(data)) fail("data: '", data, "' needs a folder, ", data, ":FOLDER");
  if (!is_folder(place.folder))
    fail("data: '", place.folder.string(), "' is no folder, expected one, or fashion-mnist, mnist:FOLDER, ",
         "cifar10:FOLDER, cifar100:FOLDER or folder:FOLDER");
  return place;
}

// What lies in a folder, for either split: half a set is named as what it is half of. Empty: nothing known.
std::string known_kind(const fs::path& folder) {
  for (const Split split : {Split::kTrain, Split::kTest}) {
    if (has_idx(folder, split))
      return fs::absolute(folder).string().find("fashion") != std::string::npos ? "fashion-mnist" : "mnist";
    if (has_cifar(folder, split, 10)) return "cifar10";
    if (has_cifar(folder, split, 100)) return "cifar100";
  }
  return has_class_folders(folder, Split::kTrain) ? "folder" : "";
}

std::string guess(const fs::path& folder) {
  if (const std::string kind = known_kind(folder); !kind.empty()) return kind;
  fail("data: nothing known in ", folder.string(), ", looked for ", idx_files(Split::kTrain), "; ",
       cifar_files(Split::kTrain, 10), "; ", cifar_files(Split::kTrain, 100), "; folders of images (",
       readable_endings(), "), one for each class, also below train");
}

Place found(const std::string& data) {
  Place place = place_of(data);
  if (place.kind.empty()) place.kind = guess(place.folder);
  return place;
}

}  // namespace

const char* name_of(Split split) { return split == Split::kTrain ? "train" : "test"; }

FileBytes::FileBytes(const fs::path& path) : path_(path.string()), mapped_(std::make_unique<MappedFile>(path)) {
  bytes_ = mapped_->bytes();
  if (!is_gzip(bytes_)) return;
  unpacked_ = gunzip(bytes_, path_, kMaxUnpacked);
  mapped_.reset();
  bytes_ = unpacked_;
}

std::vector<std::string> read_lines(const fs::path& path) {
  std::vector<std::string> lines(1);
  for (const std::byte byte : read_file(path, 1 << 20)) {
    const char c = static_cast<char>(byte);
    if (c == '\n') lines.emplace_back();
    if (c != '\n' && c != '\r') lines.back() += c;
  }
  lines.erase(std::remove(lines.begin(), lines.end(), std::string()), lines.end());
  return lines;
}

ImageSetPtr open_images(const std::string& data, Split split) {
  const Place place = found(data);
  if (place.kind == "cifar10") return open_cifar(place.folder, split, 10);
  if (place.kind == "cifar100") return open_cifar(place.folder, split, 100);
  if (place.kind == "folder") return open_folder(place.folder, split);
  return open_idx(place.folder, split, place.kind);
}

bool has_split(const std::string& data, Split split) {
  const Place place = found(data);
  if (place.kind == "cifar10") return has_cifar(place.folder, split, 10);
  if (place.kind == "cifar100") return has_cifar(place.folder, split, 100);
  if (place.kind == "folder") return has_class_folders(place.folder, split);
  return has_idx(place.folder, split);
}

std::string left_out_text(const std::vector<LeftOut>& left_out) {
  std::int64_t files = 0;
  std::string list;
  for (const LeftOut& one : left_out) {
    files += one.files;
    list += str(list.empty() ? "" : ", ", one.files, " ", one.ending.empty() ? "without an ending" : one.ending);
    if (const ImageFormat* format = format_of_ending(one.ending)) {
      if (format->decode == nullptr) list += str(" (this build cannot read ", format->name, ")");
    }
  }
  return files == 0 ? "" : str(files, files == 1 ? " file: " : " files: ", list);
}

std::string left_out_warning(const ImageSet& set) {
  const std::string text = left_out_text(set.left_out());
  return text.empty() ? text : str(set.name(), ": left out ", text, "; images end in ", readable_endings());
}

std::string folder_of(const std::string& data) {
  std::error_code error;
  const fs::path folder = named(data).folder, canonical = fs::weakly_canonical(folder, error);
  return (error ? folder : canonical).string();
}

std::string image_kind(const std::string& data) {
  const Place place = named(data);
  if (!place.kind.empty()) return place.kind;
  std::error_code none;
  const std::string kind = fs::is_directory(place.folder, none) ? known_kind(place.folder) : "";
  return kind.empty() ? "folder" : kind;
}

bool needs_hold_out(const std::string& data) {
  const Place place = found(data);
  return place.kind == "folder" && !has_class_folders(place.folder, Split::kTest);
}

}  // namespace mhla
