#include "mhla/data/corpus.h"

#include <gtest/gtest.h>

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

using Texts = std::vector<std::string>;

Texts texts_of(const std::string& data, CorpusCounts* counts = nullptr) {
  Texts texts;
  const CorpusCounts found =
      read_corpus(data, [&](const std::string&, std::string_view text) { texts.emplace_back(text); });
  if (counts != nullptr) *counts = found;
  return texts;
}

TEST(Corpus, FilesFoldersAndLines) {
  const ScratchFolder folder;
  folder.write_text("b.txt", "second \xff broken");
  folder.write_text("a/x.jsonl", "{\"id\": 1, \"text\": \"one\\ntwo\"}\n\n{\"text\": \"\"}\n{\"text\": \"three\"}");
  folder.write_text("c.md", "");
  folder.write_text("d.bin", "no text");
  CorpusCounts counts;
  EXPECT_EQ(texts_of(folder.path(), &counts), (Texts{"one\ntwo", "three", "second \xff broken"}));
  EXPECT_EQ(counts.documents, 3);
  EXPECT_EQ(counts.bytes, 7 + 5 + 15);
  EXPECT_EQ(counts.empty, (Texts{folder.path("a/x.jsonl") + ": line 3", folder.path("c.md")}));
  EXPECT_EQ(counts.broken, (Texts{folder.path("b.txt")}));
  EXPECT_EQ(counts.not_read, (Texts{folder.path("d.bin")}));
  EXPECT_EQ(texts_of(folder.path("d.bin")), (Texts{"no text"}));  // named, it is text
  folder.write_text("wide.txt", std::string("t\0o\0", 4));
  EXPECT_EQ(texts_of(folder.path("wide.txt"), &counts), (Texts{std::string("t\0o\0", 4)}));
  EXPECT_EQ(counts.broken, (Texts{folder.path("wide.txt")}));
  folder.write_text("named.json", "{\"text\": \"a line\"}\n");
  EXPECT_EQ(texts_of(folder.path("named.json")), (Texts{"a line"}));
}

TEST(Corpus, ANovelComesWithTheProgram) {
  CorpusCounts counts;
  const Texts texts = texts_of("sample", &counts);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_TRUE(has(texts[0].substr(0, 80), "The Hound of the Baskervilles"));
  EXPECT_EQ(counts.bytes, 318521);
  EXPECT_EQ(corpus_print("sample"), counts.print);
  const ScratchFolder folder;
  setenv("MHLA_SHARE", folder.path().c_str(), 1);
  EXPECT_TRUE(has(message_of([] { texts_of("sample"); }),
                  folder.path("sample/the_hound_of_the_baskervilles.txt") + " is missing"));
  folder.write_text("sample/the_hound_of_the_baskervilles.txt", "another");
  EXPECT_EQ(texts_of("sample"), Texts{"another"});
  unsetenv("MHLA_SHARE");
}

TEST(Corpus, MistakesAreNamed) {
  const ScratchFolder folder;
  folder.write_text("empty.txt", "");
  folder.write_text("lines.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
  folder.write_text("broken.jsonl", "{\"text\": \"a\n");
  folder.write_text("none/x.bin", "x");
  const auto said = [](const std::string& data) { return message_of([&] { texts_of(data); }); };
  EXPECT_EQ(said(folder.path("empty.txt")),
            "data: " + folder.path("empty.txt") + " has no text: " + folder.path("empty.txt") + " is empty");
  EXPECT_EQ(said(folder.path("lines.jsonl")),
            folder.path("lines.jsonl") + ": line 2: no text, expected an object with a string \"text\"");
  EXPECT_TRUE(has(said(folder.path("broken.jsonl")), "broken.jsonl: line 1: line 1, column"));
  folder.write_text("list.json", "[\n  \"a\"\n]\n");
  EXPECT_TRUE(has(said(folder.path("list.json")), "data: " + folder.path("list.json") + " has no JSON lines ("))
      << said(folder.path("list.json"));
  EXPECT_TRUE(has(said(folder.path("list.json")), "), expected a text file, .jsonl: a line for each document"));
  EXPECT_EQ(said(folder.path("none")), "data: no .txt, .md or .jsonl file in " + folder.path("none"));
  EXPECT_TRUE(has(said("/no/such"), "'/no/such' is not there"));
}

TEST(Corpus, DictionaryAsPlainText) {
  const std::string text =
      "\n00-database-url\n   ftp://x\n\nThis file is free.\n\nAbate \\A*bate\"\\, v. t. [OF. abattre\n   to beat.]\n"
      "   1. To beat down. See {Bate}.\n      [1913 Webster]\n\n   2. To lessen.\n      [PJC]\n\nAbbot \\Ab\"bot\\, "
      "n.\n"
      "   A father.\n";
  Texts documents;
  split_dictionary(text, [&](std::string_view document) { documents.emplace_back(document); });
  EXPECT_EQ(documents, (Texts{"Abate, v. t. [OF. abattre to beat.] 1. To beat down. See Bate.\n2. To lessen.\n"
                              "Abbot, n. A father.\n"}));
  // Headwords and how they are spoken over two lines, marks of source within a paragraph, syllables of other entries,
  // letters that ASCII does not have, and remarks, which stay.
  const std::string marks =
      "Band-Aid \\Band\"-Aid`\\, Band Aid \\Band\"\nAid\\ (b[a^]nd\"[=a]d`) n. [from a Trademark.]\n   A strip. "
      "[Obs.]         --Shak. [1913 Webster\n   +PJC]\n   [Archaic]\n\n   [WordNet sense 2]\n\n   -- {Ab*sorb\"ing}, "
      "a. "
      "(Zo[\"o]l.) {Axes} (-[e^]z), {Lift} (A[\"e]ronautics); a caf['e], [AE]on, fa[,c]ade, 3[deg], [root]7 [see "
      "2].\n\n"
      "computer \\computer\\n.\n   One (who [*a]dds).\n";
  documents.clear();
  split_dictionary(marks, [&](std::string_view document) { documents.emplace_back(document); });
  EXPECT_EQ(documents,
            (Texts{"Band-Aid, Band Aid n. [from a Trademark.] A strip. [Obs.] --Shak. [Archaic]\n"
                   "-- Absorbing, a. (Zo\u00f6l.) Axes, Lift (A\u00ebronautics); a caf\u00e9, \u00c6on, fa\u00e7ade, "
                   "3\u00b0, \u221a7 [see 2].\ncomputer n. One (who adds).\n"}));
  std::string many;
  for (int i = 0; i < 500; ++i) many += str("Word", i, " \\Word\\, n.\n   Meaning ", i, ".\n\n");
  documents.clear();
  split_dictionary(many, [&](std::string_view document) { documents.emplace_back(document); });
  std::string joined;
  for (const std::string& document : documents) {
    EXPECT_LT(document.size(), 4200u);
    EXPECT_EQ(document.substr(0, 4), "Word");
    joined += document;
  }
  EXPECT_EQ(std::count(joined.begin(), joined.end(), '\n'), 500);
}

}  // namespace
}  // namespace mhla
