// Collectives (collectives.h) of one of c10d's process groups. Private to the files that open one.
#pragma once

#include <chrono>
#include <utility>

#include "mhla/train/distributed/collectives.h"

namespace mhla::distributed {

inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

template <class Group>
class GroupCollectives : public Collectives {
 public:
  explicit GroupCollectives(c10::intrusive_ptr<Group> group) : group_(std::move(group)) {}
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
  WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine) override { return all_to_all(theirs, mine, {}, {}); }
  WorkPtr all_to_all(at::Tensor& theirs, at::Tensor& mine, std::vector<std::int64_t> receive,
                     std::vector<std::int64_t> send) override {
    return group_->alltoall_base(theirs, mine, receive, send);
  }

 protected:
  c10::intrusive_ptr<Group> group_;
};

}  // namespace mhla::distributed
