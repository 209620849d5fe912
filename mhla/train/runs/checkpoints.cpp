#include "mhla/train/runs/checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "mhla/core/labelled.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "checkpoint.json";
constexpr std::int64_t kFormat = 1;

std::string name_of(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (name.rfind("step-", 0) != 0 || name.size() < 6 || name.size() > 23) return {};
  const std::string digits = name.substr(5);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return {};
  const std::int64_t step = std::stoll(digits);
  return name == name_of(step) ? std::optional(step) : std::nullopt;
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(to.string(), ": could not be written: ", error.message());
}

// The folder with its files on the disk, and the list of them.
void seal(const fs::path& folder, std::int64_t step) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  JsonValue listed = JsonValue::object();
  for (const fs::path& file : files) {
    listed.set(file.filename().string(), JsonValue()
                                             .set("bytes", static_cast<std::int64_t>(fs::file_size(file)))
                                             .set("crc32c", static_cast<std::int64_t>(file_crc32c(file))));
  }
  write_file(folder / kManifest,
             write_json(JsonValue().set("format", kFormat).set("step", step).set("files", listed), 2) + "\n");
  sync_directory(folder);
}

struct ListedFile {
  std::string name;
  std::uint64_t bytes = 0, checksum = 0;
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<ListedFile> files;
};

Manifest read_manifest(const fs::path& path) {
  const JsonValue json = read_json(path);
  return labelled(path.string(), [&] {
    const JsonValue* format = json.find("format");
    if (format == nullptr || format->as_int() != kFormat)
      fail("format is ", format == nullptr ? "missing" : write_json(*format), ", expected ", kFormat);
    Manifest manifest{.step = json.at("step").as_int(), .files = {}};
    for (const JsonValue::Member& file : json.at("files").members())
      manifest.files.push_back({file.key, file.value.at("bytes").as_uint(), file.value.at("crc32c").as_uint()});
    return manifest;
  });
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, std::int64_t keep) : folder_(std::move(folder)), keep_(keep) {}

Checkpoint CheckpointFolder::save(std::int64_t step, const std::function<void(const fs::path&)>& write) {
  const fs::path partial = folder_ / str(".part-", ::getpid(), "-", name_of(step));
  const Checkpoint saved{folder_ / name_of(step), step};
  try {
    if (fs::create_directory(folder_)) sync_directory(folder_.parent_path());  // a run that went away is not made again
    fs::remove_all(partial);
    fs::create_directory(partial);
    write(partial);
    seal(partial, step);
    const fs::path old = folder_ / str(".old-", ::getpid(), "-", name_of(step));
    if (fs::exists(saved.path)) rename_or_fail(saved.path, old);  // a damaged one, or it would have been resumed
    rename_or_fail(partial, saved.path);
    sync_directory(folder_);
    fs::remove_all(old);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    fs::remove(folder_, ignored);  // where it is empty
    if (const auto* thrown = dynamic_cast<const fs::filesystem_error*>(&error)) fail_as(*thrown);
    throw;
  }
  // Those of later steps are the damaged ones that a resumed run left behind: they must not count as the newest.
  std::vector<Checkpoint> all = list();
  const auto is_later = [&](const Checkpoint& one) { return one.step > step; };
  const auto later = std::count_if(all.begin(), all.end(), is_later);
  const auto surplus = static_cast<std::int64_t>(all.size()) - later - keep_;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(all.size()); ++i) {
    const Checkpoint& one = all[static_cast<std::size_t>(i)];
    if (i >= surplus && !is_later(one)) continue;
    const fs::path old = folder_ / str(".old-", ::getpid(), "-", name_of(one.step));
    rename_or_fail(one.path, old);
    fs::remove_all(old);
  }
  return saved;
}

std::vector<Checkpoint> CheckpointFolder::list() const {
  std::vector<Checkpoint> all;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, none)) {
    if (const auto step = step_of(entry.path().filename().string())) all.push_back({entry.path(), *step});
  }
  std::sort(all.begin(), all.end(), [](const Checkpoint& a, const Checkpoint& b) { return a.step < b.step; });
  return all;
}

std::optional<Checkpoint> CheckpointFolder::newest(std::vector<std::string>& complaints) const {
  for (std::vector<Checkpoint> all = list(); !all.empty(); all.pop_back()) {
    try {
      check_checkpoint(all.back());
      return all.back();
    } catch (const Error& error) {
      complaints.emplace_back(error.what());
    }
  }
  return {};
}

void CheckpointFolder::sweep() const {
  std::error_code none;
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, none)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(".part-", 0) == 0 || name.rfind(".old-", 0) == 0) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, none);
}

void CheckpointFolder::clear() const {
  std::error_code none;
  for (const Checkpoint& one : list())
    rename_or_fail(one.path, folder_ / str(".old-", ::getpid(), "-", name_of(one.step)));
  sweep();
  fs::remove(folder_, none);
}

void check_checkpoint(const Checkpoint& checkpoint) {
  const auto damaged = [&](const auto&... parts) { fail(checkpoint.path.string(), ": damaged: ", parts...); };
  const Manifest manifest = read_manifest(checkpoint.path / kManifest);
  if (manifest.step != checkpoint.step)
    damaged(kManifest, " is of step ", manifest.step, ", expected ", checkpoint.step);
  for (const ListedFile& file : manifest.files) {
    const fs::path path = checkpoint.path / file.name;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) damaged(file.name, " is missing");
    if (bytes != file.bytes) damaged(file.name, " has ", bytes, " bytes, expected ", file.bytes);
    if (file_crc32c(path) != file.checksum) damaged(file.name, " has another checksum");
  }
}

}  // namespace mhla::train
