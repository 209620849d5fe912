// One case of a golden file: its family and its inputs, for the causal operator checked against its metadata.
// Expected values are read separately, after the computation (read_expected), and never seen by it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/verify/golden_families.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "mhla/testing/tensor.h"

namespace mhla::apps {

// Throws when no family has these keys. A family that is named has its name from `config`.
GoldenFamily family_of(const JsonValue& config);

// The cases of a file in the order of its metadata, each with its tensors' names ("in.q", "grad.in.k", ...).
// A tensor whose case has no metadata, and metadata of a case without tensors, are errors; metadata that is no
// JSON object and has no tensors is not about a case ("format": "pt").
struct GoldenEntry {
  std::string name;
  std::string config;                // JSON text
  std::vector<std::string> tensors;  // without "<case>/"
};
std::vector<GoldenEntry> golden_entries(const Safetensors& file);

struct CausalCase {
  std::int64_t chunk = 0;
  std::optional<double> scale;      // not given: D^-1/2
  Tensor q, k, v, mix;              // f32, whatever the file holds
  Tensor dout;                      // not given: a forward case
  std::vector<std::string> judged;  // "out", "grad.in.q", ...
};
CausalCase read_causal_case(const Safetensors& file, const GoldenEntry& entry, const JsonValue& config);

// A case of a whole module: what goes in, and the names of what must come out.
struct ModuleCase {
  std::map<std::string, Tensor> inputs;  // in.*, param.*, dout*, f64
  std::vector<std::string> judged;       // "out", "init.mixing", "grad.in.x", ...
};
ModuleCase read_module_case(const Safetensors& file, const GoldenEntry& entry, const GoldenFamily& family);
// Whether a result must be equal to the last digit: integers and bytes.
bool is_exact(const Safetensors& file, const GoldenEntry& entry, const std::string& name);

// Tensor `<case>/<name>` in f64; throws unless it has `shape`.
Tensor read_expected(const Safetensors& file, const GoldenEntry& entry, const std::string& name,
                     const std::vector<std::int64_t>& shape);

}  // namespace mhla::apps
