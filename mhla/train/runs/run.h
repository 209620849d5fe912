// A run on disk, opened to be looked at: its task by name, its options, its checkpoints and where its weights are
// (trainer.h lists the files). No LibTorch, so that a listing needs no model; classify/open_classifier.h and
// lm/open_lm.h open the model of a run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/train/runs/checkpoints.h"

namespace mhla::train {

inline constexpr const char* kOptionsFile = "train.json";
inline constexpr const char* kBestFile = "best.safetensors";
inline constexpr const char* kStateFile = "trainer.safetensors";  // of a checkpoint: optimiser, averages, generators

// A file of weights of a run.
struct RunWeights {
  std::filesystem::path folder, file;  // folder has the config.json of the file
  std::string prefix;                  // of the tensors in the file
  std::vector<std::string> warnings;   // damaged checkpoints, a run that is not at its end
};

class Run {
 public:
  // Throws mhla::Error that opens with `who`, such as a command, where the folder is no run.
  static Run open(const std::string& who, const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const JsonValue& options() const { return options_; }  // train.json
  [[nodiscard]] std::string task() const;                              // "classify", "lm", "diffusion", "video"
  [[nodiscard]] std::vector<Checkpoint> checkpoints() const;           // by step; not looked into
  // The final weights, or with a warning those of the newest sound checkpoint. `which`: model, ema or best.
  [[nodiscard]] RunWeights weights(const std::string& which) const;

 private:
  Run(std::string who, std::filesystem::path folder, JsonValue options)
      : who_(std::move(who)), folder_(std::move(folder)), options_(std::move(options)) {}
  std::string who_;
  std::filesystem::path folder_;
  JsonValue options_;
};

// "task" of train.json. Older runs, which do not have it, are distinguished by their options.
std::string task_of(const JsonValue& options);

}  // namespace mhla::train
