// Tokenizers of other projects: a tokenizer.json of any BPE that byte-level BPE without a normaliser (bpe.h) is not.
//   text -> added tokens -> normaliser -> added tokens -> pre-tokenizer -> BPE of each piece -> ids, and a decoder back
// It does what Hugging Face's tokenizers do with the file, or refuses it by name. Text has to be UTF-8; what a
// normaliser changes does not come back. Private to this room.
#pragma once

#include <string>

#include "mhla/io/text/pipeline/regex.h"
#include "mhla/io/text/tokenizer.h"

namespace mhla {

// `text` is the file, which save() writes again.
TokenizerPtr make_pipeline_tokenizer(std::string text, const std::string& label,
                                     const pipeline::RegexLimits& limits = {});

}  // namespace mhla
