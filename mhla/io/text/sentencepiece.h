// SentencePiece models (.model) through libsentencepiece, where the program was built with it. Such a model normalises
// text, so decoding gives the text as it sees it. What it has for a beginning and an end opens and closes nothing by
// itself but the beginning, which stands before every document. Private to this room.
#pragma once

#include "mhla/io/text/tokenizer.h"

namespace mhla {

TokenizerPtr open_sentencepiece(const std::filesystem::path& path);  // an Error where it was not built in

}  // namespace mhla
