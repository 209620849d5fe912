#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mhla/train/distributed/collectives.h"
#include "mhla/train/distributed/group_collectives.h"

namespace mhla::distributed {
namespace {

// The interface that the other machines reach. Where all are on this one, the loopback: a hostname may resolve to an
// address that nobody listens at.
std::shared_ptr<::gloo::transport::Device> device_for(const World& world) {
  using Group = c10d::ProcessGroupGloo;
  if (const char* name = world_detail::variable("GLOO_SOCKET_IFNAME")) return Group::createDeviceForInterface(name);
  const bool local = world.address == "localhost" || world.address.rfind("127.", 0) == 0;
  return local ? Group::createDeviceForHostname("127.0.0.1") : Group::createDefaultDevice();
}

}  // namespace

StorePtr open_store(const World& world, double timeout_s, bool serve) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(world.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = milliseconds(std::max(timeout_s, 1.0));
  return c10::make_intrusive<c10d::TCPStore>(world.address, options);
}

StorePtr serve_store(int& port) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  port = store->getPort();
  return store;
}

StorePtr prefixed(const std::string& prefix, const StorePtr& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

std::unique_ptr<Collectives> open_gloo(const World& world, const StorePtr& store, double timeout_s) {
  auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_s));
  options->devices.push_back(device_for(world));
  options->threads = 2;  // buckets on their way at once
  using Group = c10d::ProcessGroupGloo;
  return std::make_unique<GroupCollectives<Group>>(c10::make_intrusive<Group>(store, world.rank, world.size, options));
}

}  // namespace mhla::distributed
