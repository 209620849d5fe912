// Runs the mhla program as a user does, and keeps what it printed.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace mhla {

struct ProgramRun {
  int code = -1;             // exit code; -1 when it died by a signal
  std::string out, err;      // stdout, stderr
  double cpu_seconds = 0.0;  // its own processor time
  double seconds = 0.0;      // from start to end
};

// A signal to the program as soon as there is a file or folder of this name, or with kPrints anything on its stdout, or
// after a minute.
inline constexpr const char* kPrints = "stdout";
struct StopWhen {
  std::string path;
  int signal = 0;
};
enum class Reader { kListens, kIsGone };  // of stdout; kIsGone: a pipe that is closed at the other end
// `in_child` is called in the new process before the program begins: limits, another user.
ProgramRun run_program(const std::vector<std::string>& arguments, const StopWhen& stop = {},
                       Reader reader = Reader::kListens, const std::function<void()>& in_child = {});

// On a terminal of 100 columns: all it shows is `out`. As soon as there is a file or folder `when`, ^C is typed.
ProgramRun run_on_terminal(const std::vector<std::string>& arguments, const std::string& when = "");

std::vector<std::string> lines_of(const std::string& text);

// A folder of its own that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace mhla
