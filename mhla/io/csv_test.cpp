#include "mhla/io/csv.h"

#include <gtest/gtest.h>

#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Rows = std::vector<std::vector<std::string>>;

TEST(Csv, CellsAndQuotes) {
  EXPECT_EQ(parse_csv("a,b\n\"c, \"\"d\"\"\",\"e\nf\"\r\n,\n\ng", "f"),
            (Rows{{"a", "b"}, {"c, \"d\"", "e\nf"}, {"", ""}, {"g"}}));
  EXPECT_EQ(parse_csv("", "f"), Rows{});
  EXPECT_EQ(message_of([] { parse_csv("a\n\"b", "f"); }), "f: row 2: a quote is not closed");
  EXPECT_EQ(message_of([] { parse_csv("\"b\"c\n", "f"); }), "f: row 1: text behind a closing quote");
}

}  // namespace
}  // namespace mhla
