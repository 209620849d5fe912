// The reader against a table of documents it must take or refuse, the writer against the reader.
#include "mhla/io/json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <clocale>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "doc", limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

JsonValue read(std::string_view text) { return parse_json(text, "doc"); }

TEST(Json, ReadsEveryKind) {
  const JsonValue value = read(
      " {\"n\": null, \"t\": true, \"f\": false, \"i\": -3, \"u\": 18446744073709551615, \"r\": 2.5e-3,\n"
      "\"s\": \"a\\n\\u00e9\\ud83d\\ude00\\\"\\\\\\/\", \"a\": [1, [], {}], \"o\": {\"x\": 1}}\t\r\n ");
  EXPECT_TRUE(value.at("n").is_null());
  EXPECT_TRUE(value.at("t").as_bool());
  EXPECT_FALSE(value.at("f").as_bool());
  EXPECT_EQ(value.at("i").as_int(), -3);
  EXPECT_EQ(value.at("u").as_uint(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(value.at("u").kind(), JsonValue::Kind::kUInt);
  EXPECT_EQ(value.at("r").as_double(), 2.5e-3);
  EXPECT_EQ(value.at("s").as_string(), "a\n\xc3\xa9\xf0\x9f\x98\x80\"\\/");
  EXPECT_EQ(value.at("a").size(), 3u);
  EXPECT_EQ(value.at("a").at(0).as_double(), 1.0);
  EXPECT_EQ(value.at("o").at("x").as_uint(), 1u);
  EXPECT_FALSE(value.contains("z"));
  EXPECT_EQ(read("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(read("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(read("\"\"").as_string(), "");
}

TEST(Json, KeepsTheOrderOfKeys) {
  const JsonValue value = read(R"({"z": 1, "a": 2, "m": 3})");
  ASSERT_EQ(value.members().size(), 3u);
  EXPECT_EQ(value.members()[0].key, "z");
  EXPECT_EQ(value.members()[1].key, "a");
  EXPECT_EQ(value.members()[2].key, "m");
  EXPECT_EQ(write_json(value), R"({"z": 1, "a": 2, "m": 3})");
}

TEST(Json, RefusesDuplicateKeysWithNameAndPlace) {
  EXPECT_EQ(refusal("{\"a\": 1,\n  \"b\": 2, \"a\": 3}"),
            "doc: line 2, column 13: key \"a\" appears twice in one object");
  EXPECT_NE(refusal(R"({"x": {"k": 1, "\u006b": 1}})").find("key \"k\" appears twice"), std::string::npos);
  EXPECT_EQ(refusal(R"([{"k": 1}, {"k": {"k": 1}}])"), "accepted");
  EXPECT_NE(refusal(R"({"": 1, "": 1})").find("key \"\" appears twice"), std::string::npos);
}

TEST(Json, RefusesWhatIsNoJson) {
  for (const std::string_view text :
       {"",     " ",      "{",       "[",         "}",           "{\"a\"}",     "{\"a\":}", "{\"a\":1,}",
        "[1,]", "[1 2]",  "{a: 1}",  "{'a': 1}",  "tru",         "nul",         "01",       "+1",
        ".5",   "1.",     "1e",      "-",         "0x10",        "NaN",         "Infinity", "\"",
        "\"a",  "\"\n\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"", "// c\n1",  "/* c */1",
        "1 2",  "{} {}",  "{}x",     "[]]",       "#",           "1e999",       "-1e999"}) {
    EXPECT_EQ(refusal(text).substr(0, 5), "doc: ") << text;
  }
  EXPECT_EQ(refusal("{\"a\": 1}\n x"),
            "doc: line 2, column 2: syntax error while parsing value - invalid literal; expected end of input");
  EXPECT_EQ(refusal("1e999"), "doc: line 1, column 5: number is beyond the range of a double");
}

TEST(Json, ErrorsAreCleanText) {
  // The parser quotes the offending token; whatever it holds stays out of the message.
  for (const std::string_view text :
       {"\"\xc3\xa9 '; expected 0\x9b\xcf\"", "\"\x1b[31m\xff\"", "\"; last read: '\xff'; expected \n"}) {
    const std::string told = refusal(text);
    EXPECT_EQ(told.substr(0, 5), "doc: ");
    EXPECT_TRUE(is_utf8(told)) << told;
    EXPECT_EQ(told.find_first_of("\x1b\n"), std::string::npos) << told;
  }
  EXPECT_LE(refusal("[\"" + std::string(100000, 'a')).size(), 200u);
}

TEST(Json, RefusesZeroBytesAndByteOrderMarks) {
  using namespace std::string_view_literals;
  EXPECT_EQ(refusal("{}\0"sv), "doc: line 1, column 3: a zero byte, expected JSON text");
  EXPECT_EQ(refusal("{}\0garbage"sv), "doc: line 1, column 3: a zero byte, expected JSON text");
  EXPECT_EQ(refusal("\0"sv), "doc: line 1, column 1: a zero byte, expected JSON text");
  EXPECT_NE(refusal("\xef\xbb\xbf{}").find("byte order mark"), std::string::npos);
}

TEST(Json, RefusesInvalidUtf8) {
  const std::string_view bad[] = {"\x80",
                                  "\xff",
                                  "\xc0\x80",
                                  "\xc1\xbf",
                                  "\xc3",
                                  "\xe0\x80\x80",
                                  "\xed\xa0\x80",
                                  "\xe2\x82",
                                  "\xf0\x80\x80\x80",
                                  "\xf4\x90\x80\x80",
                                  "\xf5\x80\x80\x80"};
  for (const std::string_view bytes : bad) {
    EXPECT_FALSE(is_utf8(bytes));
    EXPECT_EQ(refusal(str("\"", bytes, "\"")).substr(0, 5), "doc: ");
    EXPECT_EQ(refusal(str("{\"", bytes, "\": 1}")).substr(0, 5), "doc: ");
  }
  for (const std::string_view bytes :
       {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(bytes));
    EXPECT_EQ(read(str("\"", bytes, "\"")).as_string(), bytes);
  }
}

TEST(Json, HoldsItsLimits) {
  const auto nested = [](int depth) { return str(std::string(depth, '['), std::string(depth, ']')); };
  EXPECT_EQ(refusal(nested(64)), "accepted");
  EXPECT_EQ(refusal(nested(65)), "doc: line 1, column 65: nested deeper than 64 levels");
  EXPECT_NE(refusal(std::string(1000000, '[')).find("nested deeper"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100; ++i) objects += "{\"a\":";
  EXPECT_NE(refusal(objects).find("nested deeper"), std::string::npos);
  EXPECT_EQ(refusal("[[]]", {.max_depth = 1}), "doc: line 1, column 2: nested deeper than 1 levels");
  EXPECT_EQ(refusal("[1, 2]", {.max_bytes = 5}), "doc: JSON of 6 bytes, expected at most 5");
  EXPECT_EQ(refusal("[1, 2]", {.max_bytes = 6}), "accepted");
  EXPECT_EQ(refusal("[\"abcdefgh\", 1, 2, \"\\\"\\\"\\\"\"]", {.max_token = 9}), "accepted");
  EXPECT_NE(refusal("[\"abcdefghi\", 1]", {.max_token = 9}).find("10 bytes, expected at most 9"), std::string::npos);
  EXPECT_NE(refusal("[1234567890]", {.max_token = 9}).find("expected at most 9"), std::string::npos);
}

TEST(Json, SaysWhatAValueIsInstead) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const JsonValue value = read(R"({"a": 1.0, "b": "x", "c": -1})");
  EXPECT_EQ(message([&] { (void)value.at("a").as_int(); }), "JSON value is a real number, expected an integer");
  EXPECT_EQ(message([&] { (void)value.at("b").as_double(); }), "JSON value is a string, expected a number");
  EXPECT_EQ(message([&] { (void)value.at("c").as_uint(); }), "JSON value is -1, expected an integer of at least 0");
  EXPECT_EQ(message([&] { (void)value.at("z"); }), R"(JSON object has no key "z", it has "a", "b", "c")");
  EXPECT_EQ(message([&] { (void)value.items(); }), "JSON value is an object, expected an array");
  EXPECT_EQ(message([&] { (void)read("[1]").at(1); }), "JSON array has 1 items, item 1 was asked for");
  EXPECT_EQ(message([&] { (void)read("18446744073709551615").as_int(); }),
            "JSON value is an integer beyond int64, expected an integer");
  EXPECT_EQ(message([] { JsonValue(1).set("a", 1); }), "JSON value is an integer, expected an object to set a key of");
  EXPECT_EQ(message([] { JsonValue("s").push(1); }), "JSON value is a string, expected an array to push to");
}

TEST(Json, BuildsAndWrites) {
  JsonValue value;
  value.set("name", "mhla").set("ok", true).set("n", 3u).set("none", nullptr);
  value.set("ms", JsonValue::array({1.5, 2, "x"})).set("empty", JsonValue::object()).set("n", 4);
  EXPECT_EQ(write_json(value),
            R"({"name": "mhla", "ok": true, "n": 4, "none": null, "ms": [1.5, 2, "x"], "empty": {}})");
  EXPECT_EQ(write_json(JsonValue::object({{"a", JsonValue::array({1})}, {"b", JsonValue::array()}}), 2),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
  EXPECT_EQ(read(write_json(value, 2)), value);
}

TEST(Json, EscapesText) {
  EXPECT_EQ(json_quote(std::string_view("a\"\\/\n\t\r\b\f\0\x1f\x7f", 12)),
            "\"a\\\"\\\\/\\n\\t\\r\\u0008\\u000c\\u0000\\u001f\x7f\"");
  EXPECT_EQ(json_quote("\xc3\xa9\xff\xe2\x82"), "\"\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Json, NonFiniteIsNull) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(write_json(JsonValue::array({std::nan(""), inf, -inf, 1.0, -0.0})), "[null, null, null, 1.0, -0.0]");
}

TEST(Json, ReadsNumbersInAnyLocale) {
  // A decimal comma must reach neither reader nor writer. Without such a locale installed the C locale is tested.
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8", "C"}) {
    std::setlocale(LC_ALL, locale);
    EXPECT_EQ(read("[1.5]").at(0).as_double(), 1.5) << locale;
    EXPECT_EQ(write_json(1.5), "1.5") << locale;
    std::setlocale(LC_ALL, "C");
  }
}

RC_GTEST_PROP(Json, DoublesReadBackToTheSameBits, (std::uint64_t bits)) {
  const auto value = std::bit_cast<double>(bits);
  RC_PRE(std::isfinite(value));
  const JsonValue back = read(write_json(value));
  RC_ASSERT(back.kind() == JsonValue::Kind::kReal);
  RC_ASSERT(std::bit_cast<std::uint64_t>(back.as_double()) == bits);
}

RC_GTEST_PROP(Json, IntegersReadBack, (std::int64_t i, std::uint64_t u)) {
  RC_ASSERT(read(write_json(i)).as_int() == i);
  RC_ASSERT(read(write_json(u)).as_uint() == u);
}

RC_GTEST_PROP(Json, AnyTextReadsBackWhenItIsUtf8, (const std::string& text)) {
  const std::string back = read(json_quote(text)).as_string();
  RC_ASSERT(is_utf8(back));
  if (is_utf8(text)) RC_ASSERT(back == text);
}

JsonValue random_value(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 8 : 6)) {
    case 0: return nullptr;
    case 1: return *rc::gen::arbitrary<bool>();
    case 2: return *rc::gen::arbitrary<std::int64_t>();
    case 3: return *rc::gen::arbitrary<std::uint64_t>();
    case 4: return static_cast<double>(*rc::gen::arbitrary<std::int32_t>()) / 1024.0;
    case 5: return read(json_quote(*rc::gen::arbitrary<std::string>()));
    case 6: {
      JsonValue list = JsonValue::array();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) list.push(random_value(depth - 1));
      return list;
    }
    default: {
      JsonValue object = JsonValue::object();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) object.set(str("key ", i), random_value(depth - 1));
      return object;
    }
  }
}

RC_GTEST_PROP(Json, ValuesReadBack, ()) {
  const JsonValue value = random_value(4);
  RC_ASSERT(read(write_json(value)) == value);
  RC_ASSERT(read(write_json(value, 3)) == value);
}

TEST(Json, MutationsNeverCrash) {
  const std::string good = R"({"a": [1, -2.5e3, "x\u00e9\n"], "b": {"c": null, "d": [true, false]}, "e": "é"})";
  int accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string bad = good;
      bad[at] = static_cast<char>(byte);
      const std::string verdict = refusal(bad);
      accepted += verdict == "accepted";
      ASSERT_TRUE(is_utf8(verdict)) << verdict;
    }
    EXPECT_NE(refusal(good.substr(0, at)), "accepted");
  }
  EXPECT_GT(accepted, 256);  // digits, letters inside strings
}

TEST(Json, ManyKeysInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += str(i ? "," : "", "\"key", i, "\":0");
  EXPECT_EQ(parse_json(text + "}", "doc").size(), 200000u);  // hours if every key were compared with every other
  EXPECT_NE(refusal(text + ",\"key7\":0}").find("\"key7\" appears twice"), std::string::npos);
}

TEST(Json, FuzzSeeds) {
  const std::filesystem::path folder = std::filesystem::path(MHLA_SOURCE_DIR) / "mhla/io/fuzz_corpus/json";
  for (const char* good : {"object", "text"}) EXPECT_NO_THROW(read_json(folder / good)) << good;
  for (const char* bad : {"numbers", "twice"}) EXPECT_THROW(read_json(folder / bad), Error) << bad;
}

TEST(Json, ReadsFiles) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "json_test.json";
  write_file(path, std::string("{\"a\": 1}\n"));
  EXPECT_EQ(read_json(path).at("a").as_int(), 1);
  EXPECT_THROW(read_json(path, {.max_bytes = 8}), Error);
  write_file(path, std::string("{\"a\": 1, }\n"));
  try {
    read_json(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find(path.string() + ": line 1, column 10: "), 0u) << error.what();
  }
  std::filesystem::remove(path);
  EXPECT_THROW(read_json(path), Error);
  EXPECT_THROW(read_json(testing::TempDir()), Error);
}

}  // namespace
}  // namespace mhla
