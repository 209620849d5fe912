#include "mhla/io/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "mhla/core/error.h"

namespace mhla {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

File open(const std::filesystem::path& path, const char* mode) {
  if (std::filesystem::is_directory(path)) fail(path.string(), ": is a directory, expected a file");
  File file(std::fopen(path.c_str(), mode));
  if (!file) fail(path.string(), ": ", std::strerror(errno));
  return file;
}

}  // namespace

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  const File file = open(path, "rb");
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(path, ignored);
  std::vector<std::byte> bytes(ignored ? 0 : static_cast<std::size_t>(size));
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    fail(path.string(), ": could not be read to its end");
  return bytes;
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::path partial = path;
  partial += ".part";
  {
    const File file = open(partial, "wb");
    if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() || std::fflush(file.get()) != 0) {
      const int reason = errno;
      std::remove(partial.c_str());
      fail(path.string(), ": could not be written: ", std::strerror(reason));
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) fail(path.string(), ": could not be written: ", error.message());
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace mhla
