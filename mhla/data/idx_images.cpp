// IDX, the format of MNIST and its successors: 00 00 08 R, R sizes as big-endian 32-bit numbers, then the bytes.
// Images have R = 3 (count, height, width), labels R = 1.
#include <array>

#include "mhla/core/error.h"
#include "mhla/core/hex.h"
#include "mhla/data/sets.h"
#include "mhla/io/folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kImageMagic = 0x803, kLabelMagic = 0x801;
constexpr std::uint64_t kMaxIdxSide = 65500;
constexpr std::array<const char*, 10> kGarments = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                                   "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

std::uint32_t big_endian(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = (value << 8) | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

// The bytes behind the head, after the head was found to say `magic` and the length to be exactly what the sizes ask
// for.
std::span<const std::byte> body_of(const FileBytes& file, std::uint32_t magic, std::size_t rank,
                                   std::array<std::uint64_t, 3>& sizes) {
  const std::span<const std::byte> bytes = file.bytes();
  const std::size_t head = 4 + 4 * rank;
  if (bytes.size() < head) fail(file.path(), ": ", bytes.size(), " bytes, expected an IDX file of at least ", head);
  if (big_endian(bytes, 0) != magic)
    fail(file.path(), ": begins with 0x", hex(big_endian(bytes, 0)), ", expected 0x", hex(magic), " (IDX, ",
         magic == kImageMagic ? "images" : "labels", ")");
  std::uint64_t want = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    sizes[i] = big_endian(bytes, 4 + 4 * i);
    if (i > 0 && (sizes[i] == 0 || sizes[i] > kMaxIdxSide))
      fail(file.path(), ": images of ", sizes[1], " x ", big_endian(bytes, 12), ", expected sides from 1 to ",
           kMaxIdxSide);
    want *= sizes[i];  // 2^32 * 65500^2 fits 64 bits
  }
  if (bytes.size() - head != want)
    fail(file.path(), ": ", bytes.size() - head, " bytes after the head, expected ", want, " for its ", sizes[0],
         magic == kImageMagic ? " images" : " labels", bytes.size() - head < want ? ": the file is cut short" : "");
  if (sizes[0] == 0) fail(file.path(), ": holds nothing, expected at least one item");
  return bytes.subspan(head);
}

// The file under its plain or packed name, or an empty path. Both spellings of the name are in use.
fs::path find_idx(const fs::path& folder, Split split, bool images) {
  const std::string head = str(split == Split::kTrain ? "train" : "t10k", images ? "-images" : "-labels");
  for (const char* joint : {"-", "."})
    for (const char* tail : {"", ".gz"}) {
      const fs::path path = folder / str(head, joint, images ? "idx3" : "idx1", "-ubyte", tail);
      if (is_there(path)) return path;
    }
  return {};
}

class IdxImages final : public ImageSet {
 public:
  IdxImages(const fs::path& images, const fs::path& labels, Split split, std::string kind)
      : kind_(std::move(kind)), split_(split), image_file_(images), label_file_(labels) {
    std::array<std::uint64_t, 3> sizes{};
    labels_ = body_of(label_file_, kLabelMagic, 1, sizes);
    const std::uint64_t label_count = sizes[0];
    pixels_ = body_of(image_file_, kImageMagic, 3, sizes);
    if (sizes[0] != label_count)
      fail(image_file_.path(), ": ", sizes[0], " images, but ", label_file_.path(), " has ", label_count, " labels");
    size_ = static_cast<std::int64_t>(sizes[0]);
    height_ = static_cast<int>(sizes[1]);
    width_ = static_cast<int>(sizes[2]);
    for (int i = 0; i < 10; ++i)
      names_.emplace_back(kind_ == "fashion-mnist" ? kGarments[static_cast<std::size_t>(i)] : std::to_string(i));
    for (std::int64_t item = 0; item < size_; ++item)
      if (label(item) >= 10) fail(label_file_.path(), ": label ", label(item), " of item ", item, ", expected 0 to 9");
  }
  [[nodiscard]] std::string name() const override { return str(kind_, ", ", name_of(split_)); }
  [[nodiscard]] std::string kind() const override { return kind_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] int channels() const override { return 1; }
  [[nodiscard]] int height() const override { return height_; }
  [[nodiscard]] int width() const override { return width_; }
  [[nodiscard]] int label(std::int64_t item) const override {
    return std::to_integer<int>(labels_[static_cast<std::size_t>(item)]);
  }
  [[nodiscard]] std::string item_name(std::int64_t item) const override {
    return str(image_file_.path(), ", item ", item);
  }
  void decode(std::int64_t item, Image& image) const override {
    image.resize(height_, width_, 1);
    const std::size_t bytes = image.pixels.size();
    const auto* from = reinterpret_cast<const std::uint8_t*>(pixels_.data()) + static_cast<std::size_t>(item) * bytes;
    std::copy(from, from + bytes, image.pixels.begin());
  }

 private:
  std::string kind_;
  Split split_;
  FileBytes image_file_, label_file_;
  std::span<const std::byte> pixels_, labels_;
  std::int64_t size_ = 0;
  int height_ = 0, width_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

bool has_idx(const fs::path& folder, Split split) {
  return !find_idx(folder, split, true).empty() || !find_idx(folder, split, false).empty();
}

std::string idx_files(Split split) {
  const char* head = split == Split::kTrain ? "train" : "t10k";
  return str(head, "-images-idx3-ubyte and ", head, "-labels-idx1-ubyte (plain or .gz)");
}

ImageSetPtr open_idx(const fs::path& folder, Split split, const std::string& kind) {
  const fs::path images = find_idx(folder, split, true), labels = find_idx(folder, split, false);
  if (images.empty() || labels.empty())
    fail(folder.string(), ": no ", images.empty() ? "images" : "labels", " of ", kind, ", looked for ",
         idx_files(split));
  return std::make_shared<IdxImages>(images, labels, split, kind);
}

}  // namespace mhla
