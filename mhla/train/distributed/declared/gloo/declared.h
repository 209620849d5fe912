// What ProcessGroupGloo.hpp needs to know of Gloo. Its objects are made and used inside LibTorch; here they have names.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {
class Context {
 public:
  std::chrono::milliseconds getTimeout() const;
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace rendezvous {
class Store {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(30);
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous
namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};
}  // namespace transport
}  // namespace gloo
