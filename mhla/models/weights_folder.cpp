#include "mhla/models/weights_folder.h"

#include <algorithm>
#include <iomanip>
#include <set>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

const std::string kFile = ".safetensors", kIndex = ".safetensors.index.json";

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

torch::Tensor mapped_tensor(const Safetensors& file, std::size_t index) {
  const Safetensors::Entry entry = file.entry(index);
  const ConstView view = file.view(index);
  const at::ScalarType type = ops::scalar_type_of(entry.dtype);
  if (view.data == nullptr) return torch::empty(entry.shape, type);
  return torch::from_blob(
      const_cast<void*>(view.data), entry.shape, [file](void* /*data*/) {}, type);
}

Weights mapped_file(const fs::path& path) {
  const Safetensors file = Safetensors::read(path);
  Weights weights;
  for (std::size_t i = 0; i < file.size(); ++i) weights[std::string(file.entry(i).name)] = mapped_tensor(file, i);
  return weights;
}

Weights mapped_shards(const fs::path& index) {
  const JsonValue object = read_json_object(index);
  std::map<std::string, std::set<std::string>> shards;  // a file's tensors
  labelled(index.string(), [&] {
    for (const JsonValue::Member& entry : object.at("weight_map").members()) {
      const std::string& file = entry.value.as_string();
      if (fs::path(file).filename() != file || !ends_with(file, kFile))
        fail("weight_map has '", file, "' for ", entry.key, ", expected a safetensors file in the same folder");
      shards[file].insert(entry.key);
    }
    if (shards.empty()) fail("weight_map is empty, expected the names of tensors");
  });
  Weights weights;
  for (const auto& [file, names] : shards) {
    const fs::path path = index.parent_path() / file;
    for (auto& [name, value] : mapped_file(path)) {
      if (names.count(name) == 0) fail(path.string(), ": ", name, " is not in ", index.filename().string());
      weights[name] = value;
    }
    for (const std::string& name : names)
      if (weights.count(name) == 0)
        fail(path.string(), ": ", name, " is missing, expected it by ", index.filename().string());
  }
  return weights;
}

// The one file in a folder that has the weights.
fs::path weights_in_folder(const fs::path& folder) {
  for (const char* name : {"model", "diffusion_pytorch_model"}) {
    for (const std::string& tail : {kIndex, kFile})
      if (const fs::path path = folder / (name + tail); is_there(path)) return path;
  }
  std::vector<std::string> files, indices;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (ends_with(name, kIndex)) indices.push_back(name);
    if (ends_with(name, kFile)) files.push_back(name);
  }
  const std::vector<std::string>& found = indices.empty() ? files : indices;
  if (found.size() == 1) return folder / found[0];
  if (found.empty()) fail(folder.string(), ": no .safetensors file, expected the weights of a model");
  std::vector<std::string> sorted = found;
  std::sort(sorted.begin(), sorted.end());
  fail(folder.string(), ": ", sorted.size(), " files of weights (", sorted[0], ", ", sorted[1],
       sorted.size() > 2 ? ", ...), " : "), ", "expected one: name the file itself");
}

std::string shard_name(const std::string& name, std::size_t shard, std::size_t count) {
  std::ostringstream text;
  text << name << "-" << std::setfill('0') << std::setw(5) << shard << "-of-" << std::setw(5) << count << kFile;
  return text.str();
}

}  // namespace

Weights mapped_weights(const fs::path& path) {
  if (!is_there(path)) fail(path.string(), ": not found, expected a safetensors file or a folder that has one");
  const fs::path file = is_folder(path) ? weights_in_folder(path) : path;
  return ends_with(file.string(), kIndex) ? mapped_shards(file) : mapped_file(file);
}

void write_weights_folder(OutputFolder& folder, const std::string& name, const Weights& weights, double shard_bytes,
                          const Metadata& metadata) {
  std::vector<Weights> shards(1);
  double total = 0, here = 0;
  for (const auto& [key, value] : weights) {
    const double bytes = static_cast<double>(value.numel()) * static_cast<double>(value.element_size());
    if (!shards.back().empty() && here + bytes > shard_bytes) shards.emplace_back(), here = 0;
    shards.back()[key] = value;
    total += bytes, here += bytes;
  }
  if (shards.size() == 1) return write_weights(folder.claim(name + kFile), weights, metadata);
  JsonValue::Object entries;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shard_name(name, i + 1, shards.size());
    write_weights(folder.claim(file), shards[i], metadata);
    for (const auto& [key, value] : shards[i]) entries.push_back({key, JsonValue(file)});
  }
  JsonValue sizes = JsonValue::object();
  sizes.set("total_size", static_cast<std::int64_t>(total));
  JsonValue index = JsonValue::object();
  index.set("metadata", sizes).set("weight_map", JsonValue(std::move(entries)));
  write_file(folder.claim(name + kIndex), write_json(index, 2) + "\n");
}

}  // namespace mhla
