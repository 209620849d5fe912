// mhla data info, data tokenize and bench data from outside: what they say, and one line with code 2 for what is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "mhla/io/json.h"
#include "tests/cli/program.h"

namespace mhla {
namespace {

// `count` images of 4 x 3: item i is flat at 10 i, its label i mod 10. `cut` bytes are missing at the end.
void write_idx_pair(const TemporaryFolder& folder, const std::string& split, int count, int cut = 0) {
  std::string images("\0\0\x08\x03\0\0\0", 7), labels("\0\0\x08\x01\0\0\0", 7);
  images += static_cast<char>(count);
  labels += static_cast<char>(count);
  images += std::string("\0\0\0\x04\0\0\0\x03", 8);
  for (int i = 0; i < count; ++i) {
    images += std::string(12, static_cast<char>(10 * i));
    labels += static_cast<char>(i % 10);
  }
  images.resize(images.size() - static_cast<std::size_t>(cut));
  std::ofstream(folder.path(split + "-images-idx3-ubyte"), std::ios::binary) << images;
  std::ofstream(folder.path(split + "-labels-idx1-ubyte"), std::ios::binary) << labels;
}

TEST(CliData, InfoSaysWhatIsThere) {
  const TemporaryFolder folder;
  write_idx_pair(folder, "train", 20);
  write_idx_pair(folder, "t10k", 5);
  const ProgramRun people = run_program({"data", "info", "--data", folder.path()});
  EXPECT_EQ(people.code, 0) << people.err;
  for (const char* part : {"mnist, train", "20, 4 x 3 pixels, grey", "10, 2 images each: 0, 1,", "mean       0.3725",
                           "damaged    0 of 20", "mnist, test", "0 1, 1 1,"})
    EXPECT_NE(people.out.find(part), std::string::npos) << part << "\n" << people.out;
  const ProgramRun programs =
      run_program({"data", "info", "--data", "mnist:" + folder.path(), "--json", "--threads", "2"});
  EXPECT_EQ(programs.code, 0);
  const std::vector<std::string> rows = lines_of(programs.out);
  ASSERT_EQ(rows.size(), 2u);
  const JsonValue train = parse_json(rows[0], "row");
  EXPECT_EQ(train.at("split").as_string(), "train");
  EXPECT_EQ(train.at("images").as_int(), 20);
  EXPECT_EQ(train.at("classes").as_int(), 10);
  EXPECT_EQ(train.at("height").at(std::size_t{1}).as_int(), 4);
  EXPECT_NEAR(train.at("mean").at(std::size_t{0}).as_double(), 95.0 / 255.0, 1e-12);
  EXPECT_EQ(parse_json(rows[1], "row").at("images").as_int(), 5);
}

TEST(CliData, WrongDataIsOneLineAndCodeTwo) {
  const TemporaryFolder folder, cut;
  write_idx_pair(cut, "train", 20, 3);
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"data"}, "no command is given, expected one of info, tokenize"},
      {{"data", "info", "--data", "/no/such/folder"}, "is no folder"},
      {{"data", "info", "--data", folder.path()}, "nothing known in"},
      {{"data", "info", "--data", "cifar10"}, "needs a folder"},
      {{"data", "info", "--data", cut.path()}, "the file is cut short"},
      {{"data", "info", "--data", cut.path(), "--split", "valid"}, "expected train, test or all"},
      {{"data", "info", "--data", "mnist:" + cut.path(), "--split", "test"}, "looked for t10k-images-idx3-ubyte"},
      {{"data", "info", "--samples", "0"}, "--samples"},
      {{"bench", "data", "--augment", "diet"}, "recipe 'diet' is unknown"},
      {{"bench", "data", "--image", "0"}, "--image"}};
  for (const auto& [arguments, reason] : mistakes) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 2) << arguments.back();
    EXPECT_EQ(run.out, "") << arguments.back();
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_NE(run.err.find(reason), std::string::npos) << run.err;
  }
}

TEST(CliData, BenchVerifiesAndTimes) {
  const ProgramRun run = run_program({"bench", "data", "--image", "32", "--photo-height", "60", "--photo-width", "80",
                                      "--batch", "8", "--threads", "2", "--min-time", "0.05", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const JsonValue row = parse_json(lines_of(run.out).at(0), "row");
  EXPECT_TRUE(row.at("verified").as_bool());
  EXPECT_GT(row.at("images_per_s").as_double(), 10.0);
  EXPECT_GT(row.at("decode_ms").as_double(), 0.0);
}

TEST(CliData, BenchTextVerifiesAndTimes) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("a.txt")) << "to be or not to be, that is the question \xff";
  const ProgramRun run = run_program(
      {"bench", "text", "--data", folder.path("a.txt"), "--tokenizer", "train:270", "--min-time", "0.05", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const JsonValue row = parse_json(lines_of(run.out).at(0), "row");
  EXPECT_EQ(row.at("bytes").as_int(), 42);
  EXPECT_LT(row.at("tokens").as_int(), 42);
  EXPECT_GT(row.at("encode_mb_per_s").as_double(), 0.01);
  const ProgramRun wrong = run_program({"bench", "text", "--data", folder.path("b.txt")});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("is not there"), std::string::npos) << wrong.err;
}

TEST(CliData, TokenizeAndInfo) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("a.jsonl")) << "{\"text\": \"one two\"}\n{\"text\": \"\"}\n{\"text\": \"three\"}\n";
  const std::string out = folder.path("tokens");
  const std::vector<std::string> call = {"data",    "tokenize", "--data", folder.path("a.jsonl"), "--out", out,
                                         "--valid", "0.5",      "--json"};
  const ProgramRun made = run_program(call);
  ASSERT_EQ(made.code, 0) << made.err;
  const JsonValue row = parse_json(lines_of(made.out).at(0), "row");
  EXPECT_EQ(row.at("tokens").as_int(), 8);  // seven bytes and what stands before a document
  EXPECT_EQ(row.at("valid_tokens").as_int(), 6);
  EXPECT_EQ(row.at("empty").at(0).as_string(), folder.path("a.jsonl") + ": line 2");
  const ProgramRun info = run_program({"data", "info", "--data", out});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_NE(info.out.find("train      1 documents, 8 tokens, 1 shards"), std::string::npos) << info.out;

  // Documents of their own to hold out.
  std::ofstream(folder.path("b.txt")) << "four five six";
  const std::string two = folder.path("two");
  const ProgramRun apart = run_program(
      {"data", "tokenize", "--data", folder.path("a.jsonl"), "--valid-data", folder.path("b.txt"), "--out", two});
  ASSERT_EQ(apart.code, 0) << apart.err;
  EXPECT_NE(apart.out.find(", held out: " + folder.path("b.txt")), std::string::npos) << apart.out;
  EXPECT_NE(apart.out.find("valid      1 documents, 14 tokens, 1 shards"), std::string::npos) << apart.out;
  EXPECT_EQ(run_program({"data", "info", "--data", two}).code, 0);
  const ProgramRun both = run_program({"data", "tokenize", "--data", folder.path("a.jsonl"), "--valid-data",
                                       folder.path("b.txt"), "--valid", "0.5", "--out", folder.path("three")});
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("expected one of them"), std::string::npos) << both.err;

  // What is no text, and what is not read.
  std::filesystem::create_directories(folder.path("mixed"));
  std::ofstream(folder.path("mixed/good.txt")) << "good";
  std::ofstream(folder.path("mixed/broken.txt")) << "caf\xe9";
  std::ofstream(folder.path("mixed/list.json")) << "[1]";
  const ProgramRun mixed =
      run_program({"data", "tokenize", "--data", folder.path("mixed"), "--out", folder.path("four")});
  EXPECT_EQ(mixed.code, 0) << mixed.err;
  for (const char* part :
       {"1 documents are no UTF-8 text", "mixed/broken.txt", "1 files were not read", "mixed/list.json"})
    EXPECT_NE(mixed.err.find(part), std::string::npos) << mixed.err;
  const ProgramRun list =
      run_program({"data", "tokenize", "--data", folder.path("mixed/list.json"), "--out", folder.path("five")});
  EXPECT_EQ(list.code, 2);
  EXPECT_NE(list.err.find("mixed/list.json has no JSON lines ("), std::string::npos) << list.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("five")));

  EXPECT_EQ(run_program(call).code, 2);  // there already
  std::fstream(out + "/train-00000.tokens", std::ios::binary | std::ios::in | std::ios::out).seekp(-2, std::ios::end)
      << "?";
  const ProgramRun damaged = run_program({"data", "info", "--data", out});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_NE(damaged.err.find("train-00000.tokens: the checksum is wrong"), std::string::npos) << damaged.err;
}

}  // namespace
}  // namespace mhla
