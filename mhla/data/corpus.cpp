#include "mhla/data/corpus.h"

#include <algorithm>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/data/share.h"
#include "mhla/io/codecs/gzip.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDictionary = "/usr/share/dictd/gcide.dict.dz";
constexpr const char* kSample = "sample/the_hound_of_the_baskervilles.txt";  // of the folder that is installed

using Take = std::function<void(const std::string&, std::string_view)>;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lengths too, so that no byte moves from a file to the next unseen.
void add_file(CorpusPrint& print, std::span<const std::byte> bytes) {
  const std::uint64_t size = bytes.size();
  ++print.files;
  print.bytes += static_cast<std::int64_t>(size);
  print.checksum = crc32c(bytes, crc32c(std::as_bytes(std::span(&size, 1)), print.checksum));
}

class Reader {
 public:
  explicit Reader(const Take& take) : take_(take) {}

  void file(const fs::path& path) {
    const MappedFile mapped(path);
    add_file(counts.print, mapped.bytes());
    const std::string_view text = text_of(mapped.bytes());
    if (path.extension() == ".jsonl")
      lines(path.string(), text);
    else if (path.extension() == ".json")
      json(path.string(), text);
    else
      document(path.string(), text);
  }

  void document(const std::string& name, std::string_view text) {
    if (text.empty()) {
      counts.empty.push_back(name);
      return;
    }
    ++counts.documents;
    counts.bytes += static_cast<std::int64_t>(text.size());
    if (text.find('\0') != std::string_view::npos || !is_utf8(text)) counts.broken.push_back(name);
    take_(name, text);
  }

  CorpusCounts counts;

 private:
  void lines(const std::string& path, std::string_view text) {
    if (text.empty()) counts.empty.push_back(path);
    read_json_lines(text, path, [&](const std::string& name, const JsonValue& json) {
      const JsonValue* field = json.is_object() ? json.find("text") : nullptr;
      if (field == nullptr || !field->is_string()) fail(name, ": no text, expected an object with a string \"text\"");
      document(name, field->as_string());
    });
  }
  void json(const std::string& path, std::string_view text) {
    try {
      lines(path, text);
    } catch (const Error& error) {
      fail("data: ", path, " has no JSON lines (", error.what(),
           "), expected a text file, .jsonl: a line for each document, or a folder of these");
    }
  }
  const Take& take_;
};

bool is_text_file(const fs::path& path) {
  const fs::path end = path.extension();
  return end == ".txt" || end == ".md" || end == ".jsonl";
}

std::vector<fs::path> files_in(const std::string& folder, std::vector<std::string>& not_read) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code none;
    if (!entry->is_regular_file(none)) continue;
    if (is_text_file(entry->path()))
      files.push_back(entry->path());
    else
      not_read.push_back(entry->path().string());
  }
  if (error) fail(folder, ": could not be listed: ", error.message());
  std::sort(not_read.begin(), not_read.end());
  if (files.empty()) fail("data: no .txt, .md or .jsonl file in ", folder);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string corpus_path(const std::string& data) {
  if (data == "default") return kDictionary;
  if (data == "sample") return (share_folder() / kSample).string();
  return data;
}

CorpusCounts read_corpus(const std::string& data, const Take& take) {
  Reader reader(take);
  if (data == "default") {
    if (!is_there(kDictionary))
      fail(
          "data: ", kDictionary,
          " is missing: apt-get install dict-gcide (it brings a dictionary server, dictd), or give --data sample, or a "
          "file or folder of text");
    const auto packed = read_file(kDictionary);
    add_file(reader.counts.print, packed);
    const auto text = gunzip(packed, kDictionary);
    int number = 0;
    split_dictionary(text_of(text),
                     [&](std::string_view document) { reader.document(str("gcide ", number++), document); });
  } else if (data == "sample") {
    if (!is_there(corpus_path(data)))
      fail("data: ", corpus_path(data), " is missing: it comes with mhla; MHLA_SHARE names the folder share/mhla");
    reader.file(corpus_path(data));
  } else if (is_folder(data)) {
    for (const fs::path& file : files_in(data, reader.counts.not_read)) reader.file(file);
  } else if (is_there(data)) {
    reader.file(data);
  } else {
    fail("data: '", data, "' is not there, expected a text file, a .jsonl file, a folder of these, sample or default");
  }
  if (reader.counts.documents == 0)
    fail("data: ", data, " has no text",
         reader.counts.empty.empty() ? "" : ": " + reader.counts.empty[0] + " is empty");
  return reader.counts;
}

std::optional<CorpusPrint> corpus_print(const std::string& data) {
  const std::string place = corpus_path(data);
  if (!is_there(place)) return {};
  CorpusPrint print;
  std::vector<std::string> not_read;
  for (const fs::path& file : is_folder(place) ? files_in(place, not_read) : std::vector<fs::path>{place})
    add_file(print, MappedFile(file).bytes());
  return print;
}

}  // namespace mhla
