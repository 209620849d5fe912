// Cleaning of prompts: expected values are those of ftfy 6.3.1 and Python's html.unescape().
#include "mhla/io/text/prompt_cleaning.h"

#include <gtest/gtest.h>

#include "mhla/io/text/html.h"
#include "mhla/io/text/tokenizer.h"

namespace mhla {
namespace {

struct Cleaned {
  const char *text, *expected;
};

constexpr Cleaned kCleaned[] = {
    {"a &lt;b&gt; &amp;amp;amp; c", "a <b> & c"},
    {"<i>&amp;eacute;</i> x", "<i>\xc3\xa9</i> x"},
    {"&#8217;&#x27;&#150;&#0;&#x110000;&#1;", "''\xe2\x80\x93\xef\xbf\xbd\xef\xbf\xbd"},
    {"&notit; &not &copycat; &hellip;&nbsp;end",
     "\xc2\xacit; \xc2\xac \xc2\xa9"
     "cat; \xe2\x80\xa6 end"},
    {"\xef\xbc\xa1\xef\xbc\xa2\xef\xbc\xa3\xe3\x80\x80\xef\xbe\x80\xef\xbd\xb0\xef\xbe\x9d \xef\xbf\xa5 \xef\xbf\xa6",
     "ABC \xe3\x82\xbf\xe3\x83\xbc\xe3\x83\xb3 \xc2\xa5 \xe2\x82\xa9"},
    {"\xef\xac\x82u\xef\xac\x83"
     "e\xef\xac\x86 \xc5\x89 \xc7\x84",
     "fluffiest 'n D\xc5\xbd"},
    {"\xe2\x80\x98"
     "a\xe2\x80\x99 \xe2\x80\x9c"
     "b\xe2\x80\x9d \xe2\x80\x9f",
     "'a' \"b\" \""},
    {"a\r\nb\rc\xe2\x80\xa8"
     "d",
     "a b c d"},
    {"\x1b[36;44mblue\x1b[0m red", "blue red"},
    {"e\xcc\x81 n\xcc\x83", "\xc3\xa9 \xc3\xb1"},
    {"a\xe2\x80\x8d"
     "b \xef\xbb\xbf"
     "c\x07"
     "d",
     "a\xe2\x80\x8d"
     "b cd"},
    {"line &lt;one\nline &amp;two <b>\nthree &amp;amp;amp;amp;lt;", "line <one line &two <b> three &amp;amp;lt;"},
    {"x\xc2\xa0\xe2\x80\x83y", "x y"},
    {"100% &100; &#; &#x; &; &", "100% &100; &#; &#x; &; &"},
    {"&NotEqualTilde; &acE;", "\xe2\x89\x82\xcc\xb8 \xe2\x88\xbe\xcc\xb3"},
    {"\xef\xbf\xbc\xef\xbf\xb9", ""},
    {"Don\xca\xbct", "Don't"},
};

TEST(PromptCleaning, IsThatOfThePublishedModels) {
  if (!has_icu()) GTEST_SKIP() << "built without ICU";
  for (const Cleaned& one : kCleaned) EXPECT_EQ(clean_prompt(one.text), one.expected) << one.text;
}

TEST(PromptCleaning, LeavesBrokenEncodingsAndBytesAlone) {
  EXPECT_EQ(clean_prompt("sch\xc3\x83\xc2\xb6n"), "sch\xc3\x83\xc2\xb6n");
  EXPECT_EQ(clean_prompt("&EACUTE;"), "&EACUTE;");
  EXPECT_EQ(fix_text(""), "");
  EXPECT_EQ(clean_prompt(" \n "), "");
}

TEST(HtmlReferences, OfPlainTextNeedTheirSemicolon) {
  EXPECT_EQ(html_unescape("this&not that &#65 &#x42;"), "this\xc2\xac that A B");
  EXPECT_EQ(html_unescape_closed("this&not that &#65 &#x42; &amp;"), "this&not that &#65 B &");
  EXPECT_EQ(html_unescape("&CounterClockwiseContourIntegral;"), "\xe2\x88\xb3");  // the longest name
}

}  // namespace
}  // namespace mhla
