// How a run begins in its folder, and what it must not do there: nothing that an earlier run left is written over
// unless the caller says so.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mhla/io/json.h"

namespace mhla::train {

struct RunStart {
  bool resume = false;     // from the newest sound checkpoint of the folder, or from the start where it has no run
  bool overwrite = false;  // anew; the files of a run that is there are removed first
  JsonValue said = JsonValue::object();  // members of the first row of the log, besides its own
};

inline constexpr const char* kPictures = "samples";  // folder of a run: what its model makes, step by step

// Before anything is written: an Error where the folder has a run that this start would write over, or one that cannot
// go on.
void expect_room(const std::filesystem::path& folder, const RunStart& start);

// Removes what a run writes (trainer.h), by name; tokens/ and whatever else lies there stays.
void remove_run(const std::filesystem::path& folder);

// Names of the files that a run writes when it begins.
std::vector<std::string> files_of_start();

}  // namespace mhla::train
