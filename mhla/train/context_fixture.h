// Two runs compared, for tests of processes that share sequences.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"

namespace mhla::train {

// The log in numbers: loss and norm of the gradients of all steps, then the loss of an evaluation that has one.
inline std::vector<double> losses_of(const std::filesystem::path& folder) {
  std::vector<double> losses;
  std::ifstream file(folder / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    const JsonValue row = parse_json(line, "log");
    const std::string kind = row.at("kind").as_string();
    if (const JsonValue* loss = row.find("loss"); loss != nullptr && (kind == "step" || kind == "eval"))
      losses.push_back(loss->as_double());
    if (kind == "step") losses.push_back(row.at("grad_norm").as_double());  // AdamW does not show the size of gradients
  }
  return losses;
}

// Weights of a run, all in one row.
inline std::vector<double> weights_of(const std::filesystem::path& folder) {
  std::vector<double> values;
  const Safetensors file = Safetensors::read(folder / "model.safetensors");
  for (std::size_t i = 0; i < file.size(); ++i) {
    const ConstView tensor = file.view(i);
    for (std::int64_t j = 0; j < tensor.numel(); ++j) values.push_back(load_f64(tensor.data, tensor.dtype, j));
  }
  return values;
}

inline double difference(const std::vector<double>& got, const std::vector<double>& want) {
  double square = 0, all = 0;
  if (got.size() != want.size() || want.empty()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < want.size(); ++i) {
    square += (got[i] - want[i]) * (got[i] - want[i]);
    all += want[i] * want[i];
  }
  return std::sqrt(square / all);
}

inline bool same_bytes(const std::filesystem::path& a, const std::filesystem::path& b, const char* name) {
  return read_file(a / name) == read_file(b / name);
}

}  // namespace mhla::train
