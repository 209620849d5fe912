// Small trainings that tests of the program start: an image classifier on images made here, a language model on text
// made here.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/io/file.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {

inline std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::string file_text(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ClassifyFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    data = folder.path("data");
    std::filesystem::create_directory(data);
    write_idx(data, "train", 80);
    write_idx(data, "t10k", 20);
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    return joined({"train",       "classify",  "--model", "vit_demo",  "--data",    "fashion-mnist:" + data,
                   "--out",       out,         "--batch", "16",        "--threads", "1",
                   "--log-every", "2",         "--set",   "dims=[16]", "--set",     "heads=[2]",
                   "--set",       "depths=[1]"},
                  more);
  }
  TemporaryFolder folder;
  std::string data;
};

class LmFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    data = folder.path("text.jsonl");
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (int j = 0; j < 10 + i; ++j) text += (i % 2 == 0 ? "to be " : "or not ");
      lines += "{\"text\": \"" + text + "\"}\n";
    }
    write_file(data, lines);
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    return joined({"train",   "lm",     "--model",   "mhla_10m", "--data",         data,     "--out",       out,
                   "--batch", "4",      "--threads", "1",        "--set",          "dim=32", "--set",       "layers=1",
                   "--set",   "mlp=64", "--context", "64",       "--valid",        "0.1",    "--set",       "chunk=16",
                   "--lr",    "0.01",   "--min-lr",  "0.001",    "--warmup-steps", "2",      "--tokenizer", "bytes"},
                  more);
  }
  TemporaryFolder folder;
  std::string data;
};

}  // namespace mhla
