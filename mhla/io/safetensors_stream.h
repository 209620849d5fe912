// write_safetensors (safetensors.h) where not all of it is in memory: tensors whose data is null come later. When the
// turn of one has come, `later` gives all of its bytes to the sink, in pieces of any size. Turns come by element size,
// largest first, then by name.
#pragma once

#include <functional>

#include "mhla/io/safetensors.h"

namespace mhla {

using ByteSink = std::function<void(std::span<const std::byte>)>;
using LaterBytes = std::function<void(const NamedView&, const ByteSink&)>;
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata, const LaterBytes& later);

}  // namespace mhla
