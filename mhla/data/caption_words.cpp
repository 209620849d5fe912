#include "mhla/data/caption_words.h"

#include <algorithm>
#include <sstream>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"

namespace mhla {
namespace {

constexpr const char* kNoCaption = "<empty>";

std::vector<std::string> split_words(const std::string& caption) {
  constexpr const char* kMarks = ".,;:!?";
  std::vector<std::string> words;
  std::istringstream text(caption);
  for (std::string word; text >> word;) {
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::size_t first = word.find_first_not_of(kMarks);
    if (first != std::string::npos) words.push_back(word.substr(first, word.find_last_not_of(kMarks) + 1 - first));
  }
  return words;
}

}  // namespace

CaptionWords::CaptionWords(std::vector<std::string> words) : words_(std::move(words)) {
  if (words_.empty() || words_[0] != kNoCaption)
    fail("words: begin with '", words_.empty() ? "" : words_[0], "', expected ", kNoCaption);
  for (std::size_t i = 0; i < words_.size(); ++i)
    if (!numbers_.emplace(words_[i], static_cast<std::int64_t>(i) + 1).second)
      fail("words: '", words_[i], "' is there twice");
}

CaptionWords CaptionWords::of(const std::vector<std::string>& captions) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& caption : captions)
    for (const std::string& word : split_words(caption)) ++counts[word];
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [word, count] : counts)
    if (word != kNoCaption) order.emplace_back(-count, word);
  std::sort(order.begin(), order.end());
  std::vector<std::string> words{kNoCaption};
  for (auto& [count, word] : order) words.push_back(std::move(word));
  return CaptionWords(std::move(words));
}

void CaptionWords::encode(const std::string& caption, std::int64_t tokens, std::int64_t* out) const {
  const std::vector<std::string> words = split_words(caption);
  if (static_cast<std::int64_t>(words.size()) > tokens)
    fail("caption '", caption, "' has ", words.size(), " words, expected at most ", tokens);
  std::fill(out, out + tokens, kPadding);
  if (words.empty()) out[0] = kEmpty;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto found = numbers_.find(words[i]);
    if (found == numbers_.end())
      fail("caption '", caption, "': the model has no word '", words[i], "', expected one of its ", words_.size() - 1,
           " words (", kWordsFile, ")");
    out[i] = found->second;
  }
}

CaptionWords CaptionWords::read(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kWordsFile;
  const JsonValue list = read_json(file);
  return labelled(file.string(), [&] {
    std::vector<std::string> words;
    for (const JsonValue& word : list.items()) words.push_back(word.as_string());
    return CaptionWords(std::move(words));
  });
}

void CaptionWords::write(const std::filesystem::path& folder) const {
  JsonValue list = JsonValue::array();
  for (const std::string& word : words_) list.push(word);
  write_file(folder / kWordsFile, write_json(list) + "\n");
}

}  // namespace mhla
