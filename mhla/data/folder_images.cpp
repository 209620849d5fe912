// A folder per class, as ImageNet is unpacked: ROOT/train/CLASS/*.jpg and ROOT/val/CLASS/*.jpg, or ROOT/CLASS/*.jpg
// where nobody has split it. Classes are numbered in the order of their names, those of val/ by the list of train/.
// What a file is called says whether it is taken, its first bytes how it is read.
#include <algorithm>
#include <map>

#include "mhla/core/error.h"
#include "mhla/data/sets.h"
#include "mhla/io/file.h"
#include "mhla/io/utf8.h"

namespace mhla {

std::filesystem::path folder_of_split(const std::filesystem::path& root, Split split) {
  std::error_code none;
  const bool parted = std::filesystem::is_directory(root / "train", none);
  if (split == Split::kTrain) return parted ? root / "train" : root;
  for (const char* name : {"val", "validation", "test"})
    if (parted && std::filesystem::is_directory(root / name, none)) return root / name;
  return {};
}
namespace {

namespace fs = std::filesystem;

std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool is_readable(const std::string& ending) {
  const ImageFormat* format = format_of_ending(ending);
  return format != nullptr && format->decode != nullptr;
}

// Folders inside `folder` by name; hidden ones are no classes.
std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code none;
    if (name[0] == '.' || !entry->is_directory(none)) continue;
    if (!is_utf8(name))  // the names of classes are kept in JSON files
      fail(escaped(folder.string()), ": the name of the class folder '", escaped(name),
           "' is not UTF-8, expected UTF-8: rename the folder");
    names.push_back(name);
  }
  if (error) fail(folder.string(), ": could not be listed: ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// A link to a folder above it would bring the images of all classes, again and again.
void expect_no_loop(const fs::path& link) {
  const std::string above = fs::canonical(link).string() + "/",
                    place = fs::canonical(link.parent_path()).string() + "/";
  if (place.rfind(above, 0) == 0) fail(link.string(), ": is a link to a folder that it is in, expected images");
}

struct Listing {
  std::vector<std::string> images;           // relative to the folder, sorted
  std::map<std::string, std::int64_t> rest;  // other files by ending
};

// What lies below `folder` at any depth. A link that leads nowhere counts as a damaged image; reading a pipe would
// wait.
Listing files_in(const fs::path& folder) {
  Listing found;
  std::error_code error;
  const auto options = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator entry(folder, options, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code none;
    if (entry->is_symlink(none) && entry->is_directory(none)) expect_no_loop(entry->path());
    if (entry->is_directory(none) || entry->path().filename().string()[0] == '.') continue;
    const std::string ending = ending_of(entry->path());
    const bool file = entry->is_regular_file(none) || !entry->exists(none);
    if (file && is_readable(ending))
      found.images.push_back(entry->path().lexically_relative(folder).string());
    else
      ++found.rest[ending];
  }
  if (error) fail(folder.string(), ": could not be listed: ", error.message());
  std::sort(found.images.begin(), found.images.end());
  return found;
}

class FolderImages final : public ImageSet {
 public:
  FolderImages(fs::path folder, Split split, const std::vector<std::string>& classes, bool all_needed)
      : folder_(std::move(folder)), split_(split), names_(classes) {
    for (std::size_t c = 0; c < names_.size(); ++c) {
      std::error_code none;
      Listing found;
      if (fs::is_directory(folder_ / names_[c], none)) found = files_in(folder_ / names_[c]);
      for (const auto& [ending, files] : found.rest) rest_[ending] += files;
      if (found.images.empty() && all_needed)
        fail((folder_ / names_[c]).string(), ": no image, expected ", readable_endings(), " files of class '",
             names_[c], "'", but_others());
      for (std::string& path : found.images) items_.push_back({static_cast<int>(c), std::move(path)});
    }
    if (items_.empty())
      fail(folder_.string(), ": no image, expected ", readable_endings(), " files in folders of the ", names_.size(),
           " classes, such as ", (folder_ / names_.front()).string(), but_others());
  }
  [[nodiscard]] std::string name() const override { return str(folder_.string(), ", ", name_of(split_)); }
  [[nodiscard]] std::string kind() const override { return "folder"; }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] int channels() const override { return 3; }
  [[nodiscard]] int height() const override { return 0; }
  [[nodiscard]] int width() const override { return 0; }
  [[nodiscard]] int label(std::int64_t item) const override { return at(item).label; }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return escaped(path_of(item).string()); }
  void decode(std::int64_t item, Image& image) const override {
    const fs::path path = path_of(item);
    try {
      decode_image(read_file(path, ImageLimits{}.max_bytes), path.string(), image);
    } catch (const Error& error) {  // warnings go into JSON files
      fail(escaped(error.what()));
    }
    convert_channels(image, 3);
  }
  [[nodiscard]] std::vector<LeftOut> left_out() const override {
    std::vector<LeftOut> list;
    for (const auto& [ending, files] : rest_) list.push_back({ending, files});
    std::stable_sort(list.begin(), list.end(), [](const LeftOut& a, const LeftOut& b) { return a.files > b.files; });
    return list;
  }

 private:
  [[nodiscard]] std::string but_others() const {
    const std::string text = left_out_text(left_out());
    return text.empty() ? text : "; left out: " + text;
  }
  struct Item {
    int label;
    std::string path;  // below the folder of its class
  };
  [[nodiscard]] const Item& at(std::int64_t item) const { return items_[static_cast<std::size_t>(item)]; }
  [[nodiscard]] fs::path path_of(std::int64_t item) const {
    return folder_ / names_[static_cast<std::size_t>(at(item).label)] / at(item).path;
  }

  fs::path folder_;
  Split split_;
  std::vector<std::string> names_;
  std::vector<Item> items_;
  std::map<std::string, std::int64_t> rest_;  // left out, by ending
};

}  // namespace

std::vector<std::string> image_files_in(const std::string& folder) { return files_in(folder).images; }

bool has_class_folders(const fs::path& folder, Split split) {
  const fs::path inside = folder_of_split(folder, split);
  if (inside.empty()) return false;
  if (split == Split::kTest) return true;  // one without images is an error of open_folder(), not data without a split
  const std::vector<std::string> classes = folders_in(inside);
  return std::any_of(classes.begin(), classes.end(),
                     [&](const std::string& name) { return !files_in(inside / name).images.empty(); });
}

ImageSetPtr open_folder(const fs::path& folder, Split split) {
  const fs::path train = folder_of_split(folder, Split::kTrain);
  const std::vector<std::string> classes = folders_in(train);
  if (classes.size() < 2)
    fail(train.string(), ": ", classes.size(), " folders, expected at least two, one for each class");
  if (split == Split::kTrain) return std::make_shared<FolderImages>(train, split, classes, true);
  const fs::path test = folder_of_split(folder, split);
  if (test.empty())
    fail(folder.string(), ": no test images, looked for the folders val, validation and test beside train");
  for (const std::string& name : folders_in(test))
    if (!std::binary_search(classes.begin(), classes.end(), name))
      fail((test / name).string(), ": class '", name, "' is not among the ", classes.size(), " of ", train.string());
  return std::make_shared<FolderImages>(test, split, classes, false);
}

}  // namespace mhla
