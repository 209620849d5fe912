// What a tokenizer.json puts around a text: the tokens of its post_processor. Private to this room.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/io/json.h"

namespace mhla {

struct AroundText {
  std::vector<std::uint32_t> opening, closing;
};

// ByteLevel (which moves offsets alone), TemplateProcessing, BertProcessing, RobertaProcessing, and one of these in a
// Sequence. What they do with a pair of texts is not asked for here. Tokens are below `vocab`.
AroundText read_post_processor(const JsonValue& value, std::size_t vocab);

}  // namespace mhla
