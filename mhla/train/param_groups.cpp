#include "mhla/train/param_groups.h"

#include <set>

#include "mhla/core/error.h"

namespace mhla::train {

ParamKind kind_of(const std::string& name, const torch::Tensor& param) {
  const std::string last = name.substr(name.rfind('.') + 1);  // npos + 1 is 0: the whole name
  if (last == "mix") return ParamKind::kMix;
  int axes = 0;
  for (const std::int64_t size : param.sizes()) axes += size > 1 ? 1 : 0;
  static const std::set<std::string> plain = {"bias", "pos_embed", "positional_encoding", "A_log"};
  return axes <= 1 || plain.count(last) != 0 ? ParamKind::kNoDecay : ParamKind::kDecay;
}

std::vector<ParamGroup> param_groups(const torch::nn::Module& model, const TrainOptions& options) {
  std::vector<ParamGroup> groups(3);
  groups[0] = {
      .name = "decay", .mix = false, .lr_scale = 1.0, .weight_decay = options.weight_decay, .names = {}, .params = {}};
  groups[1] = {.name = "no_decay", .mix = false, .lr_scale = 1.0, .weight_decay = 0.0, .names = {}, .params = {}};
  groups[2] = {.name = "mix",
               .mix = true,
               .lr_scale = options.mix_lr_scale,
               .weight_decay = options.mix_weight_decay.value_or(0.0),
               .names = {},
               .params = {}};
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    ParamGroup& group = groups[static_cast<std::size_t>(kind_of(item.key(), item.value()))];
    group.names.push_back(item.key());
    group.params.push_back(item.value());
  }
  std::erase_if(groups, [](const ParamGroup& group) { return group.params.empty(); });
  if (groups.empty()) fail("train: the model has no parameter that is trained");
  return groups;
}

}  // namespace mhla::train
