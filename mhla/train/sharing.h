// `--context-parallel`: processes that share every sequence of a training, each with a part of its tokens.
#pragma once

#include "mhla/modules/context_share.h"
#include "mhla/train/distributed/team_context.h"
#include "mhla/train/options.h"

namespace mhla::train {

// How the layers of a model use a sequence.
struct SharedKind {
  ops::ContextShape shape;  // of one sample; in precision and device as the options say
  ops::PhaseOptions whole;  // layout, tokens, normaliser
  std::int64_t halo = 0;    // tokens that a convolution reads across the cut
  std::string halo_of;      // its option: "lepe"
};

// What the processes exchange for one layer and batch. Throws mhla::Error naming what cannot be cut.
ops::ContextPlan sharing_plan(const TrainOptions& options, SharedKind kind);
std::string describe_sharing(const TrainOptions& options, const SharedKind& kind);  // in words

// The layers of `model` share sequences from now on; nothing where each process has its own.
class SharedSequences {
 public:
  SharedSequences(torch::nn::Module& model, const TrainOptions& options);
  [[nodiscard]] ContextShare* maybe_share() const { return share_.get(); }

 private:
  std::unique_ptr<distributed::TeamContext> group_;
  std::shared_ptr<ContextShare> share_;
};

}  // namespace mhla::train
