#include "mhla/train/distributed/gloo.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace mhla::distributed {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

// The interface that the other machines reach. Where all are on this one, the loopback: a hostname may resolve to an
// address that nobody listens at.
std::shared_ptr<::gloo::transport::Device> device_for(const World& world) {
  using Group = c10d::ProcessGroupGloo;
  if (const char* name = world_detail::variable("GLOO_SOCKET_IFNAME")) return Group::createDeviceForInterface(name);
  const bool local = world.address == "localhost" || world.address.rfind("127.", 0) == 0;
  return local ? Group::createDeviceForHostname("127.0.0.1") : Group::createDefaultDevice();
}

class GlooGroup final : public Gloo {
 public:
  GlooGroup(const World& world, const StorePtr& store, double timeout_s) {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_s));
    options->devices.push_back(device_for(world));
    options->threads = 2;  // buckets on their way at once
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank, world.size, options);
  }
  WorkPtr all_reduce(at::Tensor& sum) override {
    std::vector<at::Tensor> tensors{sum};
    return group_->allreduce(tensors);
  }
  WorkPtr all_reduce_max(at::Tensor& most) override {
    std::vector<at::Tensor> tensors{most};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return group_->allreduce(tensors, options);
  }
  WorkPtr broadcast(at::Tensor& tensor, int from) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return group_->broadcast(tensors, options);
  }
  WorkPtr all_gather(std::vector<at::Tensor>& all, at::Tensor& mine) override {
    std::vector<std::vector<at::Tensor>> outputs{all};
    std::vector<at::Tensor> inputs{mine};
    return group_->allgather(outputs, inputs);
  }
  WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine) override {
    std::vector<std::int64_t> equal_out, equal_in;
    return group_->alltoall_base(theirs, mine, equal_out, equal_in);
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

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

std::unique_ptr<Gloo> open_gloo(const World& world, const StorePtr& store, double timeout_s) {
  return std::make_unique<GlooGroup>(world, store, timeout_s);
}

}  // namespace mhla::distributed
