// The readers behind open_images(). Private to this room.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/data/image_set.h"
#include "mhla/io/file.h"

namespace mhla {

// A file mapped, or unpacked into memory where it is gzip.
class FileBytes {
 public:
  explicit FileBytes(const std::filesystem::path& path);
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<MappedFile> mapped_;
  std::vector<std::byte> unpacked_;
  std::span<const std::byte> bytes_;
};

// One line per text line that is not empty.
std::vector<std::string> read_lines(const std::filesystem::path& path);

// Each format: whether a folder has the files of a split, what these are called (for messages), and the reader.
bool has_idx(const std::filesystem::path& folder, Split split);
std::string idx_files(Split split);
ImageSetPtr open_idx(const std::filesystem::path& folder, Split split, const std::string& kind);

bool has_cifar(const std::filesystem::path& folder, Split split, int classes);
std::string cifar_files(Split split, int classes);
ImageSetPtr open_cifar(const std::filesystem::path& folder, Split split, int classes);

bool has_class_folders(const std::filesystem::path& folder, Split split);
ImageSetPtr open_folder(const std::filesystem::path& folder, Split split);

}  // namespace mhla
