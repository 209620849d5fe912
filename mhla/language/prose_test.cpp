#include "mhla/language/prose.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/data/data_fixture.h"
#include "mhla/language/fake_model_fixture.h"

namespace mhla {
namespace {

using Texts = std::vector<std::string>;

TEST(Prose, LastWords) {
  const ScratchFolder folder;
  folder.write_text("lambada.jsonl",
                    "{\"text\": \"he went home\"}\n{\"text\": \"to the sea \\n\"}\n{\"text\": \"a b\"}\n");
  const std::vector<LastWordItem> items = read_last_words(folder.path("lambada.jsonl"));
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].context, "he went");
  EXPECT_EQ(items[0].word, " home");
  EXPECT_EQ(items[1].word, " sea");
  FakeModel model;
  model.on_score = [](const std::string& context, const std::string& word) {
    return TextScore{-static_cast<double>(word.size()), context == "he went"};
  };
  const TaskResult result = run_last_words("lambada", items, model);
  EXPECT_DOUBLE_EQ(result.figures[0].value, 1.0 / 3.0);
  EXPECT_EQ(result.figures[1].name, "perplexity");
  EXPECT_NEAR(result.figures[1].value, std::exp((5.0 + 4.0 + 2.0) / 3.0), 1e-9);
  EXPECT_EQ(message_of([] { (void)last_word_item("alone"); }), "the text has one word, expected more");
  folder.write_text("b.jsonl", "{\"txt\": 1}\n");
  EXPECT_TRUE(has(message_of([&] { (void)read_last_words(folder.path("b.jsonl")); }),
                  "b.jsonl: line 1: expected an object with a string \"text\""));
}

TEST(Prose, WikiTextAsPlainText) {  // the published rules, which take two apostrophes for a pair of quotes
  EXPECT_EQ(
      detokenize_wikitext(" = Ann ( born 1 @,@ 900 ) = \n The boys ' hats , \" very old \" , cost 3 @.@ 5 dollars . "
                          "\n = = Life = = \n It 's well @-@ known ; see [ 1 ] : yes ! "),
      " = Ann (born 1,900) =\nThe boys'hats, \"very old\", cost 3.5 dollars.\n== Life ==\nIt's well-known; see "
      "[1]: yes! ");
}

TEST(Prose, PagesOfARawFileAndOfLines) {
  const ScratchFolder folder;
  const std::string one = " = One = \n \n text \n = = Part = = \n more \n", two = " = Two = \n text \n";
  folder.write_text("wiki.test.raw", " \n" + one + two);
  EXPECT_EQ(read_pages(folder.path("wiki.test.raw")), (Texts{one, two}));
  EXPECT_EQ(read_pages(folder.path("wiki.test.raw"), 1), (Texts{one}));
  folder.write_text("wiki.jsonl", "{\"page\": \"a b\"}\n{\"page\": \" \"}\n{\"page\": \"c\"}\n");
  EXPECT_EQ(read_pages(folder.path("wiki.jsonl")), (Texts{"a b", "c"}));
}

TEST(Prose, PerplexityByWordAndByte) {
  FakeModel model;
  std::string contexts, texts;
  model.on_score = [&](const std::string& context, const std::string& text) {
    contexts += context, texts += text;
    return TextScore{-0.5 * static_cast<double>(text.size()), false};
  };
  const Texts pages = {"one , two ", "three"};  // 11 bytes as text ("one, two " is 9, "three" 5)
  const TaskResult result = run_pages("wikitext", pages, model);
  EXPECT_EQ(contexts, "");
  EXPECT_EQ(texts, "one, two three");
  const double sum = 0.5 * 14.0;  // words of the page: one , two and the end behind its space, three
  EXPECT_NEAR(result.figures[0].value, std::exp(sum / 5.0), 1e-9);
  EXPECT_NEAR(result.figures[1].value, std::exp(sum / 15.0), 1e-9);
  EXPECT_NEAR(result.figures[2].value, sum / 15.0 / std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace mhla
