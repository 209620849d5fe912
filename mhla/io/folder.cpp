#include "mhla/io/folder.h"

#include <unistd.h>

#include <cerrno>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/target.h"

namespace mhla {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) fail(path.string(), ": ", error.message());
  return type != fs::file_type::not_found;
}

bool is_folder(const fs::path& path) { return is_there(path) && fs::is_directory(path); }

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  fs::path missing = fs::absolute(follow_links(path_), error);
  if (!missing.has_filename()) missing = missing.parent_path();  // "out/"
  for (; missing.has_relative_path() && fs::symlink_status(missing, error).type() == fs::file_type::not_found;
       missing = missing.parent_path())
    made_.push_back(missing);
  if (!made_.empty()) {
    fs::create_directories(made_.front(), error);
  } else if (fs::status(path_, error).type() != fs::file_type::directory && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error && ::eaccess(path_.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  if (!error) return;
  undo();
  fail_to_write(path_, error.value());
}

OutputFolder::~OutputFolder() { undo(); }

fs::path OutputFolder::claim(const std::string& name) {
  std::error_code none;
  const fs::path file = path_ / name;
  if (fs::symlink_status(file, none).type() == fs::file_type::not_found) claimed_.push_back(file);
  return file;
}

void OutputFolder::own(fs::path file) { claimed_.push_back(std::move(file)); }

void OutputFolder::keep() {
  made_.clear();
  claimed_.clear();
}

void OutputFolder::undo() const {
  for (const fs::path& file : claimed_) ::unlink(file.c_str());
  for (const fs::path& folder : made_) ::rmdir(folder.c_str());  // those that are empty
}

}  // namespace mhla
