// CRC-32C (Castagnoli): the checksum of TFRecord files and of checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace mhla {

// Of `bytes` behind what gave `before`, so that a long text can come in pieces. "123456789" has 0xe3069283.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t file_crc32c(const std::filesystem::path& path);

}  // namespace mhla
