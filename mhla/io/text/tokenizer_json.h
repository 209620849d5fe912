// tokenizer.json, as Hugging Face's tokenizers write it. Byte-level BPE without a normaliser, cut by a known pattern,
// is a BpeTable; what else BPE models come with is a pipeline of steps (pipeline/). Everything in a file that would
// change ids and is not known is refused by name. Private to this room.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "mhla/io/text/bpe.h"
#include "mhla/io/text/pipeline/pipeline_tokenizer.h"

namespace mhla {

BpeTable parse_tokenizer_json(std::string_view text, const std::string& label);  // an Error where it is no such table
std::string write_tokenizer_json(const BpeTable& table);

// A BpeTokenizer where the file allows it: it is several times as fast.
TokenizerPtr parse_tokenizer(std::string text, const std::string& label, const pipeline::RegexLimits& limits = {});
TokenizerPtr read_tokenizer(const std::filesystem::path& path);

}  // namespace mhla
