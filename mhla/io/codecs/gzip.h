// gzip files, whole: several members one after the other are one file. Checksums and lengths are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mhla {

[[nodiscard]] bool is_gzip(std::span<const std::byte> bytes);  // by the first bytes

// Refuses more than `limit` bytes of result; `label` opens an error.
std::vector<std::byte> gunzip(std::span<const std::byte> bytes, const std::string& label,
                              std::uint64_t limit = std::uint64_t{4} << 30);

std::vector<std::byte> gzip(std::span<const std::byte> bytes);

}  // namespace mhla
