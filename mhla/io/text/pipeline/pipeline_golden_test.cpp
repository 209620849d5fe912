// Files of the kinds that other projects publish, with what Hugging Face's tokenizers makes of texts: the same ids, the
// same text back. Written by scripts/tokenizer_check.py --golden.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/io/json.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(MHLA_SOURCE_DIR) / "mhla/io/text/pipeline/golden";

std::vector<std::uint32_t> ids_of(const JsonValue& list) {
  std::vector<std::uint32_t> ids;
  for (const JsonValue& id : list.items()) ids.push_back(static_cast<std::uint32_t>(id.as_uint()));
  return ids;
}

bool needs_libraries(const std::string& name) {
  return name != "llama" && name != "gemma" && name != "mistral" && name != "metaspace";
}

TEST(PipelineGolden, IdsAndTextAreThoseOfTokenizers) {
  int files = 0, texts = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name.find('.') != std::string::npos) continue;
    if (needs_libraries(name) && !(has_pcre2() && has_icu())) continue;  // pipeline_test holds how they are refused
    const TokenizerPtr tokenizer = open_tokenizer(entry.path());
    ++files;
    const JsonValue expected = read_json(kFolder / (name + ".expected.json"));
    for (const JsonValue& row : expected.at("texts").items()) {
      const std::string& text = row.at("text").as_string();
      for (const bool parsed : {false, true}) {
        const std::string key = parsed ? "parsed" : "plain";
        const std::vector<std::uint32_t> want = ids_of(row.at(key));
        ASSERT_EQ(tokenizer->encode(text, parsed ? SpecialText::kParse : SpecialText::kPlain), want)
            << name << " " << key << " " << text;
        if (is_utf8(tokenizer->decode(want))) {
          ASSERT_EQ(tokenizer->decode(want), row.at(key + "_text").as_string()) << name << " " << text;
        }
        ++texts;
      }
    }
  }
  EXPECT_GE(files, has_pcre2() && has_icu() ? 10 : 4);
  EXPECT_GE(texts, 100 * files);
}

}  // namespace
}  // namespace mhla
