#include "mhla/modules/param_roles.h"

namespace mhla {

std::map<std::string, ParamRole> param_roles(const torch::nn::Module& model) {
  std::map<std::string, ParamRole> roles;
  for (const auto& module : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const std::string prefix = module.key() + ".";
    const auto* tagged = dynamic_cast<const HasParamRoles*>(module.value().get());
    if (tagged == nullptr) continue;
    for (const auto& [name, role] : tagged->param_roles()) roles[prefix + name] = role;
  }
  if (const auto* tagged = dynamic_cast<const HasParamRoles*>(&model)) {
    for (const auto& [name, role] : tagged->param_roles()) roles[name] = role;
  }
  for (const auto& item : model.named_parameters()) roles.emplace(item.key(), ParamRole::kWeight);
  return roles;
}

}  // namespace mhla
