// Folders that a job writes into.
#pragma once

#include <filesystem>
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

}  // namespace mhla
