// Folders that a job writes into.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mhla {

// Whether something is there, and is a folder. What cannot be looked at (no permission, a name that is too long, links
// in a circle) is an Error with path and reason, where std::filesystem throws something else or says no.
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

// Made when it is not there, with the folders above it; links are followed. A job that fails leaves nothing behind:
// until keep(), the files of claim() that were not there before go with it, and the folders that it made where they are
// empty.
class OutputFolder {
 public:
  // An Error (or RunFailed: a full disk) names `path` and the reason, also for a folder that may not be written to.
  explicit OutputFolder(std::filesystem::path path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path claim(const std::string& name);  // of a file that is about to be written in it
  void own(std::filesystem::path file);                  // that was made for this job
  void keep();                                           // the job is done

 private:
  void undo() const;
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_, claimed_;  // folders, the innermost first; files
};

// Files that belong together, such as weights and the config.json that says what they are. They are written into a
// folder of their own inside the target, and commit() moves them under their names. A process that ends on the way
// leaves the old files, the new ones, or a folder without `last`, which is not opened: never some of each.
class StagedFolder {
 public:
  explicit StagedFolder(std::filesystem::path target, std::string last = "config.json");
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }  // to write into
  // `is_old`: files of the target, by name, that belong to what is replaced and go with it where `last` was there.
  // `before_step` is called before every change in the target, for tests that end there.
  void commit(const std::function<bool(const std::string&)>& is_old, const std::function<void()>& before_step = {});

 private:
  std::filesystem::path target_, path_;
  std::string last_;
};

}  // namespace mhla
