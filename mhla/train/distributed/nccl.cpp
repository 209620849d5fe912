// NCCL through c10d. Its headers come with PyTorch's CUDA wheels, nccl.h with the wheel of NCCL beside it
// (cmake/nccl.cmake); without them MHLA_NCCL_MISSING says why.
#include "mhla/core/error.h"
#include "mhla/train/distributed/collectives.h"

#ifndef MHLA_NCCL_MISSING

#include <ATen/cuda/CUDAContext.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mhla/train/distributed/group_collectives.h"

namespace mhla::distributed {
namespace {

using Group = c10d::ProcessGroupNCCL;

class NcclCollectives final : public GroupCollectives<Group> {
 public:
  using GroupCollectives::GroupCollectives;
  ~NcclCollectives() override {
    try {
      group_->shutdown();
    } catch (const std::exception&) {  // the others have gone already
    }
  }
};

}  // namespace

std::unique_ptr<Collectives> open_nccl(const World& world, const StorePtr& store, double timeout_s) {
  const auto options = Group::Options::create();
  options->timeout = milliseconds(timeout_s);
  return std::make_unique<NcclCollectives>(c10::make_intrusive<Group>(store, world.rank, world.size, options));
}

std::string nccl_missing() { return {}; }

std::string card_of(const at::Device& device) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const cudaDeviceProp& card = *at::cuda::getDeviceProperties(device.index());
  return str(host, "/", card.pciDomainID, ":", card.pciBusID, ":", card.pciDeviceID);
}

}  // namespace mhla::distributed

#else

namespace mhla::distributed {

std::unique_ptr<Collectives> open_nccl(const World&, const StorePtr&, double) {
  fail("train: NCCL is not in this build: ", nccl_missing());
}

std::string nccl_missing() { return MHLA_NCCL_MISSING; }

std::string card_of(const at::Device&) { return {}; }

}  // namespace mhla::distributed

#endif
