// SentencePiece models (.model), where libmhla_sentencepiece.so was built: beside the program, in ../lib, or what
// MHLA_SENTENCEPIECE points to. Such a model normalises text, so decoding gives the text as it sees it. Its token for a
// beginning stands before every document. open_tokenizer() opens such files, too.
#pragma once

#include "mhla/io/text/tokenizer.h"

namespace mhla {

TokenizerPtr sentencepiece_tokenizer(std::string model, const std::string& label);  // the bytes of a .model
TokenizerPtr open_sentencepiece(const std::filesystem::path& path);                 // an Error where it was not built

}  // namespace mhla
