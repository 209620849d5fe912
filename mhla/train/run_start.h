// How a run begins in its folder, and what it must not do there: nothing that an earlier run left is written over
// unless the caller says so.
#pragma once

#include <filesystem>

#include "mhla/io/json.h"

namespace mhla::train {

struct RunStart {
  bool resume = false;     // from the newest sound checkpoint of the folder, or from the start where it has no run
  bool overwrite = false;  // anew; the files of a run that is there are removed first
  JsonValue said = JsonValue::object();  // members of the first row of the log, besides its own
};

// Before anything is written: an Error where the folder has a run that this start would write over, or one that cannot
// go on.
void expect_room(const std::filesystem::path& folder, const RunStart& start);

// Removes what a run writes (trainer.h), by name; tokens/ and whatever else lies there stays.
void remove_run(const std::filesystem::path& folder);

// A folder for a run, made where it is not there. What was made is gone again, where it is empty, unless keep() was
// called. A place that cannot be written to is an Error, a full disk RunFailed.
class NewRunFolder {
 public:
  explicit NewRunFolder(const std::filesystem::path& folder);
  ~NewRunFolder();
  NewRunFolder(const NewRunFolder&) = delete;
  NewRunFolder& operator=(const NewRunFolder&) = delete;
  void keep() { kept_ = true; }

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // the innermost first
  bool kept_ = false;
};

}  // namespace mhla::train
