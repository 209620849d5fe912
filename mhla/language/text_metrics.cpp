#include "mhla/language/text_metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace mhla {
namespace {

using Words = std::vector<std::string>;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

Words words_of(std::string_view text) {
  Words words;
  for (std::size_t at = 0; at < text.size();) {
    while (at < text.size() && is_space(text[at])) ++at;
    const std::size_t begin = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    if (at > begin) words.emplace_back(text.substr(begin, at - begin));
  }
  return words;
}

Words plain_words(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 128 && std::ispunct(byte) != 0) continue;
    plain += byte < 128 ? static_cast<char>(std::tolower(byte)) : c;
  }
  Words words = words_of(plain);
  words.erase(std::remove_if(words.begin(), words.end(),
                             [](const std::string& word) { return word == "a" || word == "an" || word == "the"; }),
              words.end());
  return words;
}

double f1(double common, double answer, double expected) {
  return common == 0.0 ? 0.0 : 2.0 * common / (answer + expected);
}

// Lengths of the longest common subsequences of all beginnings: [x + 1][y + 1].
template <class Items>
std::vector<std::vector<std::int32_t>> common_lengths(const Items& x, const Items& y) {
  std::vector<std::vector<std::int32_t>> table(x.size() + 1, std::vector<std::int32_t>(y.size() + 1));
  for (std::size_t i = 1; i <= x.size(); ++i)
    for (std::size_t j = 1; j <= y.size(); ++j)
      table[i][j] = x[i - 1] == y[j - 1] ? table[i - 1][j - 1] + 1 : std::max(table[i - 1][j], table[i][j - 1]);
  return table;
}

// Words on the longest common subsequence; of equal ones that which the published program finds.
void add_common(const Words& expected, const Words& answer, std::set<std::string>& common) {
  const auto table = common_lengths(expected, answer);
  std::size_t i = expected.size(), j = answer.size();
  while (i > 0 && j > 0) {
    if (expected[i - 1] == answer[j - 1]) {
      common.insert(expected[i - 1]);
      --i, --j;
    } else if (table[i - 1][j] > table[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

std::vector<Words> sentences_of(std::string_view text) {
  std::vector<Words> sentences;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('.', at), text.size());
    Words words = words_of(text.substr(at, end - at));
    if (words.empty() && end > at) words.emplace_back();  // spaces alone are a word, as published
    if (!words.empty()) sentences.push_back(std::move(words));
    at = end + 1;
  }
  return sentences;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::vector<std::u32string::value_type> characters_of(std::string_view text) {  // code points; broken bytes one each
  std::vector<char32_t> out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80 && !out.empty())
      out.back() = (out.back() << 6) | (byte & 0x3f);
    else
      out.push_back(byte);
  }
  return out;
}

}  // namespace

double word_f1(std::string_view answer, std::string_view expected) {
  std::map<std::string, int> left;
  const Words a = plain_words(answer), b = plain_words(expected);
  for (const std::string& word : b) ++left[word];
  double common = 0;
  for (const std::string& word : a)
    if (auto found = left.find(word); found != left.end() && found->second > 0) --found->second, ++common;
  return f1(common, static_cast<double>(a.size()), static_cast<double>(b.size()));
}

double rouge_l(std::string_view answer, std::string_view expected) {
  const std::vector<Words> a = sentences_of(answer), b = sentences_of(expected);
  std::set<std::string> common, answered, wanted;
  for (const Words& words : a) answered.insert(words.begin(), words.end());
  for (const Words& words : b) wanted.insert(words.begin(), words.end());
  for (const Words& reference : b)
    for (const Words& sentence : a) add_common(reference, sentence, common);
  return f1(static_cast<double>(common.size()), static_cast<double>(answered.size()),
            static_cast<double>(wanted.size()));
}

double retrieved(std::string_view answer, std::string_view expected, std::string_view mark) {
  const std::size_t at = expected.find(mark);
  if (at == std::string_view::npos) return 0.0;
  std::string_view number = expected.substr(at + mark.size());
  number = number.substr(
      0, static_cast<std::size_t>(std::find_if_not(number.begin(), number.end(), is_digit) - number.begin()));
  double found = 0, all = 0;
  for (std::size_t i = 0; i < answer.size();) {
    const std::size_t begin = i;
    while (i < answer.size() && is_digit(answer[i])) ++i;
    if (i > begin) {
      ++all;
      if (answer.substr(begin, i - begin) == number) ++found;
    } else {
      ++i;
    }
  }
  return all == 0.0 ? 0.0 : found / all;
}

double edit_similarity(std::string_view answer, std::string_view expected) {
  const auto a = characters_of(answer), b = characters_of(expected);
  if (a.empty() || b.empty()) return 0.0;
  std::vector<std::int32_t> row(b.size() + 1), above;
  for (const char32_t c : a) {
    above = row;
    for (std::size_t j = 1; j <= b.size(); ++j)
      row[j] = c == b[j - 1] ? above[j - 1] + 1 : std::max(above[j], row[j - 1]);
  }
  const double ratio = 2.0 * row.back() / static_cast<double>(a.size() + b.size());
  return std::nearbyint(100.0 * ratio) / 100.0;
}

double code_similarity(std::string_view answer, std::string_view expected) {
  while (!answer.empty() && answer.front() == '\n') answer.remove_prefix(1);
  while (!answer.empty()) {
    const std::string_view line = answer.substr(0, answer.find('\n'));
    if (line.find('`') == line.npos && line.find('#') == line.npos && line.find("//") == line.npos)
      return edit_similarity(line, expected);
    answer.remove_prefix(std::min(line.size() + 1, answer.size()));
  }
  return 0.0;
}

}  // namespace mhla
