// Gloo through c10d, behind an interface that is the same for LibTorch 1.13 and PyTorch 2: there ProcessGroupGloo is a
// ProcessGroup, here a Backend. All tensors are contiguous; every process makes the same calls in the same order.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "mhla/ops/torch.h"
#include "mhla/train/distributed/world.h"

namespace mhla::distributed {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Text as a store keeps it.
inline std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

class Gloo {
 public:
  virtual ~Gloo() = default;
  // Collectives start here and end in a thread of Gloo.
  virtual WorkPtr all_reduce(at::Tensor& sum) = 0;
  virtual WorkPtr all_reduce_max(at::Tensor& most) = 0;
  virtual WorkPtr broadcast(at::Tensor& tensor, int from) = 0;
  virtual WorkPtr all_gather(std::vector<at::Tensor>& all, at::Tensor& mine) = 0;
  // Part r of `mine`, cut along its first axis into as many equal parts as there are ranks, goes to rank r.
  virtual WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine) = 0;
};

// The store of the world; rank 0 serves it where nobody else does. Throws where it does not answer in time.
StorePtr open_store(const World& world, double timeout_s, bool serve);
// A store that serves other processes of this machine, at a port that the system chooses.
StorePtr serve_store(int& port);
StorePtr prefixed(const std::string& prefix, const StorePtr& store);
std::unique_ptr<Gloo> open_gloo(const World& world, const StorePtr& store, double timeout_s);

}  // namespace mhla::distributed
