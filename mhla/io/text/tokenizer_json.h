// tokenizer.json, as Hugging Face's tokenizers write it, of the byte-level BPE kind. Read is what this library does the
// same way; everything else in a file that would change ids is refused by name. Private to this room.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "mhla/io/text/bpe.h"

namespace mhla {

BpeTable parse_tokenizer_json(std::string_view text, const std::string& label);
BpeTable read_tokenizer_json(const std::filesystem::path& path);
std::string write_tokenizer_json(const BpeTable& table);

}  // namespace mhla
