// Sums over the steps since the last line of the log. A checkpoint keeps them, so that the line of a resumed run is
// that of the unbroken one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mhla/io/json.h"

namespace mhla::train {

struct Window {
  std::int64_t steps = 0;
  double loss = 0, weight = 0, grad_norm = 0;
  std::vector<std::pair<std::string, double>> sums;

  void add(const std::string& name, double sum) {
    for (auto& [known, value] : sums) {
      if (known == name) {
        value += sum;
        return;
      }
    }
    sums.emplace_back(name, sum);
  }
  [[nodiscard]] JsonValue to_json() const {
    JsonValue all = JsonValue::object();
    for (const auto& [name, sum] : sums) all.set(name, sum);
    return JsonValue()
        .set("steps", steps)
        .set("loss", loss)
        .set("weight", weight)
        .set("grad_norm", grad_norm)
        .set("sums", all);
  }
  static Window from_json(const JsonValue& json) {
    Window window{json.at("steps").as_int(),
                  json.at("loss").as_double(),
                  json.at("weight").as_double(),
                  json.at("grad_norm").as_double(),
                  {}};
    for (const JsonValue::Member& sum : json.at("sums").members())
      window.sums.emplace_back(sum.key, sum.value.as_double());
    return window;
  }
};

}  // namespace mhla::train
