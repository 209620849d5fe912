// A recorded case of published code: what went in, under the names of a golden file ("in.x", "param.blocks.0...",
// "dout"), and the options it ran with. `mhla verify --golden` and the tests of a room compute the rest from it.
#pragma once

#include <initializer_list>

#include "mhla/io/json.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

struct RecordedCase {
  JsonValue config;  // the metadata of the case
  Weights tensors;

  [[nodiscard]] bool has(const std::string& name) const { return tensors.count(name) != 0; }
  [[nodiscard]] const torch::Tensor& tensor(const std::string& name) const;  // refuses a name that is not there
  [[nodiscard]] torch::Tensor leaf(const std::string& name) const;           // a copy that takes gradients
  [[nodiscard]] torch::Tensor index(const std::string& name) const;          // as int64, whatever it was stored as
  [[nodiscard]] Weights weights(const std::string& prefix) const;

  // Options of the metadata, refused by name where they are missing and have no other value.
  [[nodiscard]] std::int64_t integer(const char* key) const;
  [[nodiscard]] double number(const char* key, double otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::string text(const char* key, const char* otherwise) const;
  // Refuses options that are not among these, as they would be computed wrongly.
  void expect_keys(std::initializer_list<const char*> known) const;
};

// A case of a golden file. Expected values come along: for tests.
RecordedCase read_recorded(const std::filesystem::path& file, const std::string& name);
std::vector<std::string> recorded_names(const std::filesystem::path& file);

}  // namespace mhla
