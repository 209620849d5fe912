// Documents as tokens in one file, mapped when read. Little endian:
//   0   "MHLATOKS"
//   8   u32 version, 1          12  u32 bytes of a token, 2 or 4
//   16  u64 fingerprint of the tokenizer
//   24  u64 vocabulary size     32  u64 documents      40  u64 tokens
//   48  u64 zero                56  u32 CRC-32C of all behind the head   60  u32 CRC-32C of the 60 bytes before
//   64  u64 first token of each document and the end of the last: documents + 1 numbers, from 0, growing
//   ... tokens
// Opening checks the head, the length and the documents; verify_checksum() reads every byte, verify() every token too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/io/file.h"

namespace mhla {

// What writes a shard: documents one after the other, then one atomic file. Tokens of a vocabulary up to 65,536 take
// two bytes.
class TokenShardWriter {
 public:
  TokenShardWriter(std::uint64_t fingerprint, std::int64_t vocab_size);
  void add(std::span<const std::uint32_t> document);  // not empty; ids below vocab_size
  [[nodiscard]] std::int64_t documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  [[nodiscard]] std::int64_t tokens() const { return static_cast<std::int64_t>(offsets_.back()); }
  [[nodiscard]] std::vector<std::byte> head() const;
  void write(const std::filesystem::path& path) const;

 private:
  std::uint64_t fingerprint_;
  std::uint64_t vocab_size_;
  std::vector<std::uint64_t> offsets_{0};
  std::vector<std::byte> tokens_;
};

class TokenShard {
 public:
  static TokenShard read(const std::filesystem::path& path);
  // `bytes` are borrowed, at an address that is a multiple of 8; `label` opens an error.
  static TokenShard from_memory(std::span<const std::byte> bytes, const std::string& label);

  [[nodiscard]] const std::string& label() const { return label_; }
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }
  [[nodiscard]] std::int64_t vocab_size() const { return vocab_size_; }
  [[nodiscard]] int token_bytes() const { return token_bytes_; }
  [[nodiscard]] std::int64_t documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  [[nodiscard]] std::int64_t tokens() const { return static_cast<std::int64_t>(offsets_.back()); }
  [[nodiscard]] std::span<const std::uint64_t> offsets() const { return offsets_; }  // [documents + 1]
  [[nodiscard]] std::uint32_t checksum() const { return checksum_; }                 // as the head says

  // `count` tokens from `first` on. A token outside the vocabulary is an Error: the file was damaged after it was
  // written.
  void copy(std::int64_t first, std::int64_t count, std::int64_t* out) const;
  void verify_checksum() const;
  void verify() const;  // checksum and every token

 private:
  TokenShard() = default;
  void open(std::span<const std::byte> bytes);
  std::string label_;
  std::shared_ptr<const MappedFile> maybe_file_;
  std::span<const std::byte> body_, tokens_;
  std::span<const std::uint64_t> offsets_;
  std::uint64_t fingerprint_ = 0;
  std::int64_t vocab_size_ = 0;
  int token_bytes_ = 0;
  std::uint32_t checksum_ = 0;
};

}  // namespace mhla
