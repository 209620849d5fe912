// Byte-level BPE: text is cut into pieces (pieces.h); in each, starting from its bytes, the pair of neighbours with the
// lowest merge is joined, the leftmost first, until none is left.
#pragma once

#include <array>
#include <utility>

#include "mhla/io/text/pieces.h"
#include "mhla/io/text/tokenizer.h"

namespace mhla {

// What a tokenizer is made of. Merge i joins two tokens into the one whose bytes are theirs together.
struct BpeTable {
  std::vector<std::string> tokens;                              // bytes by id; empty: no such id
  std::vector<std::pair<std::uint32_t, std::uint32_t>> merges;  // first is strongest
  std::vector<SpecialToken> specials;                           // their text stands in `tokens`, too
  PieceRule rule = PieceRule::kGpt2;
  bool ignore_merges = false;     // a piece that is a token is that token, whatever merges would make of it
  bool add_prefix_space = false;  // a text that opens with no space gets one
  std::vector<std::uint32_t> opening, closing;  // tokens before and behind a document
};

inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTable table,
                        const std::string& label = "bpe");  // refuses a table that does not hold together
  ~BpeTokenizer() override;
  [[nodiscard]] std::string kind() const override { return table_.merges.empty() ? "bytes" : "bpe"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(table_.tokens.size()); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] const std::vector<SpecialToken>& specials() const override { return table_.specials; }
  [[nodiscard]] const std::vector<std::uint32_t>& opening() const override { return table_.opening; }
  [[nodiscard]] const std::vector<std::uint32_t>& closing() const override { return table_.closing; }
  [[nodiscard]] std::unique_ptr<Encoder> encoder(SpecialText special = SpecialText::kPlain) const override;
  [[nodiscard]] std::string_view token_text(std::int64_t id) const override;
  void save(const std::filesystem::path& path) const override;  // as tokenizer.json
  [[nodiscard]] const BpeTable& table() const { return table_; }

 private:
  friend class BpeEncoder;
  struct Index;
  BpeTable table_;
  std::uint64_t fingerprint_ = 0;
  std::array<std::uint32_t, 256> byte_ids_{};
  std::unique_ptr<const Index> index_;
};

}  // namespace mhla
