#include "apps/engine/launch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "apps/commands.h"
#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/io/json.h"
#include "mhla/train/distributed/collectives.h"
#include "mhla/train/distributed/watch.h"

namespace mhla::apps {
namespace {

namespace dist = mhla::distributed;

volatile std::sig_atomic_t passed_on = 0;
extern "C" void pass_on(int signal) { passed_on = signal; }

// Signals go to the processes, once each: they are in a group of their own, which the terminal does not know.
class PassedSignals {
 public:
  PassedSignals() {
    passed_on = 0;
    struct sigaction action {};
    action.sa_handler = pass_on;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &kept_int_);
    sigaction(SIGTERM, &action, &kept_term_);
  }
  ~PassedSignals() {
    sigaction(SIGINT, &kept_int_, nullptr);
    sigaction(SIGTERM, &kept_term_, nullptr);
  }
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;
  static int take() { return std::exchange(passed_on, 0); }

 private:
  struct sigaction kept_int_ {
  }, kept_term_{};
};

// What the processes tell: lines in a pipe, read when all have ended. They fit its buffer, or a process would wait.
class Told {
 public:
  explicit Told(bool listens) {
    if (listens && ::pipe(ends_) != 0) throw RunFailed(str("no pipe: ", std::strerror(errno)));
  }
  ~Told() { close_writer(), close_end(ends_[0]); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  [[nodiscard]] int writer() const { return ends_[1]; }  // -1: none

  // All of it, as rows.
  void give(train::Observer& observer) {
    if (ends_[0] < 0) return;
    close_writer();
    std::string text;
    char piece[4096];
    for (ssize_t n = 0; (n = ::read(ends_[0], piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<std::size_t>(n));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) observer.row(parse_json(line, "a process"));
  }

 private:
  static void close_end(int& end) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
  void close_writer() { close_end(ends_[1]); }
  int ends_[2] = {-1, -1};
};

std::vector<std::string> environment_of(std::int64_t rank, std::int64_t size, int port, int told) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(std::min(text.size(), text.find('=') + 1));
  }
  const std::string of_rank = std::to_string(rank), of_size = std::to_string(size);
  variables["RANK"] = variables["LOCAL_RANK"] = of_rank;
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = of_size;
  variables["MASTER_ADDR"] = "127.0.0.1", variables["MASTER_PORT"] = std::to_string(port);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True", variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  if (told >= 0) variables[kTellVariable] = std::to_string(told);
  std::vector<std::string> all;
  for (const auto& [name, value] : variables) all.push_back(str(name, "=", value));
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

pid_t start_process(const LaunchRequest& request, std::int64_t rank, int port, int told) {
  std::vector<std::string> arguments = request.words, variables = environment_of(rank, request.nproc, port, told);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const pid_t child = fork();
  if (child != 0) return child;
  // Only what is safe between fork and exec in a process with threads.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::execve("/proc/self/exe", argv.data(), envp.data());
  ::_exit(127);
}

constexpr double kGrace = 30;  // seconds from the first failure to the end of all, as torchrun has it

struct Child {
  pid_t process = 0;  // 0: has ended
  int code = 0;       // -1: by a signal
  bool stopped = false;
};

}  // namespace

void launch(const LaunchRequest& request, train::Observer& observer) {
  const std::int64_t size = request.nproc;
  int port = 0;
  const dist::StorePtr store = dist::serve_store(port);
  const dist::StorePtr team_store = dist::prefixed("mhla/0", store);
  const PassedSignals signals;
  Told told(request.listens);
  std::vector<Child> children(static_cast<std::size_t>(size));
  for (std::int64_t rank = 0; rank < size; ++rank) {
    Child& child = children[static_cast<std::size_t>(rank)];
    child.process = start_process(request, rank, port, told.writer());
    if (child.process < 0) {
      const std::string why = std::strerror(errno);
      for (const Child& other : children)
        if (other.process > 0) kill(other.process, SIGKILL), waitpid(other.process, nullptr, 0);
      throw RunFailed(str("train: process ", rank, " of ", size, " could not be started: ", why));
    }
  }
  std::optional<std::chrono::steady_clock::time_point> failed_at;
  std::string killed;  // the first process that a signal ended
  for (std::int64_t running = size; running > 0;) {
    if (const int signal = PassedSignals::take(); signal != 0)
      for (const Child& child : children)
        if (child.process > 0) kill(child.process, signal);
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      Child& child = children[rank];
      int status = 0;
      if (child.process == 0 || waitpid(child.process, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.process)
        continue;
      child.stopped = WIFSTOPPED(status);
      if (child.stopped || WIFCONTINUED(status)) continue;
      child = {0, WIFEXITED(status) ? WEXITSTATUS(status) : -1, false}, --running;
      if (child.code != 0 && !failed_at) failed_at = std::chrono::steady_clock::now();
      if (child.code != -1) continue;
      const std::string reason =
          str("it was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
      team_store->compareSet(dist::kFailed, {}, dist::bytes_of(str(rank, "\n", reason)));
      if (killed.empty()) killed = str("train: rank ", rank, " failed: ", reason);
    }
    // The others leave by themselves, unless they were stopped.
    for (const Child& child : children)
      if (failed_at && child.process > 0 && (child.stopped || seconds_since(*failed_at) > kGrace))
        kill(child.process, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!failed_at) return told.give(observer);
  int code = kFailed;
  for (const Child& child : children)
    if (child.code == kCallersMistake && killed.empty()) code = kCallersMistake;
  if (!killed.empty() && !team_store->check({dist::kTold})) throw RunFailed(killed);
  throw SaidElsewhere{code};
}

}  // namespace mhla::apps
