#include "mhla/train/lm/run_tokenizer.h"

#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFingerprint = "tokenizer.fingerprint";

std::string written_fingerprint(const fs::path& folder) {  // or empty
  if (!fs::exists(folder / kFingerprint)) return {};
  const std::vector<std::byte> bytes = read_file(folder / kFingerprint, 64);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()).substr(0, 16);
}

}  // namespace

std::string fingerprint_text(const Tokenizer& tokenizer) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(tokenizer.fingerprint()));
  return text;
}

std::string tokenizer_file(const fs::path& folder) {
  if (folder.empty()) return {};
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) return (folder / name).string();
  }
  return {};
}

std::optional<std::string> known_fingerprint(const fs::path& folder) {
  if (std::string known = written_fingerprint(folder); !known.empty()) return known;
  const std::string file = tokenizer_file(folder);
  return file.empty() ? std::nullopt : std::optional(fingerprint_text(*open_tokenizer(file)));
}

void keep_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  const fs::path file = folder / tokenizer.file_name();
  if (!fs::exists(file)) tokenizer.save(file);
  write_file(folder / kFingerprint, fingerprint_text(tokenizer) + "\n");
}

void expect_same_tokenizer(const std::string& command, const fs::path& folder, const Tokenizer& tokenizer) {
  const std::string known = written_fingerprint(folder), now = fingerprint_text(tokenizer);
  if (!known.empty() && known != now)
    fail(command, ": the data has tokens of another tokenizer (", now, ") than ", folder.string(),
         " was trained with (", known, ")");
}

TokenizerPtr run_tokenizer(const std::string& command, const fs::path& folder, std::int64_t vocab) {
  std::string file = tokenizer_file(folder);
  if (file.empty()) file = (folder / "tokenizer.json").string();  // which is then named as missing
  TokenizerPtr tokenizer = open_tokenizer(file);
  if (const std::string known = written_fingerprint(folder), now = fingerprint_text(*tokenizer);
      !known.empty() && known != now)
    fail(command, ": ", file, " is another tokenizer (", now, ") than the one the model was trained with (", known,
         ")");
  if (tokenizer->vocab_size() > vocab)
    fail(command, ": ", file, " has ", tokenizer->vocab_size(), " tokens, expected at most the ", vocab,
         " of the model");
  return tokenizer;
}

}  // namespace mhla::train
