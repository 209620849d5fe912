#include "apps/verify/golden_case.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/cli/joined.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_integer(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kU8; }

double load_number(const ConstView& from, std::int64_t index) {
  switch (from.dtype) {
    case DType::kI64: return static_cast<double>(static_cast<const std::int64_t*>(from.data)[index]);
    case DType::kI32: return static_cast<const std::int32_t*>(from.data)[index];
    case DType::kU8: return static_cast<const std::uint8_t*>(from.data)[index];
    default: return load_f64(from.data, from.dtype, index);
  }
}

Tensor read_as(const Safetensors& file, const GoldenEntry& entry, const std::string& name, DType dtype,
               bool integers = false) {
  if (!has(entry.tensors, name)) fail(name, " is missing; the case has ", joined(entry.tensors));
  const ConstView stored = file.view(entry.name + "/" + name);
  if (!is_float(stored.dtype) && !(integers && is_integer(stored.dtype)))
    fail(name, " has dtype ", mhla::name_of(stored.dtype), ", expected a float type");
  if (stored.rank == 0) fail(name, " is a scalar, expected a tensor");
  Tensor tensor(dtype, {stored.shape.begin(), stored.shape.begin() + stored.rank});
  if (tensor.numel() == 0) fail(name, " has shape ", shape_text(stored), ": nothing to compute or judge");
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.set(i, load_number(stored, i));
  return tensor;
}

void expect_rank(const Tensor& tensor, const char* name, std::size_t rank, const char* letters) {
  if (tensor.shape().size() != rank) fail(name, " has shape ", shape_text(tensor.shape()), ", expected ", letters);
}

void expect_shape(const Tensor& tensor, const std::string& name, const std::vector<std::int64_t>& shape) {
  if (tensor.shape() != shape) fail(name, " has shape ", shape_text(tensor.shape()), ", expected ", shape_text(shape));
}

std::int64_t positive_int(const JsonValue& config, const char* key) {
  std::int64_t value = 0;
  try {
    value = config.at(key).as_int();
  } catch (const Error& error) {
    fail("metadata '", key, "': ", error.what());
  }
  if (value < 1) fail("metadata '", key, "' is ", value, ", expected a positive integer");
  return value;
}

// A size that the metadata may repeat must be the tensors' size.
void expect_size(const JsonValue& config, const char* key, std::int64_t size, const char* where) {
  if (!config.contains(key)) return;
  const std::int64_t said = positive_int(config, key);
  if (said != size) fail("metadata '", key, "' is ", said, ", but ", where, " has ", size);
}

void refuse_unknown_options(const JsonValue& config) {
  static constexpr const char* kKnown[] = {"B", "T", "H", "Hkv", "K", "V", "chunk", "blocks", "scale"};
  static constexpr const char* kHarmless[] = {"seed", "device",
                                              "dtype"};  // how the case was made, not what it computes
  for (const JsonValue::Member& member : config.members()) {
    bool known = false;
    for (const char* key : kKnown) known = known || member.key == key;
    for (const char* key : kHarmless) known = known || member.key == key;
    if (!known)
      fail("metadata '", member.key,
           "' is not an option of the causal operator: B, T, H, Hkv, K, V, chunk, blocks, scale");
  }
}

void refuse_unknown_tensors(const GoldenEntry& entry) {
  static const std::vector<std::string> kKnown = {"in.q", "in.k",      "in.v",      "in.mix",    "out",
                                                  "dout", "grad.in.q", "grad.in.k", "grad.in.v", "grad.in.mix"};
  for (const std::string& name : entry.tensors)
    if (!has(kKnown, name)) fail("tensor ", name, " does not belong to the causal operator: ", joined(kKnown));
}

// A case whose metadata names another as `param_case` has that one's parameters.
void add_lent_parameters(const Safetensors& file, const GoldenEntry& entry, ModuleCase& c) {
  const JsonValue config = parse_json(entry.config, "metadata");
  const JsonValue* lender = config.find("param_case");
  if (lender == nullptr) return;
  for (const GoldenEntry& other : golden_entries(file)) {
    if (other.name != lender->as_string()) continue;
    for (const std::string& name : other.tensors) {
      if (name.rfind("param.", 0) == 0) c.inputs.emplace(name, read_as(file, other, name, DType::kF64, true));
    }
    return;
  }
  fail("metadata 'param_case' is '", lender->as_string(), "', which is no case of this file");
}

}  // namespace

GoldenFamily family_of(const JsonValue& config) {
  if (const JsonValue* name = config.find("family"); name != nullptr)
    return {.name = name->as_string(), .keys = {}, .named = true, .levels = name->as_string() == kOffByOne ? 1.0 : 0.0};
  const auto has_key = [&](std::string_view key) { return key.empty() || config.contains(key); };
  for (const GoldenFamily& family : kGoldenFamilies)
    if (std::all_of(family.keys.begin(), family.keys.end(), has_key)) return family;
  std::vector<std::string> keys, known;
  for (const JsonValue::Member& member : config.members()) keys.push_back(member.key);
  for (const GoldenFamily& family : kGoldenFamilies)
    known.push_back(str(family.keys[0], family.keys[1].empty() ? "" : " and ", family.keys[1]));
  fail("metadata has the keys [", joined(keys), "], which name no family: expected family, ", joined(known));
}

std::vector<GoldenEntry> golden_entries(const Safetensors& file) {
  std::map<std::string, std::vector<std::string>> tensors;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const std::string key(file.entry(i).name);
    const std::size_t slash = key.rfind('/');
    if (slash == std::string::npos || slash == 0 || slash + 1 == key.size())
      fail("tensor '", key, "' is not called <case>/<name>");
    tensors[key.substr(0, slash)].push_back(key.substr(slash + 1));
  }
  std::vector<GoldenEntry> entries;
  for (const auto& [name, config] : file.metadata()) {
    const auto found = tensors.find(name);
    if (found != tensors.end()) {
      entries.push_back({name, config, found->second});
      tensors.erase(found);
    } else if (config.find('{') != std::string::npos) {
      fail("case '", name, "' has metadata but no tensors");
    }
  }
  if (!tensors.empty()) fail("case '", tensors.begin()->first, "' has tensors but no metadata");
  return entries;
}

CausalCase read_causal_case(const Safetensors& file, const GoldenEntry& entry, const JsonValue& config) {
  refuse_unknown_options(config);
  refuse_unknown_tensors(entry);
  CausalCase c;
  c.chunk = positive_int(config, "chunk");
  if (const JsonValue* scale = config.find("scale"); scale != nullptr && !scale->is_null()) {
    if (!scale->is_number()) fail("metadata 'scale' is ", write_json(*scale), ", expected a number");
    c.scale = scale->as_double();
    if (!std::isfinite(*c.scale)) fail("metadata 'scale' is ", *c.scale, ", expected a finite number");
  }
  c.q = read_as(file, entry, "in.q", DType::kF32);
  c.k = read_as(file, entry, "in.k", DType::kF32);
  c.v = read_as(file, entry, "in.v", DType::kF32);
  c.mix = read_as(file, entry, "in.mix", DType::kF32);
  expect_rank(c.q, "in.q", 4, "[B, T, H, K]");
  expect_rank(c.k, "in.k", 4, "[B, T, Hkv, K]");
  expect_rank(c.v, "in.v", 4, "[B, T, Hkv, V]");
  const std::int64_t B = c.q.shape()[0], T = c.q.shape()[1], H = c.q.shape()[2], K = c.q.shape()[3];
  const std::int64_t Hkv = c.k.shape()[2], V = c.v.shape()[3];
  expect_shape(c.k, "in.k", {B, T, Hkv, K});
  expect_shape(c.v, "in.v", {B, T, Hkv, V});
  if (H % Hkv != 0) fail("in.k has ", Hkv, " heads, expected a divisor of the ", H, " heads of in.q");
  expect_size(config, "B", B, "in.q");
  expect_size(config, "T", T, "in.q");
  expect_size(config, "H", H, "in.q");
  expect_size(config, "Hkv", Hkv, "in.k");
  expect_size(config, "K", K, "in.q");
  expect_size(config, "V", V, "in.v");

  const std::vector<std::int64_t>& mix = c.mix.shape();
  const bool square = mix.size() >= 2 && mix[mix.size() - 1] == mix[mix.size() - 2];
  const bool per_head = mix.size() == 3 && (mix[0] == H || mix[0] == 1);
  if (!square || (mix.size() != 2 && !per_head))
    fail("in.mix has shape ", shape_text(mix), ", expected [L, L] or [", H, ", L, L]");
  const std::int64_t L = mix.back(), needed = (T + c.chunk - 1) / c.chunk;
  const std::int64_t blocks = config.contains("blocks") ? positive_int(config, "blocks") : needed;
  if (blocks < needed)
    fail("metadata 'blocks' is ", blocks, ", but ", T, " tokens in chunks of ", c.chunk, " make ", needed);
  if (L < blocks) fail("in.mix has shape ", shape_text(mix), ", expected at least ", blocks, " rows and columns");

  c.judged = {"out"};
  const std::vector<std::string> gradients = {"grad.in.q", "grad.in.k", "grad.in.v", "grad.in.mix"};
  const bool backward = has(entry.tensors, "dout");
  for (const std::string& name : gradients) {
    if (has(entry.tensors, name) != backward)
      fail(backward ? name : "dout", " is missing; the case has ", joined(entry.tensors));
    if (backward) c.judged.push_back(name);
  }
  if (!has(entry.tensors, "out")) fail("out is missing; the case has ", joined(entry.tensors));
  if (backward) {
    c.dout = read_as(file, entry, "dout", DType::kF32);
    expect_shape(c.dout, "dout", {B, T, H, V});
  }
  return c;
}

ModuleCase read_module_case(const Safetensors& file, const GoldenEntry& entry, const GoldenFamily& family) {
  const auto starts = [](const std::string& name, const char* head) { return name.rfind(head, 0) == 0; };
  ModuleCase c;
  bool gradients = false;
  for (const std::string& name : entry.tensors) {
    const bool goes_in = starts(name, "in.") || starts(name, "param.") || name == "dout";
    const bool comes_out = name == "out" || name == "init.mixing" || starts(name, "grad.");
    if (goes_in || (family.named && starts(name, "dout."))) {
      c.inputs.emplace(name, read_as(file, entry, name, DType::kF64, family.named));
    } else if (comes_out || (family.named && (starts(name, "out.") || starts(name, "init.")))) {
      gradients = gradients || starts(name, "grad.");
      c.judged.push_back(name);
    } else {
      fail("tensor ", name, " is none of in.*, param.*, out, dout, init.mixing, grad.*");
    }
  }
  if (family.named && c.judged.empty()) fail("no output is there; the case has ", joined(entry.tensors));
  if (family.named) {
    add_lent_parameters(file, entry, c);
    return c;
  }
  if (!has(entry.tensors, "out")) fail("out is missing; the case has ", joined(entry.tensors));
  if (gradients != has(entry.tensors, "dout")) {
    fail(gradients ? "dout is" : "gradients are", " missing; the case has ", joined(entry.tensors));
  }
  return c;
}

bool is_exact(const Safetensors& file, const GoldenEntry& entry, const std::string& name) {
  return is_integer(file.view(entry.name + "/" + name).dtype);
}

Tensor read_expected(const Safetensors& file, const GoldenEntry& entry, const std::string& name,
                     const std::vector<std::int64_t>& shape) {
  Tensor tensor = read_as(file, entry, name, DType::kF64, is_exact(file, entry, name));
  expect_shape(tensor, name, shape);
  return tensor;
}

}  // namespace mhla::apps
