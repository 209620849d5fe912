// The tokenizer of a language model: a file beside its weights, tokenizer.json or tokenizer.model, and
// tokenizer.fingerprint, which says which one the model was trained with.
#pragma once

#include <filesystem>
#include <optional>

#include "mhla/io/text/tokenizer.h"

namespace mhla::train {

// Both files into the folder of a run. A tokenizer that is there already stays.
void keep_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& folder);

std::string tokenizer_file(const std::filesystem::path& folder);  // its path, or empty where there is none
// As tokenizer.fingerprint says, or else the file of the tokenizer itself; none where there is neither.
std::optional<std::string> known_fingerprint(const std::filesystem::path& folder);
std::string fingerprint_text(const Tokenizer& tokenizer);  // 16 hexadecimal digits

// An Error where tokenizer.fingerprint names another one. Errors open with `command`.
void expect_same_tokenizer(const std::string& command, const std::filesystem::path& folder, const Tokenizer& tokenizer);
// The tokenizer of a run, which must be the one that its model was trained with and have no more tokens than `vocab`.
TokenizerPtr run_tokenizer(const std::string& command, const std::filesystem::path& folder, std::int64_t vocab);

}  // namespace mhla::train
