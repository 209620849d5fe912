// tokenizer_probe FILE...: what a tokenizer makes of texts, for scripts/tokenizer_check.py. Reads one JSON text a line
// and writes one line for each and every FILE: the ids with special tokens as text and as tokens, both decoded (bytes,
// as the letters of Latin-1), or the reason of a refusal.
#include <iostream>
#include <string>

#include "mhla/core/error.h"
#include "mhla/io/json.h"
#include "mhla/io/text/tokenizer.h"

namespace {

using namespace mhla;

std::string latin1(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80)
      text += c;
    else
      text += {static_cast<char>(0xc0 | byte >> 6), static_cast<char>(0x80 | (byte & 0x3f))};
  }
  return text;
}

JsonValue answer(const Tokenizer& tokenizer, const std::string& text) {
  JsonValue row = JsonValue::object();
  for (const SpecialText special : {SpecialText::kPlain, SpecialText::kParse}) {
    const std::vector<std::uint32_t> ids = tokenizer.encode(text, special);
    JsonValue::Array list;
    for (const std::uint32_t id : ids) list.emplace_back(id);
    std::string shown;  // as it would grow token by token
    for (std::size_t i = 0; i < ids.size(); ++i)
      shown += i == 0 ? std::string(tokenizer.token_text(ids[0])) : tokenizer.text_after(ids[i - 1], ids[i]);
    const std::string name = special == SpecialText::kPlain ? "plain" : "parsed";
    row.set(name, std::move(list))
        .set(name + "_text", latin1(tokenizer.decode(ids)))
        .set(name + "_shown", latin1(shown));
  }
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<TokenizerPtr> tokenizers;
  std::vector<std::string> refused;
  for (int i = 1; i < argc; ++i) {
    tokenizers.emplace_back();
    refused.emplace_back();
    try {
      tokenizers.back() = open_tokenizer(argv[i]);
    } catch (const Error& error) {
      refused.back() = error.what();
    }
  }
  for (std::string line; std::getline(std::cin, line);) {
    const std::string text = parse_json(line, "stdin").as_string();
    for (std::size_t i = 0; i < tokenizers.size(); ++i) {
      JsonValue row;
      try {
        row = tokenizers[i] != nullptr ? answer(*tokenizers[i], text) : JsonValue().set("refused", refused[i]);
      } catch (const Error& error) {
        row.set("refused", error.what());
      }
      std::cout << write_json(row) << '\n';
    }
  }
  return 0;
}
