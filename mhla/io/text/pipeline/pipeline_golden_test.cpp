// Files of the kinds that other projects publish, with what Hugging Face's tokenizers makes of texts: the same ids, the
// same text back. Written by scripts/tokenizer_check.py --golden.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/core/error.h"
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

// None where the file needs a library that this build does not have; pipeline_test checks how it is refused.
TokenizerPtr open_if_built(const fs::path& path) {
  try {
    return open_tokenizer(path);
  } catch (const Error& error) {
    if (has_pcre2() && has_icu()) throw;
    EXPECT_NE(std::string(error.what()).find("which this build does not have"), std::string::npos) << error.what();
    return nullptr;
  }
}

TEST(PipelineGolden, IdsAndTextAreThoseOfTokenizers) {
  int files = 0, texts = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || name.find('.') != std::string::npos) continue;
    const TokenizerPtr tokenizer = open_if_built(entry.path());
    if (!tokenizer) continue;
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
  EXPECT_GE(files, has_pcre2() && has_icu() ? 10 : 1);
  EXPECT_GE(texts, 100 * files);
}

}  // namespace
}  // namespace mhla
