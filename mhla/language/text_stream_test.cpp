#include "mhla/language/text_stream.h"

#include <gtest/gtest.h>

#include "mhla/testing/messages.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

// The text of a stream that gets `bytes` in pieces of `size`, every part checked to be whole characters.
std::string shown(const std::string& bytes, std::size_t size, TextStream& stream) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    const std::string part = stream.put(bytes.substr(at, size));
    for (std::size_t i = 0; i < part.size();) {
      const int length = character_length(std::string_view(part).substr(i));
      EXPECT_GT(length, 0) << "half a character shown";
      i += static_cast<std::size_t>(std::max(length, 1));
    }
    text += part;
  }
  return text + stream.finish();
}

TEST(TextStream, WholeCharactersHoweverTheyCome) {
  const std::string text = "a\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80.";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    TextStream stream;
    EXPECT_EQ(shown(text, size, stream), text);
  }
  TextStream stream;
  EXPECT_EQ(stream.put("a\xf0\x9f\x98"), "a");
  EXPECT_EQ(stream.held(), "\xf0\x9f\x98");
  EXPECT_EQ(stream.put("\x80"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.held(), "");
}

TEST(TextStream, BrokenBytesAreMarked) {
  const std::string mark = "\xef\xbf\xbd";
  const auto all = [](const std::string& bytes) {
    TextStream stream;
    return shown(bytes, 1, stream);
  };
  EXPECT_EQ(all("a\xff"
                "b"),
            "a" + mark + "b");
  EXPECT_EQ(all("\xe4\xb8"
                "b"),
            mark + "b");                                          // one mark for a beginning that went wrong
  EXPECT_EQ(all("\xc0\x80"), mark + mark);                        // overlong
  EXPECT_EQ(all("\xed\xa0\x80"), mark + mark + mark);             // a surrogate
  EXPECT_EQ(all("\xf4\x90\x80\x80"), mark + mark + mark + mark);  // above U+10FFFF
  EXPECT_EQ(all("x\xf0\x9f\x98"), "x" + mark);                    // half a character at the end
}

TEST(TextStream, StopsWhereverTheTokensAreCut) {
  const std::string text = "one two\n\nUser: three";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    TextStream stream({"\n\nUser:", "zzz"});
    EXPECT_EQ(shown(text, size, stream), "one two");
    EXPECT_TRUE(stream.stopped());
    EXPECT_EQ(stream.which(), 0u);
    EXPECT_EQ(stream.put("more"), "");
  }
  TextStream near({"\n\nUser:"});
  EXPECT_EQ(near.put("a\n\nUs"), "a");  // may become the stop
  EXPECT_EQ(near.put("e it"), "\n\nUse it");
  EXPECT_FALSE(near.stopped());
  TextStream ends({"abc"});
  EXPECT_EQ(ends.put("xab"), "x");
  EXPECT_EQ(ends.finish(), "ab");
  TextStream two({"bcd", "ab"});  // the first in the text, not in the list
  EXPECT_EQ(two.put("xabcd"), "x");
  EXPECT_EQ(two.which(), 1u);
  TextStream repeats({"aab"});
  EXPECT_EQ(repeats.put("aa"), "");
  EXPECT_EQ(repeats.put("a"), "a");
  EXPECT_EQ(repeats.put("b!"), "");
  EXPECT_TRUE(repeats.stopped());
  EXPECT_EQ(repeats.held(), "!");  // behind the stop, and not shown
  EXPECT_EQ(repeats.finish(), "");
  EXPECT_EQ(near.put("\n\n"), "");
  EXPECT_EQ(near.held(), "\n\n");
  EXPECT_EQ(message_of([] { TextStream stream({""}); }), "stop: a stop string is empty, expected text");
}

TEST(TextStream, AnyBytesAnyCutTheSameText) {
  Random random(4);
  for (int round = 0; round < 200; ++round) {
    std::string bytes;
    const int count = static_cast<int>(random.uniform() * 30);
    for (int i = 0; i < count; ++i)
      bytes += "ab\xc3\xa9\xe4\xb8\xad\xf0\x9f\xff"[static_cast<int>(random.uniform() * 10)];
    TextStream whole({"ab\xc3"});
    const std::string want = shown(bytes, bytes.size() + 1, whole);
    for (const std::size_t size : {1, 2, 3}) {
      TextStream stream({"ab\xc3"});
      EXPECT_EQ(shown(bytes, size, stream), want);
      EXPECT_EQ(stream.stopped(), whole.stopped());
    }
  }
}

}  // namespace
}  // namespace mhla
