// The measures of LongBench on texts worked out by hand, and its files.
#include "mhla/language/longbench.h"

#include <gtest/gtest.h>

#include "mhla/data/data_fixture.h"
#include "mhla/language/fake_model_fixture.h"
#include "mhla/language/text_metrics.h"

namespace mhla {
namespace {

TEST(TextMetrics, F1OfWords) {
  EXPECT_DOUBLE_EQ(word_f1("The quick, brown fox!", "a brown fox"), 2.0 * 2 / (3 + 2));
  EXPECT_DOUBLE_EQ(word_f1("fox fox fox", "fox fox"), 2.0 * 2 / 5);  // a bag: each counts as often as it is there
  EXPECT_DOUBLE_EQ(word_f1("It's 3.5", "its 35"), 1.0);
  EXPECT_DOUBLE_EQ(word_f1("", "x"), 0.0);
  EXPECT_DOUBLE_EQ(word_f1("the", "the"), 0.0);  // nothing is left
}

TEST(TextMetrics, RougeL) {
  EXPECT_NEAR(rouge_l("the cat sat on the mat", "the cat is on the mat"), 2.0 * 4 / (5 + 5), 1e-8);
  EXPECT_NEAR(rouge_l("b a", "a b"), 2.0 * 1 / (2 + 2), 1e-8);  // the order counts
  // Reference sentence "w1 w2 w3 w4 w5" against two sentences: w1 w2 and w1 w3 w5 together are four of five words.
  EXPECT_NEAR(rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"), 2.0 * 4 / (8 + 5), 1e-8);
  EXPECT_DOUBLE_EQ(rouge_l("", "a"), 0.0);
  EXPECT_DOUBLE_EQ(rouge_l("x y", "a b"), 0.0);
}

TEST(TextMetrics, RetrievalAndEdits) {
  EXPECT_DOUBLE_EQ(retrieved("Paragraph 7", "Paragraph 7", "Paragraph "), 1.0);
  EXPECT_DOUBLE_EQ(retrieved("7, or 17 or 3", "Paragraph 17", "Paragraph "), 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(retrieved("seven", "Paragraph 7", "Paragraph "), 0.0);
  EXPECT_DOUBLE_EQ(edit_similarity("kitten", "sitting"), 0.62);    // 2 * 4 of 13
  EXPECT_DOUBLE_EQ(edit_similarity("\xc3\xa9", "\xc3\xa8"), 0.0);  // characters, not bytes
  EXPECT_DOUBLE_EQ(edit_similarity("", "x"), 0.0);
  EXPECT_DOUBLE_EQ(code_similarity("\n# a comment\nreturn x\nreturn y", "return x"), 1.0);
  EXPECT_DOUBLE_EQ(code_similarity("```\n// no", "return x"), 0.0);
}

TEST(LongBench, EveryTaskHasItsMeasure) {
  const auto score = [](const char* task, const char* said, const char* answer) {
    return longbench_score(task, said, std::vector<std::string>{"zzz", answer});
  };
  EXPECT_EQ(longbench_tasks().size(), 14u);
  for (const char* task : {"narrativeqa", "qasper", "hotpotqa", "2wikimqa", "musique"})
    EXPECT_DOUBLE_EQ(score(task, "a b c", "c b d e"), 2.0 * 2 / (2 + 4)) << task;
  EXPECT_DOUBLE_EQ(score("triviaqa", "\n\nred\nnothing else", "Red"), 1.0);
  EXPECT_DOUBLE_EQ(score("samsum", "one two\nthree", "one two"), 1.0);
  for (const char* task : {"gov_report", "qmsum", "multi_news"})
    EXPECT_DOUBLE_EQ(score(task, "one two\nthree", "one two"), 2.0 * 2 / (3 + 2)) << task;
  EXPECT_DOUBLE_EQ(score("passage_retrieval_en", "Paragraph 3", "Paragraph 3"), 1.0);
  EXPECT_DOUBLE_EQ(score("passage_retrieval_zh", "3",
                         "\xe6\xae\xb5\xe8\x90\xbd"
                         "3"),
                   1.0);
  for (const char* task : {"lcc", "repobench-p"}) EXPECT_DOUBLE_EQ(score(task, "x = 1\ny", "x = 1"), 1.0) << task;
  EXPECT_TRUE(has(message_of([&] { score("trec", "", ""); }), "task 'trec' is unknown, expected one of narrativeqa"));
}

TEST(LongBench, FilesPromptsAndTheMissingMiddle) {
  const ScratchFolder folder;
  folder.write_text(
      "data/hotpotqa.jsonl",
      "{\"input\": \"who {context}?\", \"context\": \"Ann {input} did.\", \"answers\": [\"Ann\", \"she\"], "
      "\"length\": 3, \"dataset\": \"hotpotqa\", \"language\": \"en\", \"all_classes\": null, \"_id\": "
      "\"x\"}\n");
  LongBenchTask task = read_longbench("hotpotqa", folder.path("data"));
  EXPECT_EQ(task.prompts, "short");
  EXPECT_EQ(task.items[0].prompt, "Ann {input} did.\n\nQuestion: who {context}?\nAnswer:");
  folder.write_text("config/dataset2prompt.json", "{\"hotpotqa\": \"Read {context} {x} and say {input}\"}");
  task = read_longbench("hotpotqa", folder.path("data"));
  EXPECT_EQ(task.prompts, folder.path("config/dataset2prompt.json"));
  EXPECT_EQ(task.items[0].prompt, "Read Ann {input} did. {x} and say who {context}?");

  FakeModel model;
  std::vector<std::string> seen;
  model.on_generate = [&](const std::string& prompt) {
    seen.push_back(prompt);
    return std::string("she did");
  };
  const TaskResult whole = run_longbench(task, 0, model), cut = run_longbench(task, 11, model);
  EXPECT_EQ(seen[0], task.items[0].prompt);
  EXPECT_EQ(seen[1], "Read ext}?");
  EXPECT_NEAR(whole.figures[0].value, 100.0 * 2 / 3, 1e-9);
  EXPECT_DOUBLE_EQ(whole.figures[1].value, 0.0);
  EXPECT_DOUBLE_EQ(cut.figures[1].value, 1.0);

  folder.write_text("data/lcc.jsonl", "{\"input\": \"\", \"context\": \"c\", \"answers\": []}\n");
  EXPECT_TRUE(has(message_of([&] { (void)read_longbench("lcc", folder.path("data")); }), "no prompt for lcc"));
  folder.write_text("config/dataset2prompt.json", "{\"lcc\": \"{context}\"}");
  EXPECT_TRUE(has(message_of([&] { (void)read_longbench("lcc", folder.path("data")); }),
                  "lcc.jsonl: line 1: answers are none, expected one at least"));
}

}  // namespace
}  // namespace mhla
