// Real processes over loopback for tests, forked before LibTorch has started a thread.
#pragma once

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mhla/core/seconds.h"
#include "mhla/train/distributed/team.h"

namespace mhla::distributed {

// A port that was free a moment ago.
inline int free_port() {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (::bind(server, reinterpret_cast<sockaddr*>(&at), size) != 0 ||
      ::getsockname(server, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    throw std::runtime_error("no free port");
  ::close(server);
  return ntohs(at.sin_port);
}

struct RankEnd {
  int code = -1;  // -1: ended by a signal
  std::string said;
  double seconds = 0;  // since the team was started
};

// Processes of one team. Each runs `body` with its rank and may say something; what it throws is said, with code 1 (2
// after an Error).
class TeamProcesses {
 public:
  using Body = std::function<std::string(const World&)>;
  TeamProcesses(int size, const Body& body) : start_(std::chrono::steady_clock::now()) {
    const int port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      said_.push_back(static_cast<char*>(page));
      const pid_t child = ::fork();
      if (child == 0) run(body, world_of(rank, size, port), said_.back());
      children_.push_back(child);
    }
  }
  ~TeamProcesses() {
    for (const pid_t child : children_)
      if (child > 0) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
    for (char* page : said_) ::munmap(page, kPage);
  }
  TeamProcesses(const TeamProcesses&) = delete;
  TeamProcesses& operator=(const TeamProcesses&) = delete;

  void signal(int rank, int number) { ::kill(children_[static_cast<std::size_t>(rank)], number); }
  // All but `left_out`, at most `limit_s` from the start: then they are killed, which is code -1.
  std::vector<RankEnd> wait(double limit_s, int left_out = -1) {
    std::vector<RankEnd> ends(children_.size());
    for (bool running = true; running;) {
      running = false;
      for (std::size_t i = 0; i < children_.size(); ++i) {
        if (static_cast<int>(i) == left_out || children_[i] <= 0) continue;
        int status = 0;
        if (seconds_since(start_) > limit_s) ::kill(children_[i], SIGKILL);
        if (::waitpid(children_[i], &status, WNOHANG) != children_[i]) {
          running = true;
          continue;
        }
        children_[i] = 0;
        ends[i] = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said_[i], seconds_since(start_)};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return ends;
  }
  [[nodiscard]] std::string said(int rank) const { return said_[static_cast<std::size_t>(rank)]; }

 private:
  static constexpr std::size_t kPage = 1 << 16;
  static World world_of(int rank, int size, int port) {
    World world;
    world.rank = world.local_rank = rank, world.size = world.local_size = size, world.port = port;
    return world;
  }
  [[noreturn]] static void run(const Body& body, const World& world, char* said) {
    int code = 0;
    std::string text;
    try {
      text = body(world);
    } catch (const Error& error) {
      code = 2, text = error.what();
    } catch (const std::exception& error) {
      code = 1, text = error.what();
    }
    std::strncpy(said, text.c_str(), kPage - 1);
    ::_exit(code);
  }
  std::chrono::steady_clock::time_point start_;
  std::vector<pid_t> children_;
  std::vector<char*> said_;
};

}  // namespace mhla::distributed
