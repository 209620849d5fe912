#include "mhla/io/folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

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

namespace {

constexpr const char* kStaged = ".new-";  // then the process

// What processes left that were killed.
void remove_stale(const fs::path& folder) {
  std::error_code none;
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kStaged, 0) != 0) continue;
    const auto process = static_cast<pid_t>(std::strtol(name.c_str() + std::strlen(kStaged), nullptr, 10));
    if (process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove_all(path, none);
}

// Links stay, the file they lead to is replaced, also on another disk.
void move_file(const fs::path& from, const fs::path& to) {
  const fs::path target = follow_links(to);
  std::error_code error;
  fs::rename(from, target, error);
  if (error == std::errc::cross_device_link) {
    const MappedFile bytes(from);
    write_file(to, bytes.bytes());
  } else if (error) {
    fail_to_write(to, error.value());
  }
}

}  // namespace

StagedFolder::StagedFolder(fs::path target, std::string last)
    : target_(std::move(target)), path_(target_ / str(kStaged, ::getpid())), last_(std::move(last)) {
  remove_stale(target_);
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) fail_to_write(target_, error.value());
}

StagedFolder::~StagedFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
}

void StagedFolder::commit(const std::function<bool(const std::string&)>& is_old,
                          const std::function<void()>& before_step) {
  const auto step = [&] {
    if (before_step) before_step();
  };
  std::vector<std::string> names, old;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::stable_partition(names.begin(), names.end(), [&](const std::string& name) { return name != last_; });
  for (const std::string& name : names) (void)AtomicFile(target_ / name);  // what may not be written is found now
  if (is_there(target_ / last_)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(target_)) {
      const std::string name = entry.path().filename().string();
      const bool replaced = std::find(names.begin(), names.end(), name) != names.end();
      if (!replaced && entry.is_regular_file() && is_old(name)) old.push_back(name);
    }
    step();
    // Of a link the file that it leads to: the link stays, and leads nowhere for a moment.
    fs::remove(follow_links(target_ / last_));
    sync_directory(target_);
    for (const std::string& name : old) {
      step();
      fs::remove(target_ / name);
    }
  }
  for (const std::string& name : names) {
    step();
    if (name == last_) sync_directory(target_);  // the others are on the disk before it
    move_file(path_ / name, target_ / name);
  }
  sync_directory(target_);
}

}  // namespace mhla
