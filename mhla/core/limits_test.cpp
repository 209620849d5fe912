// The table of limits, and docs/limits.md, which shows it.
#include "mhla/core/limits.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(Limits, AreNamedWhereTheyArePassed) {
  expect_within("config", "layers", std::int64_t{4096}, limits::kLayers);
  EXPECT_EQ(message_of([] { expect_within("config", "layers", std::int64_t{4097}, limits::kLayers); }),
            "config: layers is 4097, expected 1 to 4096");
  EXPECT_EQ(message_of([] { expect_within("config", "kv_heads", std::int64_t{-1}, limits::kHeads, 0); }),
            "config: kv_heads is -1, expected 0 to 4096");
}

TEST(Limits, TheDocumentHasTheSameNumbers) {
  std::ifstream file(std::string(MHLA_SOURCE_DIR) + "/docs/limits.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  for (const Limit& limit : limits::kAll) {
    const std::string row = str("| ", limit.name, " | ", limit.least, " | ", limit.most, " | ", limit.what, " |\n");
    EXPECT_TRUE(has(text, row)) << row;
  }
}

}  // namespace
}  // namespace mhla
