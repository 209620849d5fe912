#include "mhla/io/text/sentencepiece.h"

#include <dlfcn.h>

#include <cstdlib>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/text/fingerprint.h"
#include "mhla/io/text/sentencepiece_interface.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libmhla_sentencepiece.so";
// A field of the model behind all others, which is merged into them: normalizer_spec { add_dummy_prefix: false }.
constexpr std::string_view kNoDummyPrefix{"\x1a\x02\x18\x00", 4};
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 stands for a space

fs::path find_library() {
  std::error_code none;
  if (const char* chosen = std::getenv("MHLA_SENTENCEPIECE"); chosen != nullptr && *chosen != 0) return chosen;
  const fs::path here = fs::read_symlink("/proc/self/exe", none).parent_path();
  for (const fs::path& place : {here / kLibrary, here / ".." / "lib" / kLibrary})
    if (fs::exists(place, none)) return place;
  return {};
}

struct Library {
  decltype(&mhla_sentencepiece_open) open = nullptr;
  decltype(&mhla_sentencepiece_close) close = nullptr;
  decltype(&mhla_sentencepiece_size) size = nullptr;
  decltype(&mhla_sentencepiece_begin) begin = nullptr;
  decltype(&mhla_sentencepiece_piece) piece = nullptr;
  decltype(&mhla_sentencepiece_encode) encode = nullptr;
};

Library load(const std::string& label) {
  const fs::path path = find_library();
  if (path.empty())
    fail(label, ": SentencePiece models need ", kLibrary,
         ", which is built where libsentencepiece is (Debian: libsentencepiece-dev)");
  // RTLD_DEEPBIND: its protobuf is its own, whatever LibTorch has loaded.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) fail(path.string(), " could not be opened: ", dlerror());
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) fail(path.string(), " lacks ", name);
  };
  decltype(&mhla_sentencepiece_interface) interface = nullptr;
  find(interface, "mhla_sentencepiece_interface");
  if (interface() != MHLA_SENTENCEPIECE_INTERFACE)
    fail(path.string(), " speaks interface ", interface(), ", expected ", MHLA_SENTENCEPIECE_INTERFACE);
  Library functions;
  find(functions.open, "mhla_sentencepiece_open");
  find(functions.close, "mhla_sentencepiece_close");
  find(functions.size, "mhla_sentencepiece_size");
  find(functions.begin, "mhla_sentencepiece_begin");
  find(functions.piece, "mhla_sentencepiece_piece");
  find(functions.encode, "mhla_sentencepiece_encode");
  return functions;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, const std::string& label)
      : library_(load(label)), bytes_(std::move(bytes)) {
    model_ = open_model(bytes_, label);
    Fingerprint print;
    print.add("mhla sentencepiece 1");
    print.add(bytes_);
    fingerprint_ = print.value();
    for (int id = 0; id < library_.size(model_.get()); ++id) texts_.push_back(text_of(id));
    if (const int id = library_.begin(model_.get()); id >= 0) opening_.push_back(static_cast<std::uint32_t>(id));
    const std::vector<std::uint32_t> ids = encode("a");
    adds_space_ = !ids.empty() && texts_[ids[0]].substr(0, 1) == " ";
    strips_space_ = encode(" a") == ids;
    if (adds_space_) maybe_bare_ = open_model(bytes_ + std::string(kNoDummyPrefix), label);
  }
  [[nodiscard]] std::string kind() const override { return "sentencepiece"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(texts_.size()); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] const std::vector<SpecialToken>& specials() const override { return specials_; }
  [[nodiscard]] const std::vector<std::uint32_t>& opening() const override { return opening_; }
  [[nodiscard]] const std::vector<std::uint32_t>& closing() const override { return closing_; }
  [[nodiscard]] std::unique_ptr<Encoder> encoder(SpecialText /*special*/) const override;  // never from text
  void save(const fs::path& path) const override { write_file(path, bytes_); }
  [[nodiscard]] std::string file_name() const override { return "tokenizer.model"; }
  [[nodiscard]] std::string_view token_text(std::int64_t id) const override {
    if (id < 0 || id >= vocab_size()) fail("tokenizer: id ", id, " is out of range, expected 0 to ", vocab_size() - 1);
    return texts_[static_cast<std::size_t>(id)];
  }
  // Without the space that encoding puts before a text.
  [[nodiscard]] std::string decode(std::span<const std::uint32_t> ids) const override {
    std::size_t first = 0;
    while (first < ids.size() && is_special(ids[first])) ++first;
    std::string text, before;
    for (std::size_t i = 0; i < ids.size(); ++i) (i < first ? before : text) += token_text(ids[i]);
    if (adds_space_ && text.substr(0, 1) == " ") text.erase(0, 1);
    return before + text;
  }
  // Where spaces before a text are stripped, the one that is always put there stands for them.
  [[nodiscard]] std::vector<std::uint32_t> encode_more(std::string_view text) const override {
    const bool spaced = strips_space_ && !text.empty() && text[0] == ' ';
    std::vector<std::uint32_t> ids;
    encode_with(adds_space_ && !spaced ? maybe_bare_ : model_, text, ids);
    return ids;
  }
  void encode_into(std::string_view text, std::vector<std::uint32_t>& ids) const { encode_with(model_, text, ids); }

 private:
  using Model = std::shared_ptr<void>;
  [[nodiscard]] Model open_model(const std::string& bytes, const std::string& label) const {
    char reason[512] = {};
    void* model = library_.open(bytes.data(), bytes.size(), reason, sizeof reason);
    if (model == nullptr) fail(label, ": is no SentencePiece model (", reason, ")");
    return {model, library_.close};
  }
  void encode_with(const Model& model, std::string_view text, std::vector<std::uint32_t>& ids) const {
    if (const std::size_t good = utf8_prefix(text); good < text.size())  // libsentencepiece would drop or change it
      fail("sentencepiece: byte ", good, " of the text is no UTF-8, expected text, or a tokenizer of bytes");
    char reason[512] = {};
    const auto take = [](void* context, const int* found, std::size_t count) {
      auto& to = *static_cast<std::vector<std::uint32_t>*>(context);
      to.insert(to.end(), found, found + count);
    };
    if (library_.encode(model.get(), text.data(), text.size(), take, &ids, reason, sizeof reason) != 0)
      fail("sentencepiece: ", reason);
  }
  [[nodiscard]] bool is_special(std::uint32_t id) const {
    for (const SpecialToken& token : specials_)
      if (token.id == id) return true;
    return false;
  }
  std::string text_of(int id) {
    std::size_t size = 0;
    int kind = MHLA_PIECE_TEXT;
    const char* data = library_.piece(model_.get(), id, &size, &kind);
    const std::string piece(data, size);
    if (kind == MHLA_PIECE_SPECIAL) specials_.push_back({static_cast<std::uint32_t>(id), piece});
    if (kind == MHLA_PIECE_BYTE)  // <0x41>
      return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
    if (kind != MHLA_PIECE_TEXT) return piece;
    std::string text;
    for (std::size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      text += space ? ' ' : piece[at];
      at += space ? kSpaceMark.size() : 1;
    }
    return text;
  }
  Library library_;
  std::string bytes_;
  Model model_, maybe_bare_;  // the same without a space before a text, where it has one
  std::vector<std::string> texts_;
  std::vector<SpecialToken> specials_;
  std::vector<std::uint32_t> opening_, closing_;
  std::uint64_t fingerprint_ = 0;
  bool adds_space_ = false, strips_space_ = false;
};

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) override { tokenizer_.encode_into(text, ids); }

 private:
  const SentencePieceTokenizer& tokenizer_;
};

std::unique_ptr<Encoder> SentencePieceTokenizer::encoder(SpecialText /*special*/) const {
  return std::make_unique<SentencePieceEncoder>(*this);
}

}  // namespace

TokenizerPtr sentencepiece_tokenizer(std::string model, const std::string& label) {
  return std::make_shared<SentencePieceTokenizer>(std::move(model), label);
}

TokenizerPtr open_sentencepiece(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path, std::uint64_t{1} << 30);
  return sentencepiece_tokenizer(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path.string());
}

bool has_sentencepiece() { return !find_library().empty(); }

}  // namespace mhla
