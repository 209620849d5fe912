// Whole files in and out, with errors that name the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mhla {

std::vector<std::byte> read_file(const std::filesystem::path& path);

// Writes beside the target and renames: a reader sees the old file or the new one, never half of it.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace mhla
