// Paths that cannot be used, and disks that are full, for every command and every flag that takes a path: one line with
// the path and the reason, exit code 2 for the caller's mistake, 1 for a disk, and nothing left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/testing/plain_rights.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kPath = "PATH";  // what a case is about

Words with_path(Words words, const std::string& path) {
  std::replace(words.begin(), words.end(), std::string(kPath), path);
  for (std::string& word : words)  // "folder:PATH"
    if (word.size() > 4 && word.ends_with(":PATH")) word.replace(word.size() - 4, 4, path);
  return words;
}

class CliFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder.path("text.txt"), "to be or not to be, that is the question");
    fs::create_directory(folder.path("idx"));
    write_idx(folder.path("idx"), "train", 80);
    write_idx(folder.path("idx"), "t10k", 20);
    fs::create_directory(folder.path("closed"));
    fs::permissions(folder.path("closed"), fs::perms::none);
    fs::create_symlink("loop", folder.path("loop"));
  }
  void TearDown() override { fs::permissions(folder.path("closed"), fs::perms::owner_all); }

  // Commands with a path that is read or written.
  [[nodiscard]] std::vector<Words> commands() const {
    const std::string text = folder.path("text.txt"), out = folder.path("out"), idx = "mnist:" + folder.path("idx");
    std::vector<Words> all{
        {"verify", "--golden", kPath},
        {"inspect", kPath},
        {"data", "info", "--data", kPath},
        {"data", "info", "--data", "folder:PATH"},
        {"data", "info", "--data", "cifar10:PATH"},
        {"bench", "data", "--data", kPath},
        {"data", "tokenize", "--data", kPath, "--out", out},
        {"data", "tokenize", "--data", text, "--out", kPath},
        {"data", "tokenize", "--data", text, "--out", out, "--tokenizer", kPath},
        {"data", "tokenize", "--data", text, "--out", out, "--valid-data", kPath},
        {"bench", "op", "--scaling", "--html", kPath},
        {"convert", kPath, out},
        {"analyze", "--run", kPath},
        {"demo", "--out", kPath},
        {"generate", "--run", out, "--prompts", kPath},
        {"sample", "--model", out, "--out", out, "--prompts", kPath},
        {"train", "classify", "--config", kPath, "--out", out},
        {"train", "classify", "--data", idx, "--model", "vit_demo", "--out", kPath, "--resume"},
    };
    if (!MHLA_TORCH_BUILT) return all;
    const std::vector<Words> with_torch{
        {"train", "classify", "--data", kPath, "--model", "vit_demo", "--out", out},
        {"train", "classify", "--data", idx, "--model", "vit_demo", "--out", kPath},
        {"train", "lm", "--data", kPath, "--out", out},
        {"train", "lm", "--data", text, "--out", kPath},
        {"train", "lm", "--data", text, "--tokens", kPath, "--out", out},
        {"eval", "classify", "--run", kPath},
        {"predict", "--run", kPath, folder.path("text.txt")},
        {"export", "--run", kPath, "--out", folder.path("out.onnx")},
        {"eval", "lm", "--run", kPath},
        {"generate", "--run", kPath, "--prompt", "to be"},
        {"generate", "--run", out, "--prompt", "to be", "--save-state", kPath},
        {"demo", "--data", kPath, "--out", out, "--no-images"},
        {"sample", "--model", kPath, "--out", out},
        {"sample", "--run", kPath, "--out", out},
    };
    all.insert(all.end(), with_torch.begin(), with_torch.end());
    return all;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    std::error_code none;
    const auto options = fs::directory_options::skip_permission_denied;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path(), options, none))
      all.push_back(entry.path().lexically_relative(folder.path()).string());
    std::sort(all.begin(), all.end());
    return all;
  }
  void expect_everywhere(const std::string& path, const std::string& reason) const {
    const std::vector<std::string> before = names();
    for (const Words& command : commands()) {
      const Words words = with_path(command, path);
      std::string line;
      for (const std::string& word : words) line += word + " ";
      SCOPED_TRACE(line);
      const PlainRights rights;
      expect_refused(words, {path.substr(0, 200), reason});
    }
    EXPECT_EQ(names(), before);
  }
  TemporaryFolder folder;
};

TEST_F(CliFiles, WithoutPermission) { expect_everywhere(folder.path("closed/model.json"), "Permission denied"); }

TEST_F(CliFiles, ANameThatIsTooLong) {
  expect_everywhere(folder.path(std::string(300, 'n') + ".json"), "File name too long");
}

TEST_F(CliFiles, LinksInACircle) {
  expect_everywhere(folder.path("loop/model.json"), "Too many levels of symbolic links");
}

// ---- A full disk

TEST_F(CliFiles, AFullDiskLeavesNothing) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "to be or not to be ";
  write_file(folder.path("long.txt"), text);
  const std::string idx = "mnist:" + folder.path("idx");
  std::vector<Words> all{
      {"data", "tokenize", "--data", folder.path("long.txt"), "--out", folder.path("new/tokens")},
      {"data", "tokenize", "--data", folder.path("text.txt"), "--out", folder.path("new/tokens")},  // dataset.json
  };
  if (MHLA_TORCH_BUILT) {
    all.push_back(
        {"train", "classify", "--data", idx, "--model", "vit_demo", "--batch", "16", "--out", folder.path("new/run")});
    all.push_back({"train", "lm", "--data", folder.path("long.txt"), "--out", folder.path("new/run")});
    all.push_back(
        {"demo", "--data", "fashion-" + idx, "--out", folder.path("new/demo"), "--train-images", "64", "--no-speed"});
  }
  const std::vector<std::string> before = names();
  for (const Words& words : all) {
    SCOPED_TRACE(words[0] + " " + words[1]);
    const ProgramRun run = [&] {
      const FullDisk disk(400);  // enough for the line that says so
      return run_program(words);
    }();
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, folder.path("new")) && has(run.err, "could not be written: File too large")) << run.err;
    EXPECT_EQ(names(), before);
  }
}

}  // namespace
}  // namespace mhla
