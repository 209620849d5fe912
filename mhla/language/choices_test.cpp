// Every public layout, the prompts made of it, and how answers are counted.
#include "mhla/language/choices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/data/data_fixture.h"
#include "mhla/language/fake_model_fixture.h"

namespace mhla {
namespace {

using Texts = std::vector<std::string>;

ChoiceItem item_of(const std::string& task, const std::string& json) {
  return choice_item(task, parse_json(json, "row"));
}

TEST(Choices, PublishedLayouts) {
  ChoiceItem item = item_of("piqa", R"({"goal": "Cut it.", "sol1": "With a saw.", "sol2": "With tea.", "label": 1})");
  EXPECT_EQ(item.contexts, (Texts{"Question: Cut it.\nAnswer:", "Question: Cut it.\nAnswer:"}));
  EXPECT_EQ(item.continuations, (Texts{" With a saw.", " With tea."}));
  EXPECT_EQ(item.gold, 1u);

  item = item_of("winogrande", R"({"sentence": "Ann met Bea because _ was late.", "option1": "Ann", "option2": "Bea",
                                   "answer": "2"})");
  EXPECT_EQ(item.contexts, (Texts{"Ann met Bea because Ann", "Ann met Bea because Bea"}));
  EXPECT_EQ(item.continuations, (Texts{" was late.", " was late."}));
  EXPECT_EQ(item.gold, 1u);

  const char* table = R"({"id": "1", "question": "What burns?", "answerKey": "2",
                          "choices": {"text": ["ice", "coal", "sand"], "label": ["1", "2", "3"]}})";
  const char* authors = R"({"id": "1", "answerKey": "2", "question": {"stem": "What burns?", "choices": [
      {"text": "ice", "label": "1"}, {"text": "coal", "label": "2"}, {"text": "sand", "label": "3"}]}})";
  for (const char* row : {table, authors})
    for (const char* task : {"arc", "arc_easy", "arc_challenge"}) {
      item = item_of(task, row);
      EXPECT_EQ(item.contexts[2], "Question: What burns?\nAnswer:");
      EXPECT_EQ(item.continuations, (Texts{" ice", " coal", " sand"}));
      EXPECT_EQ(item.gold, 1u);
    }
  EXPECT_EQ(item_of("obqa", authors).contexts[0], "What burns?");
  EXPECT_EQ(item_of("obqa", R"({"question_stem": "What burns?", "answerKey": "A",
                                "choices": {"text": ["coal"], "label": ["A"]}})")
                .contexts[0],
            "What burns?");

  item = item_of("boolq", R"({"question": "is ice cold", "title": "Ice", "answer": true, "passage": "Ice is cold."})");
  EXPECT_EQ(item.contexts[0], "Ice is cold.\nQuestion: is ice cold?\nAnswer:");
  EXPECT_EQ(item.continuations, (Texts{" no", " yes"}));
  EXPECT_EQ(item.gold, 1u);
  EXPECT_EQ(item_of("boolq", R"({"question": "q", "passage": "p", "idx": 3, "label": 0})").gold, 0u);

  item = item_of("mmlu", R"({"question": " 1 + 1? ", "subject": "abstract_algebra", "choices": ["0", "1", "2", "3"],
                             "answer": 2})");
  EXPECT_EQ(item.contexts[0],
            "The following are multiple choice questions (with answers) about abstract algebra.\n\n1 + 1?\n"
            "A. 0\nB. 1\nC. 2\nD. 3\nAnswer:");
  EXPECT_EQ(item.continuations, (Texts{" A", " B", " C", " D"}));
  EXPECT_EQ(item.gold, 2u);

  item = item_of("choices", R"({"context": "2, 4,", "choices": ["6", "7"], "gold": 0})");
  EXPECT_EQ(item.contexts[1] + item.continuations[1], "2, 4, 7");
}

TEST(Choices, FilesWithLabelsBesideThemAndTables) {
  const ScratchFolder folder;
  folder.write_text("valid.jsonl",
                    "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n\n"
                    "{\"goal\": \"h\", \"sol1\": \"a\", \"sol2\": \"b\"}\n");
  folder.write_text("valid-labels.lst", "1\n0\n");
  const std::vector<ChoiceItem> items = read_choices("piqa", folder.path("valid.jsonl"));
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0].gold, 1u);
  EXPECT_EQ(items[1].gold, 0u);
  EXPECT_EQ(read_choices("piqa", folder.path("valid.jsonl"), 1).size(), 1u);

  folder.write_text("mmlu/high_school_physics_test.csv", "\"What is, \"\"g\"\"?\",1,\"9,8\",3,4,B\nx,1,2,3,4,A\n");
  folder.write_text("mmlu/astronomy_test.csv", "y,1,2,3,4,D\n");
  const std::vector<ChoiceItem> rows = read_choices("mmlu", folder.path("mmlu"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NE(rows[0].contexts[0].find("about astronomy.\n\ny\n"), std::string::npos);
  EXPECT_NE(rows[1].contexts[0].find("about high school physics.\n\nWhat is, \"g\"?\nA. 1\nB. 9,8\n"),
            std::string::npos);
  EXPECT_EQ(rows[1].gold, 1u);
}

TEST(Choices, MistakesAreNamed) {
  const ScratchFolder folder;
  const auto said = [&](const char* task, const char* text) {
    folder.write_text("a.jsonl", text);
    const std::string whole = message_of([&] { (void)read_choices(task, folder.path("a.jsonl")); });
    const std::string head = folder.path("a.jsonl") + ": line 1: ";
    return whole.substr(0, head.size()) == head ? whole.substr(head.size()) : whole;
  };
  EXPECT_EQ(said("piqa", R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 2})"),
            "the answer is choice 2, expected 0 to 1");
  EXPECT_TRUE(has(said("piqa", R"({"goal": "g", "sol1": "a", "sol2": "b"})"), "label"));
  EXPECT_EQ(said("winogrande", R"({"sentence": "s", "option1": "a", "option2": "b", "answer": "1"})"),
            "sentence has no _, expected one where the options go");
  EXPECT_EQ(said("winogrande", R"({"sentence": "_", "option1": "a", "option2": "b", "answer": ""})"),
            "answer is '', expected \"1\" or \"2\"");
  EXPECT_EQ(said("arc", R"({"question": "q", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"})"),
            "answerKey is 'B', which is no label of a choice");
  EXPECT_EQ(said("choices", R"({"context": "c", "choices": ["a", ""], "gold": 0})"), "choice 1 is empty");
  EXPECT_EQ(said("choices", "\n"), "task: " + folder.path("a.jsonl") + " has no items");
  folder.write_text("m/x_test.csv", "q,1,2,3,4,A\nq,1,2,3,A\n");
  EXPECT_EQ(message_of([&] { (void)read_choices("mmlu", folder.path("m")); }),
            folder.path("m/x_test.csv") + ": row 2: 5 cells, expected a question, four choices and a letter");
  EXPECT_EQ(message_of([&] { (void)choice_item("poetry", {}); }), "task: 'poetry' has no choices");
}

TEST(Choices, LikeliestAndLikeliestByCharacter) {
  FakeModel model;  // -1 for each byte, but less for an x
  model.on_score = [](const std::string&, const std::string& continuation) {
    double sum = 0.0;
    for (const char c : continuation) sum -= c == 'x' ? 0.5 : 1.0;
    return TextScore{sum, false};
  };
  const std::vector<ChoiceItem> items = {
      item_of("choices", R"({"context": "c", "choices": ["ab", "xxxx"], "gold": 0})"),   // -3, -3: the first
      item_of("choices", R"({"context": "c", "choices": ["ab", "xxxx"], "gold": 1})"),   // by character: -1.5, -0.75
      item_of("choices", R"({"context": "c", "choices": ["a", "xxxxxx"], "gold": 1})"),  // -2, -4; -2, -0.67
      item_of("choices",
              R"({"context": "c", "choices": ["\u00e9", "b"], "gold": 1})")};  // -3, -2; 2 bytes, 1 character
  const TaskResult result = run_choices("choices", items, model);
  EXPECT_EQ(result.items, 4);
  EXPECT_EQ(result.figures[0].name, "acc");
  EXPECT_DOUBLE_EQ(result.figures[0].value, 0.5);
  EXPECT_EQ(result.figures[1].name, "acc_norm");
  EXPECT_DOUBLE_EQ(result.figures[1].value, 0.75);
  EXPECT_NEAR(result.figures[0].error, std::sqrt(0.25 / 3.0), 1e-12);
}

TEST(Choices, SpacesBelongToTheContinuation) {
  const TokenizerPtr bytes = byte_tokenizer();
  const TextRequest request = text_request(*bytes, "The answer is  ", "yes");
  EXPECT_EQ(bytes->decode(request.context), "The answer is");
  EXPECT_EQ(bytes->decode(request.continuation), "  yes");
  EXPECT_EQ(bytes->decode(text_request(*bytes, " ", "a").continuation), " a");
  EXPECT_TRUE(has(message_of([&] { (void)text_request(*bytes, "a", ""); }), "has none of its own"));
}

}  // namespace
}  // namespace mhla
