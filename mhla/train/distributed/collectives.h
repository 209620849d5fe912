// Collectives of c10d, Gloo's and NCCL's, behind an interface that is the same for LibTorch 1.13 and PyTorch 2: there a
// ProcessGroupGloo is a ProcessGroup, here a Backend. All tensors are contiguous; every process makes the same calls in
// the same order.
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

class Collectives {
 public:
  virtual ~Collectives() = default;
  // They start here and end in a thread of Gloo, or on a stream of NCCL.
  virtual WorkPtr all_reduce(at::Tensor& sum) = 0;
  virtual WorkPtr all_reduce_max(at::Tensor& most) = 0;
  virtual WorkPtr broadcast(at::Tensor& tensor, int from) = 0;
  virtual WorkPtr all_gather(std::vector<at::Tensor>& all, at::Tensor& mine) = 0;
  // Part r of `mine`, cut along its first axis into as many equal parts as there are ranks, goes to rank r.
  virtual WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine) = 0;
  // The same with parts of so many rows for every rank, and from every rank.
  virtual WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine, std::vector<std::int64_t> receive,
                             std::vector<std::int64_t> send) = 0;
};

// The store of the world; rank 0 serves it where nobody else does. Throws where it does not answer in time.
StorePtr open_store(const World& world, double timeout_s, bool serve);
// A store that serves other processes of this machine, at a port that the system chooses.
StorePtr serve_store(int& port);
StorePtr prefixed(const std::string& prefix, const StorePtr& store);
// For tensors anywhere: those of a GPU go through host memory.
std::unique_ptr<Collectives> open_gloo(const World& world, const StorePtr& store, double timeout_s);

// For tensors of a GPU, of which every rank has one of its own.
std::unique_ptr<Collectives> open_nccl(const World& world, const StorePtr& store, double timeout_s);
std::string nccl_missing();                     // why this build has no NCCL; empty: it has
std::string card_of(const at::Device& device);  // a name that no other card has, on this machine or another

}  // namespace mhla::distributed
