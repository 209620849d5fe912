// Many small files, such as thousands of images: waiting for the disk after each takes longer than making them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace mhla {

// Writes beside the target and renames, as write_file() does, so a killed process leaves the whole file or none. It
// does not wait for the disk: after a power cut the file may be there and empty. Readers who go on with it must look,
// or call sync_files() first. May be called from several threads. The target is a regular file or not there yet.
void write_file_quickly(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Waits until everything that was written to the file system of `folder` is on the disk.
void sync_files(const std::filesystem::path& folder);

}  // namespace mhla
