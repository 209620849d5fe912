// NumPy's .npz: a zip whose members are .npy arrays. Members are stored or deflated when read, stored when written,
// with zip64 records where a size or a place needs more than 32 bits. The ADM evaluator takes one member, arr_0, of u8
// [N, H, W, 3]. The reader believes nothing: sizes are checked against the file before memory is taken, checksums when
// an array is asked for, and an unpacked member may have at most `max_unpacked` bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/io/codecs/npy.h"
#include "mhla/io/file.h"

namespace mhla {

struct NpzLimits {
  std::uint64_t max_members = 65536;
  std::uint64_t max_unpacked = std::uint64_t{4} << 30;  // of one deflated member
};

class Npz {
 public:
  static Npz read(const std::filesystem::path& path, const NpzLimits& limits = {});  // mapped
  // `bytes` must outlive this object and its arrays.
  static Npz from_memory(std::span<const std::byte> bytes, const std::string& label, const NpzLimits& limits = {});

  [[nodiscard]] std::vector<std::string> names() const;  // without ".npy", in the order of the file
  [[nodiscard]] bool contains(const std::string& name) const;
  // Valid while the result or this object's file lives. Refuses an unknown name, naming what is there.
  [[nodiscard]] NpyArray array(const std::string& name) const;
  [[nodiscard]] const std::string& label() const { return label_; }

 private:
  struct Member {
    std::string name;
    bool deflated = false;
    std::uint32_t crc = 0;
    std::uint64_t packed = 0, unpacked = 0, header = 0;  // header: place of the local one
  };
  void read_directory();
  [[nodiscard]] std::span<const std::byte> packed_bytes(const Member& member) const;

  std::shared_ptr<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::string label_;
  NpzLimits limits_;
  std::vector<Member> members_;
};

// Arrays one after the other, whole or piece by piece, so that a set of images need not fit into memory. Without
// commit() nothing remains.
class NpzWriter {
 public:
  // Sizes and places from `zip64_from` on are written as 64-bit ones.
  explicit NpzWriter(const std::filesystem::path& path, std::uint64_t zip64_from = 0xffffffffu);

  void add(const std::string& name, const ConstView& array);  // contiguous
  void begin(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape);
  void write(std::span<const std::byte> elements);
  void end();  // refuses an array that is not complete
  void commit();

 private:
  struct Member {
    std::string name;
    std::uint32_t crc = 0;
    std::uint64_t size = 0, header = 0;
    bool descriptor = false;
  };
  void put(std::span<const std::byte> bytes);
  void start_member(const std::string& name, std::uint64_t size, bool descriptor, std::uint32_t crc);

  AtomicFile file_;
  std::uint64_t zip64_from_, at_ = 0, left_ = 0;
  bool open_ = false;
  std::vector<Member> members_;
};

}  // namespace mhla
