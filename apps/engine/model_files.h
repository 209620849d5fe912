// The files of a folder that decide what a model computes: configuration, weights and tokenizer, by name.
#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

namespace mhla::apps {

inline std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::directory_entry& item : std::filesystem::directory_iterator(folder)) {
    const std::string end = item.path().extension().string();
    if (item.is_regular_file() && (end == ".safetensors" || end == ".json" || end == ".model"))
      files.push_back(item.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace mhla::apps
