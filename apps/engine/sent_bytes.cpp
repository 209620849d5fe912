#include "apps/engine/sent_bytes.h"

#include <arpa/inet.h>
#include <linux/tcp.h>  // not netinet/tcp.h, whose tcp_info ends before the counts
#include <sys/socket.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace mhla::apps {

std::optional<std::int64_t> tcp_bytes_sent(int but) {
  std::int64_t sum = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const int socket = std::atoi(entry.path().filename().c_str());
    int protocol = 0;
    socklen_t size = sizeof protocol;
    if (::getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) continue;
    sockaddr_storage other{};
    socklen_t other_size = sizeof other;
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) != 0) continue;  // it listens
    const int port = ntohs(other.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(other).sin6_port
                                                       : reinterpret_cast<const sockaddr_in&>(other).sin_port);
    if (port == but) continue;
    tcp_info info{};
    socklen_t info_size = sizeof info;
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0) continue;
    if (info_size < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return {};
    sum += static_cast<std::int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return sum;
}

std::optional<std::int64_t> tcp_bytes_of(distributed::Team* maybe_team, const std::function<void()>& work) {
  const int store = maybe_team == nullptr ? 0 : maybe_team->world().port;
  if (maybe_team != nullptr) maybe_team->barrier();
  const std::optional<std::int64_t> before = tcp_bytes_sent(store);
  work();
  if (maybe_team != nullptr) maybe_team->barrier();
  const std::optional<std::int64_t> after = tcp_bytes_sent(store);
  if (!before || !after) return {};
  return *after - *before;
}

}  // namespace mhla::apps
