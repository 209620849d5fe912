// Text for language models: documents of a file or a folder, in a fixed order, or a text that has a name.
//   FILE.jsonl   one document a line, its field "text"; FILE.json too, where it is named
//   FILE         one document
//   FOLDER       its .txt, .md and .jsonl files at any depth, in the order of their paths
//   sample       a novel that comes with mhla (sample/README.md), one document
//   default      the Collaborative International Dictionary of English, Debian's dict-gcide (GPL-2+), as plain text
// Any bytes are text; what is no UTF-8 is counted, and the tokenizer's to encode or to refuse.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

// Of the bytes of all files in their order, wherever they lie.
struct CorpusPrint {
  std::int64_t files = 0, bytes = 0;
  std::uint32_t checksum = 0;
  friend bool operator==(const CorpusPrint&, const CorpusPrint&) = default;
};

struct CorpusCounts {
  std::int64_t documents = 0, bytes = 0;
  std::vector<std::string> empty;     // "file" or "file: line 3", left out
  std::vector<std::string> broken;    // documents that are no UTF-8, or have zero bytes as other encodings do
  std::vector<std::string> not_read;  // files of a folder, by their ending
  CorpusPrint print;
};

// The file or folder that `data` names: itself, or where the text of sample or default is, or would be.
std::string corpus_path(const std::string& data);

// Gives every document that is not empty to `take`, with its name. None at all is an Error.
CorpusCounts read_corpus(const std::string& data,
                         const std::function<void(const std::string& name, std::string_view text)>& take);

std::optional<CorpusPrint> corpus_print(const std::string& data);  // none where the data is not there

// The dictionary as dict-gcide has it, to plain text: lines joined to paragraphs, marks of source, syllables and
// pronunciation gone, letters written ['e] or [ae] as letters. Entries follow each other until a document has 4 KB.
void split_dictionary(std::string_view text, const std::function<void(std::string_view document)>& take);

}  // namespace mhla
