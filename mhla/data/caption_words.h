// Captions as numbers of words, for models that learn a vector for every word instead of asking a text encoder. A word
// is what stands between white space, in small letters, without . , ; : ! ? at its ends. Number 0 is padding, 1 the
// empty caption.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mhla {

inline constexpr const char* kWordsFile = "words.json";  // beside a model: the words by number, from 1 on

class CaptionWords {
 public:
  static constexpr std::int64_t kPadding = 0, kEmpty = 1;

  explicit CaptionWords(std::vector<std::string> words);  // the first is that of the empty caption
  // The words of captions, the most frequent first.
  static CaptionWords of(const std::vector<std::string>& captions);

  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(words_.size()) + 1; }  // of a table
  // `tokens` numbers. A caption that is longer, or a word that is not known, is an Error that says so.
  void encode(const std::string& caption, std::int64_t tokens, std::int64_t* out) const;

  static CaptionWords read(const std::filesystem::path& folder);
  void write(const std::filesystem::path& folder) const;
  bool operator==(const CaptionWords& other) const { return words_ == other.words_; }

 private:
  std::vector<std::string> words_;
  std::map<std::string, std::int64_t> numbers_;
};

}  // namespace mhla
