// What comes with the program: a text, a small model that generates images.
#pragma once

#include <filesystem>

namespace mhla {

// share/mhla beside the program's own folder, or where MHLA_SHARE points.
std::filesystem::path share_folder();

inline constexpr const char* kSampleGenerator = "sample/dit_d32_fashion";  // in it: a DiT for Fashion-MNIST

}  // namespace mhla
