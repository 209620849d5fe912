#include "mhla/data/share.h"

#include <cstdlib>

namespace mhla {

std::filesystem::path share_folder() {
  if (const char* chosen = std::getenv("MHLA_SHARE"); chosen != nullptr && *chosen != 0) return chosen;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "../share/mhla").lexically_normal();
}

}  // namespace mhla
