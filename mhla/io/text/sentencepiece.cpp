#include "mhla/io/text/sentencepiece.h"

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/text/fingerprint.h"

#if MHLA_HAS_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace mhla {

#if MHLA_HAS_SENTENCEPIECE
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 stands for a space

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const Processor& processor) : processor_(processor) {}
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) override {
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &scratch_);
    if (!status.ok()) fail("sentencepiece: ", status.ToString());
    ids.insert(ids.end(), scratch_.begin(), scratch_.end());
  }

 private:
  const Processor& processor_;
  std::vector<int> scratch_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& label) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) fail(label, ": is no SentencePiece model (", status.ToString(), ")");
    Fingerprint print;
    print.add("mhla sentencepiece 1");
    print.add(model_);
    fingerprint_ = print.value();
    for (int id = 0; id < processor_.GetPieceSize(); ++id) texts_.push_back(text_of(id));
    if (processor_.bos_id() >= 0) opening_.push_back(static_cast<std::uint32_t>(processor_.bos_id()));
    std::vector<int> ids;
    processor_.Encode("a", &ids).IgnoreError();
    adds_space_ = !ids.empty() && texts_[static_cast<std::size_t>(ids[0])].substr(0, 1) == " ";
  }
  [[nodiscard]] std::string kind() const override { return "sentencepiece"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(texts_.size()); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] const std::vector<SpecialToken>& specials() const override { return specials_; }
  [[nodiscard]] const std::vector<std::uint32_t>& opening() const override { return opening_; }
  [[nodiscard]] const std::vector<std::uint32_t>& closing() const override { return closing_; }
  [[nodiscard]] std::unique_ptr<Encoder> encoder(SpecialText /*special*/) const override {  // never from text
    return std::make_unique<SentencePieceEncoder>(processor_);
  }
  void save(const std::filesystem::path& path) const override { write_file(path, model_); }
  [[nodiscard]] std::string file_name() const override { return "tokenizer.model"; }
  [[nodiscard]] std::string_view token_text(std::int64_t id) const override {
    if (id < 0 || id >= vocab_size()) fail("tokenizer: id ", id, " is out of range, expected 0 to ", vocab_size() - 1);
    return texts_[static_cast<std::size_t>(id)];
  }
  // Without the space that encoding puts before a text.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids) const override {
    std::size_t first = 0;
    while (first < ids.size() && processor_.IsControl(static_cast<int>(ids[first]))) ++first;
    std::string text, opening;
    for (std::size_t i = 0; i < ids.size(); ++i) (i < first ? opening : text) += token_text(ids[i]);
    if (adds_space_ && text.substr(0, 1) == " ") text.erase(0, 1);
    return opening + text;
  }

 private:
  std::string text_of(int id) {
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsControl(id) || processor_.IsUnknown(id)) {
      specials_.push_back({static_cast<std::uint32_t>(id), piece});
      return piece;
    }
    if (processor_.IsByte(id))
      return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));  // <0x41>
    std::string text;
    for (std::size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      text += space ? ' ' : piece[at];
      at += space ? kSpaceMark.size() : 1;
    }
    return text;
  }
  Processor processor_;
  std::string model_;
  std::vector<std::string> texts_;
  std::vector<SpecialToken> specials_;
  std::vector<std::uint32_t> opening_, closing_;
  std::uint64_t fingerprint_ = 0;
  bool adds_space_ = false;
};

}  // namespace

TokenizerPtr open_sentencepiece(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_file(path, std::uint64_t{1} << 30);
  return std::make_shared<SentencePieceTokenizer>(
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path.string());
}

#else

TokenizerPtr open_sentencepiece(const std::filesystem::path& path) {
  fail(path.string(),
       ": SentencePiece models need a program built with libsentencepiece (Debian: libsentencepiece-dev)");
}

#endif

bool has_sentencepiece() { return MHLA_HAS_SENTENCEPIECE != 0; }

}  // namespace mhla
