#include "tests/cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace mhla {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& arguments, const StopWhen& stop, Reader reader,
                       const std::function<void()>& in_child) {
  const TemporaryFolder folder;
  const std::string out = folder.path("out"), err = folder.path("err");
  std::vector<std::string> words{MHLA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    int ends[2] = {-1, -1};
    if (reader == Reader::kIsGone && (pipe(ends) != 0 || close(ends[0]) != 0)) _exit(127);
    const int to_out = ends[1] >= 0 ? ends[1] : open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int to_err = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (to_out < 0 || to_err < 0 || dup2(to_out, 1) < 0 || dup2(to_err, 2) < 0) _exit(127);
    if (in_child) in_child();
    execv(argv[0], argv.data());
    _exit(127);
  }
  if (!stop.path.empty()) {
    const auto reached = [&] {
      return stop.path == kPrints ? !text_of(out).empty() : std::filesystem::exists(stop.path);
    };
    for (int i = 0; i < 6000 && !reached(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(child, stop.signal);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  ProgramRun run;
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.out = text_of(out);
  run.err = text_of(err);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  run.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return run;
}

ProgramRun run_on_terminal(const std::vector<std::string>& arguments, const std::string& when) {
  std::vector<std::string> words{MHLA_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int terminal = -1;
  winsize size{};
  size.ws_row = 25, size.ws_col = 100;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    execv(argv[0], argv.data());
    _exit(127);
  }
  ProgramRun run;
  bool typed = when.empty();
  for (;;) {  // ends when the program has closed its end
    if (!typed && std::filesystem::exists(when)) typed = ::write(terminal, "\x03", 1) == 1;
    pollfd ready{terminal, POLLIN, 0};
    if (poll(&ready, 1, 10) == 0) continue;
    char piece[4096];
    const ssize_t count = ::read(terminal, piece, sizeof piece);
    if (count <= 0) break;
    run.out.append(piece, static_cast<std::size_t>(count));
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "mhla-cli-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace mhla
