#include "mhla/io/text/token_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/text/bpe.h"

namespace mhla {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they lie");

struct Head {
  char magic[8];
  std::uint32_t version, token_bytes;
  std::uint64_t fingerprint, vocab_size, documents, tokens, zero;
  std::uint32_t body_crc, head_crc;
};
static_assert(sizeof(Head) == 64);

constexpr char kMagic[9] = "MHLATOKS";

std::uint32_t head_crc(const Head& head) { return crc32c(std::as_bytes(std::span(&head, 1)).first(60)); }

template <class Token>
void copy_tokens(const std::byte* from, std::int64_t count, std::int64_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, from + i * static_cast<std::int64_t>(sizeof token), sizeof token);
    out[i] = token;
  }
}

}  // namespace

TokenShardWriter::TokenShardWriter(std::uint64_t fingerprint, std::int64_t vocab_size)
    : fingerprint_(fingerprint), vocab_size_(static_cast<std::uint64_t>(vocab_size)) {
  if (vocab_size < 1 || vocab_size > kMaxVocab)
    fail("token shard: vocab_size is ", vocab_size, ", expected 1 to ", kMaxVocab);
}

void TokenShardWriter::add(std::span<const std::uint32_t> document) {
  if (document.empty()) fail("token shard: document ", documents(), " has no tokens");
  for (const std::uint32_t id : document)
    if (id >= vocab_size_)
      fail("token shard: document ", documents(), " has token ", id, ", expected 0 to ", vocab_size_ - 1);
  const auto put = [&](const auto& token) {
    const auto bytes = std::as_bytes(std::span(&token, 1));
    tokens_.insert(tokens_.end(), bytes.begin(), bytes.end());
  };
  for (const std::uint32_t id : document) {
    if (vocab_size_ <= 65536)
      put(static_cast<std::uint16_t>(id));
    else
      put(id);
  }
  offsets_.push_back(offsets_.back() + document.size());
}

std::vector<std::byte> TokenShardWriter::head() const {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.version = 1;
  head.token_bytes = vocab_size_ <= 65536 ? 2 : 4;
  head.fingerprint = fingerprint_;
  head.vocab_size = vocab_size_;
  head.documents = offsets_.size() - 1;
  head.tokens = offsets_.back();
  head.body_crc = crc32c(tokens_, crc32c(std::as_bytes(std::span(offsets_))));
  head.head_crc = head_crc(head);
  const auto bytes = std::as_bytes(std::span(&head, 1));
  return {bytes.begin(), bytes.end()};
}

void TokenShardWriter::write(const std::filesystem::path& path) const {
  AtomicFile file(path);
  file.write(head());
  file.write(std::as_bytes(std::span(offsets_)));
  file.write(tokens_);
  file.commit();
}

TokenShard TokenShard::read(const std::filesystem::path& path) {
  TokenShard shard;
  shard.label_ = path.string();
  shard.maybe_file_ = std::make_shared<const MappedFile>(path);
  shard.open(shard.maybe_file_->bytes());
  return shard;
}

TokenShard TokenShard::from_memory(std::span<const std::byte> bytes, const std::string& label) {
  TokenShard shard;
  shard.label_ = label;
  shard.open(bytes);
  return shard;
}

void TokenShard::open(std::span<const std::byte> bytes) {
  Head head{};
  if (bytes.size() < sizeof head) fail(label_, ": ", bytes.size(), " bytes, a token shard has at least ", sizeof head);
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof head.magic) != 0) fail(label_, ": is no token shard");
  if (head.version != 1) fail(label_, ": is a token shard of version ", head.version, ", expected 1");
  if (head.head_crc != head_crc(head)) fail(label_, ": the head of the token shard is damaged");
  if (head.vocab_size < 1 || head.vocab_size > static_cast<std::uint64_t>(kMaxVocab))
    fail(label_, ": a vocabulary of ", head.vocab_size, ", expected 1 to ", kMaxVocab);
  if (head.token_bytes != (head.vocab_size <= 65536 ? 2u : 4u) || head.zero != 0)
    fail(label_, ": ", head.token_bytes, " bytes a token, which a vocabulary of ", head.vocab_size, " does not have");
  // Each count alone is checked against the length first: their sum must not wrap.
  body_ = bytes.subspan(sizeof head);
  const std::uint64_t room = body_.size();
  if (head.documents >= room / 8 || head.tokens > room / head.token_bytes ||
      (head.documents + 1) * 8 + head.tokens * head.token_bytes != room)
    fail(label_, ": ", bytes.size(), " bytes do not hold ", head.documents, " documents of ", head.tokens, " tokens");
  offsets_ = {reinterpret_cast<const std::uint64_t*>(body_.data()), head.documents + 1};
  tokens_ = body_.subspan((head.documents + 1) * 8);
  if (offsets_.front() != 0 || offsets_.back() != head.tokens)
    fail(label_, ": documents from token ", offsets_.front(), " to ", offsets_.back(), ", expected 0 to ", head.tokens);
  for (std::size_t i = 0; i < head.documents; ++i)
    if (offsets_[i] >= offsets_[i + 1]) fail(label_, ": document ", i, " has no tokens");
  fingerprint_ = head.fingerprint;
  vocab_size_ = static_cast<std::int64_t>(head.vocab_size);
  token_bytes_ = static_cast<int>(head.token_bytes);
  checksum_ = head.body_crc;
}

void TokenShard::copy(std::int64_t first, std::int64_t count, std::int64_t* out) const {
  if (first < 0 || count < 0 || first > tokens() || count > tokens() - first)
    fail(label_, ": ", count, " tokens from ", first, " on, expected some of ", tokens());
  const std::byte* from = tokens_.data() + first * token_bytes_;
  if (token_bytes_ == 2)
    copy_tokens<std::uint16_t>(from, count, out);
  else
    copy_tokens<std::uint32_t>(from, count, out);
  for (std::int64_t i = 0; i < count; ++i)
    if (out[i] >= vocab_size_) fail(label_, ": token ", first + i, " is ", out[i], ", expected 0 to ", vocab_size_ - 1);
}

void TokenShard::verify_checksum() const {
  if (crc32c(body_) != checksum_) fail(label_, ": the checksum is wrong, the token shard is damaged");
}

void TokenShard::verify() const {
  verify_checksum();
  std::vector<std::int64_t> piece(std::size_t{1} << 16);
  for (std::int64_t at = 0; at < tokens();) {
    const std::int64_t count = std::min<std::int64_t>(tokens() - at, static_cast<std::int64_t>(piece.size()));
    copy(at, count, piece.data());
    at += count;
  }
}

}  // namespace mhla
