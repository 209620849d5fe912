#include "mhla/language/captions_recorded.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/fields.h"
#include "mhla/io/text/sentencepiece.h"

namespace mhla {
namespace {

std::vector<std::string> texts_of(const RecordedArraysCase& c, const char* key) {
  std::vector<std::string> texts;
  if (!c.config.contains(key)) fail("metadata '", key, "' is missing");
  labelled(str("metadata '", key, "'"), [&] { fields::from_json(c.config.at(key), texts); });
  return texts;
}

// umT5's captions, cut to a length: the texts come cleaned, since ftfy repairs encodings that we leave alone.
RecordedArrays umt5_tokenizer(const RecordedArraysCase& c) {
  c.expect_keys({"max_length", "pad_id", "eos_id", "bos_id", "unk_id", "texts", "cleaned", "pieces"});
  const RecordedArray& bytes = c.array("in.model", 1, "[bytes]");
  const TokenizerPtr tokenizer = sentencepiece_tokenizer({bytes.values.begin(), bytes.values.end()}, "in.model");
  const auto length = static_cast<std::size_t>(c.integer("max_length"));
  const double pad = c.number("pad_id", 0), end = c.number("eos_id", 1);
  if (length > 65536) fail("metadata 'max_length' is ", length, ", expected at most 65536");
  RecordedArray ids, mask;
  std::int64_t rows = 0;
  for (const std::string& text : texts_of(c, "cleaned")) {
    const std::vector<std::uint32_t> words = tokenizer->encode(text);
    const std::size_t kept = std::min(words.size(), length - 1);
    ids.values.insert(ids.values.end(), words.begin(), words.begin() + static_cast<std::ptrdiff_t>(kept));
    ids.values.push_back(end);
    mask.values.insert(mask.values.end(), kept + 1, 1.0);
    ids.values.resize(static_cast<std::size_t>(++rows) * length, pad);
    mask.values.resize(ids.values.size(), 0.0);
  }
  ids.shape = mask.shape = {rows, static_cast<std::int64_t>(length)};
  return {{"out.ids", ids}, {"out.mask", mask}};
}

}  // namespace

RecordedArraysFamilies captions_recorded() { return {{"t5_tokenizer", umt5_tokenizer}}; }

}  // namespace mhla
