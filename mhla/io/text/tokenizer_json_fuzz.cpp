// Any text is either refused with an Error, or a tokenizer. A table is the same after writing and reading, and gives
// back the bytes it encodes; a pipeline is the same after saving, gives ids of its vocabulary, and decodes them.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/text/tokenizer_json.h"

namespace {

using namespace mhla;

void check_table(const BpeTokenizer& tokenizer, std::string_view text) {
  const BpeTokenizer again(parse_tokenizer_json(write_tokenizer_json(tokenizer.table()), "written"), "written");
  if (again.fingerprint() != tokenizer.fingerprint()) std::abort();
  const std::string back = tokenizer.decode(tokenizer.encode(text));
  const bool prefixed = tokenizer.table().add_prefix_space;
  if (prefixed ? back.size() < text.size() : back != text) std::abort();
  if (!prefixed && tokenizer.decode(tokenizer.encode(text, SpecialText::kParse)) != text) std::abort();
}

void check_pipeline(const Tokenizer& tokenizer, std::string_view text) {
  for (const SpecialText special : {SpecialText::kPlain, SpecialText::kParse}) {
    const std::vector<std::uint32_t> ids = tokenizer.encode(text, special);
    for (const std::uint32_t id : ids)
      if (id >= tokenizer.vocab_size()) std::abort();
    (void)tokenizer.decode(ids);
    for (std::size_t i = 1; i < ids.size() && i < 100; ++i) (void)tokenizer.text_after(ids[i - 1], ids[i]);
  }
  (void)tokenizer.encode_more(text.substr(0, 100));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  pipeline::RegexLimits limits;  // a tenth of a second: hostile patterns are found all the time
  limits.steps = 20000;
  limits.seconds = 0.1;
  TokenizerPtr tokenizer;
  try {
    tokenizer = parse_tokenizer(text, "fuzz", limits);
  } catch (const Error& error) {
    if (std::strncmp(error.what(), "fuzz", 4) != 0) std::abort();
    return 0;
  }
  if (const auto* table = dynamic_cast<const BpeTokenizer*>(tokenizer.get())) {
    check_table(*table, text);
    return 0;
  }
  try {
    check_pipeline(*tokenizer, text);
  } catch (const Error&) {  // of a limit, or a character that has no token
  }
  return 0;
}
