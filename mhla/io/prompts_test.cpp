#include "mhla/io/prompts.h"

#include <gtest/gtest.h>

#include "mhla/io/file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Prompts = std::vector<std::string>;

Prompts read(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  write_file(path, text);
  Prompts prompts{"first"};
  read_prompts("sample", path, prompts);
  return prompts;
}

TEST(Prompts, OneALine) {
  EXPECT_EQ(read("a.txt", "a house\na tree"), (Prompts{"first", "a house", "a tree"}));
  EXPECT_EQ(read("c.jsonl", "{\"prompt\": \"a house\"}\n\n{\"prompt\": \"\"}\n"), (Prompts{"first", "a house", ""}));
  Prompts none;
  const std::string path = testing::TempDir() + "empty.txt";
  write_file(path, std::string("\n \n"));
  EXPECT_EQ(message_of([&] { read_prompts("sample", path, none); }), "sample: " + path + " has no prompts");
}

TEST(Prompts, AsEditorsOfOtherSystemsLeaveThem) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(read("b.txt", mark + "a house\r\n\r\n \t\r\n a tree \r\n\n"), (Prompts{"first", "a house", " a tree "}));
}

}  // namespace
}  // namespace mhla
