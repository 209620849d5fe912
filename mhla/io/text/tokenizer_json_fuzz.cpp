// Any text is either refused with an Error, or a tokenizer that is the same after writing and reading, and that gives
// back the bytes it encodes.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mhla;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const BpeTokenizer tokenizer(parse_tokenizer_json(text, "fuzz"), "fuzz");
    const BpeTokenizer again(parse_tokenizer_json(write_tokenizer_json(tokenizer.table()), "written"), "written");
    if (again.fingerprint() != tokenizer.fingerprint()) std::abort();
    const std::string back = tokenizer.decode(tokenizer.encode(text));
    const bool prefixed = tokenizer.table().add_prefix_space;
    if (prefixed ? back.size() < size : back != text) std::abort();
    if (!prefixed && tokenizer.decode(tokenizer.encode(text, SpecialText::kParse)) != text) std::abort();
  } catch (const Error& error) {
    if (std::strncmp(error.what(), "fuzz", 4) != 0) std::abort();
  }
  return 0;
}
