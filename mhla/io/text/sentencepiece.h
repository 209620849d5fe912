// SentencePiece models (.model), where libmhla_sentencepiece.so was built: beside the program, in ../lib, or what
// MHLA_SENTENCEPIECE points to. Such a model normalises text, so decoding gives the text as it sees it. Its token for a
// beginning stands before every document. Private to this room.
#pragma once

#include "mhla/io/text/tokenizer.h"

namespace mhla {

TokenizerPtr open_sentencepiece(const std::filesystem::path& path);  // an Error where it was not built

}  // namespace mhla
