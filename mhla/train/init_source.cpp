#include "mhla/train/init_source.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/models/weights_file.h"
#include "mhla/models/weights_folder.h"

namespace mhla::train {

Weights read_init(const InitSource& source) {
  Weights weights;
  const bool shards = source.file.extension() == ".json";
  for (const auto& [name, value] : shards ? mapped_weights(source.file) : read_weights(source.file)) {
    if (name.rfind(source.prefix, 0) == 0) weights[name.substr(source.prefix.size())] = value;
  }
  return weights;
}

void expect_same_network(const InitSource& source, const JsonValue& from, const JsonValue& to,
                         const std::set<std::string>& may_differ) {
  for (const JsonValue::Member& member : to.members()) {
    const JsonValue& theirs = from.at(member.key);
    if (may_differ.count(member.key) == 0 && !(theirs == member.value))
      fail("train: init is ", source.name, ", whose ", member.key, " is ", write_json(theirs), ", but the network has ",
           write_json(member.value));
  }
}

bool has_own_names(const Weights& own, const Weights& published, const Weights& given) {
  const auto known_to = [&](const Weights& names) {
    return std::count_if(given.begin(), given.end(), [&](const auto& item) { return names.count(item.first) != 0; });
  };
  return known_to(own) >= known_to(published);
}

}  // namespace mhla::train
