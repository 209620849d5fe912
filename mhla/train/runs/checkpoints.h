// Checkpoints of a run, "step-00000100" and so on in one folder, that survive whatever happens to the process.
//
// A checkpoint is a folder: its files, and checkpoint.json with the length and CRC-32C of each. It is written under
// another name (".part-..."), every file and folder synced, then renamed: under its own name it is always complete.
// Old ones are renamed (".old-...") before they are removed, for the same reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mhla::train {

struct Checkpoint {
  std::filesystem::path path;
  std::int64_t step = 0;
};

class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  // `write` puts the files into the folder it is given. Then all but the newest `keep` up to
  // this step are removed.
  Checkpoint save(std::int64_t step, const std::function<void(const std::filesystem::path&)>& write);

  [[nodiscard]] std::vector<Checkpoint> list() const;  // by step; not looked into
  // The newest one that is sound; what is wrong with newer ones goes to `complaints`.
  [[nodiscard]] std::optional<Checkpoint> newest(std::vector<std::string>& complaints) const;
  void sweep() const;  // removes what an interrupted process left behind
  void clear() const;  // removes all checkpoints, and the folder where nothing else is in it

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

// Throws mhla::Error naming the file that is missing, has another length or another checksum.
void check_checkpoint(const Checkpoint& checkpoint);

}  // namespace mhla::train
