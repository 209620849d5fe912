// tokenizer.json: there and back, what other programs write, and what is refused by name.
#include "mhla/io/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "mhla/io/json.h"
#include "mhla/io/text/text_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

JsonValue small_file() { return parse_json(write_tokenizer_json(trained(300)->table()), "small"); }

std::uint64_t fingerprint_of(const JsonValue& json) {
  return BpeTokenizer(parse_tokenizer_json(write_json(json), "f"), "f").fingerprint();
}

TEST(TokenizerJson, ThereAndBack) {
  for (const PieceRule rule :
       {PieceRule::kGpt2, PieceRule::kLlama3, PieceRule::kWhole, PieceRule::kDigits, PieceRule::kNumbers}) {
    BpeTable table = trained(400, PieceRule::kGpt2)->table();
    table.rule = rule;
    table.add_prefix_space = rule == PieceRule::kGpt2;
    table.ignore_merges = rule == PieceRule::kLlama3;
    table.tokens.resize(410);  // with a hole
    table.tokens.emplace_back("<word>");
    table.specials.push_back({410, "<word>", false});
    const BpeTokenizer tokenizer(table), again(parse_tokenizer_json(write_tokenizer_json(table), "f"));
    EXPECT_EQ(again.fingerprint(), tokenizer.fingerprint());
    EXPECT_EQ(again.specials(), tokenizer.specials());
    EXPECT_EQ(again.encode("it's <word> 12"), tokenizer.encode("it's <word> 12"));
  }
}

// Readers give a special token that the vocabulary does not have a new id.
TEST(TokenizerJson, SpecialTokensStandInTheVocabulary) {
  const BpeTable table = trained(300)->table();
  ASSERT_FALSE(table.specials.empty());
  const JsonValue file = parse_json(write_tokenizer_json(table), "file");
  for (const SpecialToken& token : table.specials)
    EXPECT_EQ(file.at("model").at("vocab").at(token.text).as_uint(), token.id) << token.text;
  EXPECT_EQ(file.at("model").at("vocab").size(), table.tokens.size());
}

TEST(TokenizerJson, OtherWaysToSayTheSame) {
  const JsonValue file = small_file();
  const std::uint64_t want = fingerprint_of(file);
  JsonValue model = file.at("model"), other = file;
  JsonValue::Array pairs;  // merges as pairs, the newer form
  for (const JsonValue& merge : model.at("merges").items()) {
    const std::string& text = merge.as_string();
    const std::size_t space = text.find(' ');
    pairs.push_back(JsonValue::array({text.substr(0, space), text.substr(space + 1)}));
  }
  EXPECT_EQ(fingerprint_of(other.set("model", model.set("merges", pairs))), want);
  JsonValue vocab = model.at("vocab");  // special tokens in the vocabulary, too
  EXPECT_EQ(fingerprint_of(other.set("model", model.set("vocab", vocab.set("<|endoftext|>", 256)))), want);
  EXPECT_EQ(fingerprint_of(other.set("post_processor", file.at("decoder"))), want);
  EXPECT_EQ(fingerprint_of(other.set("decoder", nullptr)), want);
}

// A file of tokenizers 0.23.3, and what that makes of some texts, with digits alone and in runs.
TEST(TokenizerJson, DigitsBeforeBytesHaveThePublishedIds) {
  const JsonValue file = read_json(MHLA_SOURCE_DIR "/mhla/io/text/fuzz_corpus/tokenizer_json/digits");
  const auto with = [&](bool individual) {
    JsonValue changed = file, pre = file.at("pre_tokenizer");
    const JsonValue digits = JsonValue().set("type", "Digits").set("individual_digits", individual);
    pre.set("pretokenizers", JsonValue::array({digits, pre.at("pretokenizers").at(1)}));
    return BpeTokenizer(parse_tokenizer_json(write_json(changed.set("pre_tokenizer", pre)), "f"), "f");
  };
  using Ids = std::vector<std::uint32_t>;
  const BpeTokenizer each = with(true), runs = with(false);
  const char* text = "In 1984, the  12 of 2000.";
  EXPECT_EQ(each.encode(text),
            (Ids{276, 221, 17, 25, 24, 20, 12, 259, 221, 221, 17, 18, 271, 221, 18, 16, 16, 16, 14}));
  EXPECT_EQ(runs.encode(text), (Ids{276, 221, 273, 12, 259, 221, 221, 263, 271, 221, 275, 14}));
  text = "there\n\n 19 \u0661\u0662\u00bd and\u00a03's";  // digits of other scripts, and a half
  EXPECT_EQ(each.encode(text),
            (Ids{258, 262, 199, 199, 221, 17, 25, 221, 150, 95, 150, 96, 127, 122, 266, 127, 255, 19, 7, 83}));
  EXPECT_EQ(runs.encode(text),
            (Ids{258, 262, 199, 199, 221, 261, 221, 150, 95, 150, 96, 127, 122, 266, 127, 255, 19, 7, 83}));
  text = "1999199 th3re";
  EXPECT_EQ(each.encode(text), (Ids{17, 25, 25, 25, 17, 25, 25, 221, 257, 19, 262}));
  EXPECT_EQ(runs.encode(text), (Ids{274, 261, 25, 221, 257, 19, 262}));
  EXPECT_NE(each.fingerprint(), runs.fingerprint());
}

JsonValue special(const char* name) {
  return JsonValue().set("SpecialToken", JsonValue().set("id", name).set("type_id", 0));
}
JsonValue text_a() { return JsonValue().set("Sequence", JsonValue().set("id", "A").set("type_id", 0)); }
JsonValue template_of(const JsonValue& single, std::int64_t id = 256) {
  return JsonValue()
      .set("type", "TemplateProcessing")
      .set("single", single)
      .set("pair", JsonValue::array())
      .set("special_tokens", JsonValue().set("<s>", JsonValue().set("id", "<s>").set("ids", JsonValue::array({id}))));
}

TEST(TokenizerJson, TemplatesOpenAndCloseADocument) {
  JsonValue file = small_file();
  const auto read = [&](const JsonValue& processor) {
    return BpeTokenizer(parse_tokenizer_json(write_json(file.set("post_processor", processor)), "f"), "f");
  };
  using Ids = std::vector<std::uint32_t>;
  const BpeTokenizer plain = read(nullptr), opens = read(template_of(JsonValue::array({special("<s>"), text_a()})));
  EXPECT_EQ(opens.opening(), Ids{256});
  EXPECT_EQ(opens.closing(), Ids{});
  EXPECT_NE(opens.fingerprint(), plain.fingerprint());
  EXPECT_EQ(opens.encode("a b"), plain.encode("a b"));  // a text may be a part of a document
  const JsonValue both =
      JsonValue()
          .set("type", "Sequence")
          .set("processors",
               JsonValue::array({file.at("decoder"), template_of(JsonValue::array({text_a(), special("<s>")}))}));
  const BpeTokenizer closes = read(both);
  EXPECT_EQ(closes.closing(), Ids{256});
  EXPECT_EQ(closes.document_opening(), Ids{256});  // <|endoftext|>, as without a template
  const BpeTokenizer again(parse_tokenizer_json(write_tokenizer_json(closes.table()), "f"), "f");
  EXPECT_EQ(again.fingerprint(), closes.fingerprint());
  EXPECT_EQ(again.closing(), Ids{256});

  const auto refused = [&](const JsonValue& processor) { return message_of([&] { read(processor); }); };
  EXPECT_EQ(refused(template_of(JsonValue::array({special("<s>")}))), "f: post_processor.single has no text A");
  EXPECT_TRUE(has(refused(template_of(JsonValue::array({text_a(), text_a()}))), "expected the text A once"));
  EXPECT_TRUE(has(refused(template_of(JsonValue::array({special("<x>"), text_a()}))), "<x>"));
  EXPECT_EQ(refused(template_of(JsonValue::array({special("<s>"), text_a()}), 300)),
            "f: post_processor puts token 300, expected 0 to 299");
}

TEST(TokenizerJson, RefusedByName) {
  const JsonValue file = small_file();
  const auto refused = [&](const char* key, const JsonValue& value) {
    JsonValue changed = file;
    return message_of([&] { parse_tokenizer_json(write_json(changed.set(key, value)), "f"); });
  };
  const auto model_with = [&](const char* key, const JsonValue& value) {
    JsonValue model = file.at("model");
    return refused("model", model.set(key, value));
  };
  const auto typed = [](const char* type) { return JsonValue().set("type", type); };
  EXPECT_EQ(refused("model", typed("WordPiece")), "f: model is \"WordPiece\", expected BPE");
  EXPECT_EQ(refused("normalizer", typed("NFC")),
            "f: normalizer is \"NFC\", expected null: text would not come back as it was");
  EXPECT_EQ(refused("pre_tokenizer", typed("Metaspace")),
            "f: pre_tokenizer is \"Metaspace\", expected ByteLevel, or a Split or Digits and ByteLevel");
  const auto digits = [&](const JsonValue& first, const char* key, bool value) {
    JsonValue level = file.at("pre_tokenizer");
    return refused(
        "pre_tokenizer",
        JsonValue().set("type", "Sequence").set("pretokenizers", JsonValue::array({first, level.set(key, value)})));
  };
  const JsonValue each = typed("Digits").set("individual_digits", true);
  EXPECT_EQ(digits(each, "use_regex", false), "f: pretokenizers[1].use_regex is false behind Digits, expected true");
  EXPECT_EQ(digits(each, "add_prefix_space", true),
            "f: pretokenizers[1].add_prefix_space is true behind Digits, expected false");
  EXPECT_EQ(digits(typed("Digits"), "use_regex", true), "f: pretokenizers[0] has no 'individual_digits'");
  EXPECT_TRUE(has(digits(typed("Punctuation"), "use_regex", true), "expected a Split or Digits and ByteLevel"));
  EXPECT_EQ(refused("decoder", typed("WordPiece")), "f: decoder is \"WordPiece\", expected ByteLevel");
  EXPECT_TRUE(has(refused("post_processor", typed("Magic")), "post_processor is \"Magic\""));
  EXPECT_TRUE(has(refused("truncation", 7), "the file.truncation is 7, expected null: it would change"));
  EXPECT_EQ(refused("extra", 1), "f: the file has \"extra\", which is not known here");
  EXPECT_TRUE(has(model_with("byte_fallback", true), "model.byte_fallback is true, expected null or false"));
  EXPECT_TRUE(has(model_with("dropout", 0.1), "model.dropout is 0.1"));
  EXPECT_TRUE(has(model_with("end_of_word_suffix", "</w>"), "model.end_of_word_suffix is \"</w>\""));
  EXPECT_EQ(model_with("merges", JsonValue::array({"q zz"})),
            "f: merge 0 is \"q zz\", expected two tokens of the vocabulary");
  EXPECT_EQ(model_with("merges", JsonValue::array({7})), "f: merge 0 is 7, expected two tokens of the vocabulary");
  const auto token = [&](const char* text, std::int64_t id) {
    JsonValue vocab = file.at("model").at("vocab");
    return model_with("vocab", vocab.set(text, id));
  };
  EXPECT_EQ(token("zz", 65), "f: tokens \"zz\" and \"A\" have both id 65");
  EXPECT_EQ(token("zz", 5000), "f: token \"zz\" has id 5000, expected 0 to 1627");
  EXPECT_EQ(token("zz", -1), "f: token \"zz\" has id -1, expected 0 to 1627");
  EXPECT_EQ(token("\xe4\xb8\xad", 300), "f: token \"\xe4\xb8\xad\" is no byte-level text, as every token should be");
  JsonValue added = file.at("added_tokens").at(0);
  EXPECT_TRUE(
      has(refused("added_tokens", JsonValue::array({added.set("lstrip", true)})), "added_tokens.lstrip is true"));
  EXPECT_TRUE(has(message_of([] { parse_tokenizer_json("{\"a\":1,\"a\":2}", "f"); }), "appears twice"));
  EXPECT_TRUE(has(message_of([] { (void)open_tokenizer("/no/such/tokenizer.json"); }), "/no/such/tokenizer.json"));
}

}  // namespace
}  // namespace mhla
