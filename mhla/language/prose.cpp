#include "mhla/language/prose.h"

#include <cmath>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json_lines.h"

namespace mhla {
namespace {

constexpr const char* kSpace = " \t\r\n\f\v";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t next; (next = text.find(from, at)) != std::string::npos; at = next + from.size())
    out.append(text, at, next - at).append(to);
  text = out.append(text, at, std::string::npos);
}

// Spaces just inside a pair of marks go.
void close_up(std::string& text, char open, char close) {
  std::string out;
  std::size_t at = 0;
  for (;;) {
    const std::size_t begin = text.find(open, at);
    const std::size_t end = begin == std::string::npos ? begin : text.find(close, begin + 1);
    if (end == std::string::npos) break;
    out.append(text, at, begin + 1 - at);
    const std::string_view inner = std::string_view(text).substr(begin + 1, end - begin - 1);
    const std::size_t first = inner.find_first_not_of(kSpace);
    if (first != std::string_view::npos) out.append(inner.substr(first, inner.find_last_not_of(kSpace) + 1 - first));
    out += close;
    at = end + 1;
  }
  text = out.append(text, at, std::string::npos);
}

// Parts between spaces, counted as the published word perplexities count them: an end that is a space has one more.
double count_words(std::string_view page) {
  double words = 1;
  for (std::size_t i = 0; i < page.size(); ++i)
    if (std::string_view(kSpace).find(page[i]) != std::string_view::npos &&
        (i == 0 || std::string_view(kSpace).find(page[i - 1]) == std::string_view::npos))
      ++words;
  return words;
}

std::string read_text(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_json_lines(const std::string& path) {
  const std::filesystem::path end = std::filesystem::path(path).extension();
  return end == ".jsonl" || end == ".json";
}

void read_field(const std::string& path, const char* field, const std::function<void(const std::string&)>& take) {
  read_json_lines(read_text(path), path, [&](const std::string& name, const JsonValue& row) {
    const JsonValue* value = row.is_object() ? row.find(field) : nullptr;
    if (value == nullptr || !value->is_string()) fail(name, ": expected an object with a string \"", field, "\"");
    try {
      take(value->as_string());
    } catch (const Error& error) {
      fail(name, ": ", error.what());
    }
  });
}

}  // namespace

LastWordItem last_word_item(const std::string& text) {
  const std::size_t end = text.find_last_not_of(kSpace);
  const std::size_t space = end == std::string::npos ? end : text.find_last_of(' ', end);
  if (space == std::string::npos) fail("the text has one word, expected more");
  return {text.substr(0, space), text.substr(space, end + 1 - space)};
}

std::vector<LastWordItem> read_last_words(const std::string& path, std::int64_t limit) {
  std::vector<LastWordItem> items;
  read_field(path, "text", [&](const std::string& text) {
    if (limit == 0 || static_cast<std::int64_t>(items.size()) < limit) items.push_back(last_word_item(text));
  });
  if (items.empty()) fail("task: ", path, " has no items");
  return items;
}

TaskResult run_last_words(const std::string& task, std::span<const LastWordItem> items, TextModel& model) {
  std::vector<TextRequest> requests;
  for (const LastWordItem& item : items) requests.push_back(text_request(model.tokenizer(), item.context, item.word));
  std::vector<double> right, likelihood;
  for (const TextScore& score : model.score(requests)) {
    right.push_back(score.greedy ? 1.0 : 0.0);
    likelihood.push_back(score.log_likelihood);
  }
  const Figure mean = mean_figure("", likelihood);
  const double perplexity = std::exp(-mean.value);
  return {task,
          static_cast<std::int64_t>(items.size()),
          {mean_figure("acc", right), {"perplexity", perplexity, perplexity * mean.error}}};
}

std::string detokenize_wikitext(std::string text) {
  replace_all(text, "s '", "s'");
  for (const std::string mark : {"-", ",", "."}) replace_all(text, " @" + mark + "@ ", mark);
  for (const std::string mark : {":", ";", ".", "!", "?", ","}) replace_all(text, " " + mark + " ", mark + " ");
  close_up(text, '(', ')');
  close_up(text, '[', ']');
  close_up(text, '{', '}');
  close_up(text, '"', '"');
  close_up(text, '\'', '\'');
  replace_all(text, "= = = =", "====");
  replace_all(text, "= = =", "===");
  replace_all(text, "= =", "==");
  replace_all(text, " \xc2\xb0 ", "\xc2\xb0");
  replace_all(text, " \n", "\n");
  replace_all(text, "\n ", "\n");
  replace_all(text, " N ", " 1 ");
  replace_all(text, " 's", "'s");
  return text;
}

std::vector<std::string> read_pages(const std::string& path, std::int64_t limit) {
  std::vector<std::string> pages;
  const auto full = [&] { return limit > 0 && static_cast<std::int64_t>(pages.size()) >= limit; };
  if (is_json_lines(path)) {
    read_field(path, "page", [&](const std::string& page) {
      if (!full() && page.find_first_not_of(kSpace) != std::string::npos) pages.push_back(page);
    });
  } else {
    const std::string text = read_text(path);
    for (std::size_t at = 0; at < text.size() && !full();) {
      std::size_t next = at;
      do {  // a title has one = on either side, a section has more
        next = text.find("\n = ", next + 1);
      } while (next != std::string::npos && text.compare(next + 4, 2, "= ") == 0);
      const std::size_t end = next == std::string::npos ? text.size() : next + 1;
      if (text.find_first_not_of(kSpace, at) < end) pages.push_back(text.substr(at, end - at));
      at = end;
    }
  }
  if (pages.empty()) fail("task: ", path, " has no pages");
  return pages;
}

TaskResult run_pages(const std::string& task, std::span<const std::string> pages, TextModel& model) {
  std::vector<TextRequest> requests;
  double words = 0, bytes = 0, likelihood = 0;
  for (const std::string& page : pages) {
    requests.push_back({{}, model.tokenizer().encode(detokenize_wikitext(page)), /*windows=*/true});
    words += count_words(page);
    bytes += static_cast<double>(page.size());
  }
  for (const TextScore& score : model.score(requests)) likelihood += score.log_likelihood;
  return {task,
          static_cast<std::int64_t>(pages.size()),
          {{"word_perplexity", std::exp(-likelihood / words)},
           {"byte_perplexity", std::exp(-likelihood / bytes)},
           {"bits_per_byte", -likelihood / bytes / std::log(2.0)}}};
}

}  // namespace mhla
