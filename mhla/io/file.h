// Whole files in and out, with errors that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

// Refuses more than `limit` bytes without reading them.
std::vector<std::byte> read_file(const std::filesystem::path& path,
                                 std::uint64_t limit = std::numeric_limits<std::uint64_t>::max());

// Names in a folder reach the disk on their own: after a file was made or renamed in it, this waits for them.
void sync_directory(const std::filesystem::path& path);

struct CloseFile {
  void operator()(std::FILE* file) const;
};

// Throws what the system's `error` (errno) means: RunFailed where the machine gave out, such as a full disk, an Error
// where the path is wrong or not allowed. "PATH: could not be written: REASON".
[[noreturn]] void fail_to_write(const std::filesystem::path& path, int error);
// The same for what std::filesystem threw.
[[noreturn]] void fail_as(const std::filesystem::filesystem_error& thrown);

// Writes beside the target and renames: a reader sees the old file or the new one, never half of it. Symbolic links
// stay, the file they lead to is replaced or made. Pipes and character devices are written to as they are. Directories,
// sockets and block devices are refused.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, const std::string& text);

// The same, piece by piece. Without commit(), or after an error, the target stays as it was and no trace remains. A
// pipe is opened by the first write(), which waits for its reader: making an AtomicFile and leaving it tells whether a
// path can be written.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void commit();  // on the disk and under its name when it returns

 private:
  void open(const std::filesystem::path& path, int flags);
  std::filesystem::path path_, target_, partial_;  // as given; without links; empty for a stream
  std::unique_ptr<std::FILE, CloseFile> file_;
};

// Files in a folder that an AtomicFile left behind when its process was killed. Those of processes that live stay.
void remove_partial_files(const std::filesystem::path& folder);

// A file that grows, for logs. Made when it is not there; what is there stays, or with `keep` its first bytes. Links,
// pipes and devices as above.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path, std::uint64_t keep = std::numeric_limits<std::uint64_t>::max());
  void write(std::string_view text);
  void flush();                                               // what was written is in the file when it returns
  [[nodiscard]] std::uint64_t size() const { return size_; }  // with what is not flushed yet

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::uint64_t size_ = 0;
};

// A file mapped for reading: pages come from the disk when touched. Cutting the file short in place while it is
// mapped ends the process, as with every mapped file; replacing it by a rename is safe.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // a regular file, may be empty
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace mhla
