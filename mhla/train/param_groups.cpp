#include "mhla/train/param_groups.h"

#include "mhla/core/error.h"
#include "mhla/modules/param_roles.h"

namespace mhla::train {

namespace {

enum Group { kDecay, kNoDecay, kMix };

bool is_vector(const torch::Tensor& param) {
  int axes = 0;
  for (const std::int64_t size : param.sizes()) axes += size > 1 ? 1 : 0;
  return axes <= 1;
}

Group group_of(ParamRole role, const torch::Tensor& param) {
  if (role == ParamRole::kMix) return kMix;
  return role == ParamRole::kTable || is_vector(param) ? kNoDecay : kDecay;
}

}  // namespace

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
  const std::map<std::string, ParamRole> roles = param_roles(model);
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    ParamGroup& group = groups[group_of(roles.at(item.key()), item.value())];
    group.names.push_back(item.key());
    group.params.push_back(item.value());
  }
  std::erase_if(groups, [](const ParamGroup& group) { return group.params.empty(); });
  if (groups.empty()) fail("train: the model has no parameter that is trained");
  return groups;
}

}  // namespace mhla::train
