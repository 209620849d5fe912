// LAMBADA and WikiText: the likelihood of running text.
#pragma once

#include "mhla/language/text_model.h"

namespace mhla {

// LAMBADA: {"text": ...} a line. The last word behind all the others: acc (it is what greedy decoding says) and ppl.
struct LastWordItem {
  std::string context, word;  // the word opens with its space
};
LastWordItem last_word_item(const std::string& text);
std::vector<LastWordItem> read_last_words(const std::string& path, std::int64_t limit = 0);
TaskResult run_last_words(const std::string& task, std::span<const LastWordItem> items, TextModel& model);

// WikiText: {"page": ...} a line, or the raw file, whose pages open with " = Title = ". Scored as plain text, counted
// in words and bytes of the page as it is in the file: word_perplexity, byte_perplexity, bits_per_byte.
std::vector<std::string> read_pages(const std::string& path, std::int64_t limit = 0);
TaskResult run_pages(const std::string& task, std::span<const std::string> pages, TextModel& model);

// The tokens of WikiText (" @-@ ", " , ", "( a )") as they stood in the text they were taken from.
std::string detokenize_wikitext(std::string text);

}  // namespace mhla
