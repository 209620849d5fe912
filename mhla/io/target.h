// Where bytes for a path go. Private to this room.
#pragma once

#include <filesystem>

namespace mhla {

struct WriteTarget {
  std::filesystem::path path;  // never a link
  bool stream = false;         // a pipe or character device: written to as it is, never replaced
};

// Follows symbolic links to the file they lead to, there or not. Refuses folders, sockets, block devices and whatever
// cannot be looked at, naming `path`.
WriteTarget write_target(const std::filesystem::path& path);

// The path that a chain of links ends at, there or not.
std::filesystem::path follow_links(const std::filesystem::path& path);

// Writing to a pipe that nobody reads any more sends SIGPIPE, which ends the process. While this lives, the calling
// thread gets the error alone.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  bool pending_ = false, blocked_ = false;  // before it came
};

}  // namespace mhla
