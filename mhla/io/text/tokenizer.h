// Text to numbers and back. Any bytes are text: what is no UTF-8 is encoded as its bytes, and decoding gives the same
// bytes again. SentencePiece and the tokenizer.json of other projects take UTF-8 only, and what they normalise does not
// come back. A tokenizer never changes; encoding scratch lives in an Encoder, one per thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

// Whether text that reads like a special token, "<|endoftext|>", becomes that token. Text from a corpus or a user must
// not be able to speak for the program, so it is kPlain unless asked for.
enum class SpecialText : std::uint8_t { kPlain, kParse };

struct SpecialToken {
  std::uint32_t id = 0;
  std::string text;
  bool special = true;  // false: an added word, found in every text
  friend bool operator==(const SpecialToken&, const SpecialToken&) = default;
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void encode(std::string_view text, std::vector<std::uint32_t>& ids) = 0;  // appends
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string kind() const = 0;                           // "bytes", "bpe", "sentencepiece"
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;                    // every id is below it
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;                  // of all that decides what ids mean
  [[nodiscard]] virtual const std::vector<SpecialToken>& specials() const = 0;  // by id
  // What the tokenizer's own file puts before and behind a document. encode() adds neither: a text may be a part of
  // one.
  [[nodiscard]] virtual const std::vector<std::uint32_t>& opening() const = 0;
  [[nodiscard]] virtual const std::vector<std::uint32_t>& closing() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Encoder> encoder(SpecialText special = SpecialText::kPlain) const = 0;
  virtual void save(const std::filesystem::path& path) const = 0;
  [[nodiscard]] virtual std::string file_name() const { return "tokenizer.json"; }  // in the folder of a set or a run

  // The bytes of one token, which need not be whole characters. An id without token is an Error.
  [[nodiscard]] virtual std::string_view token_text(std::int64_t id) const = 0;

  // What `id` adds to a text whose last token is `before`: token_text(), but for decoders that put a space between two
  // words. These bytes, one token after the other, are the text as it grows.
  [[nodiscard]] virtual std::string text_after(std::int64_t before, std::int64_t id) const;

  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view text,
                                                  SpecialText special = SpecialText::kPlain) const;
  // Of a text that goes on behind another: without what a tokenizer puts before the first word of a text.
  [[nodiscard]] virtual std::vector<std::uint32_t> encode_more(std::string_view text) const { return encode(text); }
  [[nodiscard]] virtual std::string decode(std::span<const std::uint32_t> ids) const;
  [[nodiscard]] std::optional<std::uint32_t> find_special(std::string_view text) const;
  // What every document opens with: opening(), or else <|endoftext|>, <s> or <|begin_of_text|>, the first of these that
  // there is, or nothing.
  [[nodiscard]] std::vector<std::uint32_t> document_opening() const;
};

using TokenizerPtr = std::shared_ptr<const Tokenizer>;

inline constexpr std::string_view kEndOfText = "<|endoftext|>";  // stands before every document

TokenizerPtr byte_tokenizer();  // ids 0 to 255 are bytes, 256 is kEndOfText

// "bytes", a tokenizer.json of a BPE model, or a .model of SentencePiece.
TokenizerPtr open_tokenizer(const std::string& name);
bool has_sentencepiece();  // whether they were built in; PCRE2 and ICU read patterns and normalisers of tokenizer.json
bool has_pcre2();
bool has_icu();

}  // namespace mhla
