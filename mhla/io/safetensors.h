// safetensors: 8 bytes header length, a JSON header, then the bytes of all tensors without holes.
// The reader believes nothing: a file that is not exactly covered by its header is refused with file, tensor and
// reason. Beyond the file itself it needs at most twice the header (plus 16 MiB at worst for long strings), whatever
// the header claims, and copies tensor data only where a file has put it at an address its type cannot be read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

using Metadata = std::map<std::string, std::string>;

class Safetensors {
 public:
  struct Entry {
    std::string_view name;
    DType dtype = DType::kF32;
    std::vector<std::int64_t> shape;  // as written: [] is a scalar
    std::int64_t offset = 0;          // of its first byte in the data part of the file
    std::int64_t bytes = 0;
  };

  // Maps the file; tensor data is read from the disk when it is used.
  static Safetensors read(const std::filesystem::path& path);
  // `bytes` must outlive this object and its views. `label` takes the path's place in errors.
  static Safetensors from_memory(std::span<const std::byte> bytes, const std::string& label = "memory");

  // Copies share one file. Views and names stay valid while any copy lives; all members may be called from
  // several threads at once.
  [[nodiscard]] const std::string& label() const;
  [[nodiscard]] const Metadata& metadata() const;
  [[nodiscard]] std::size_t size() const;                 // number of tensors
  [[nodiscard]] Entry entry(std::size_t index) const;     // in the order of the header
  [[nodiscard]] ConstView view(std::size_t index) const;  // contiguous, aligned to its element; a scalar is [1]
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;
  [[nodiscard]] bool contains(std::string_view name) const { return find(name).has_value(); }
  [[nodiscard]] ConstView view(std::string_view name) const;  // refuses an unknown name

 private:
  struct State;
  explicit Safetensors(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// Strided views are written contiguous. Tensors are laid out by element size, largest first, then by name, so that
// every one is aligned and equal contents give equal bytes in whatever order they come.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata = {});  // atomic, see write_file
std::vector<std::byte> safetensors_bytes(const std::vector<NamedView>& tensors, const Metadata& metadata = {});

// "F32", "BF16", ... as the format spells them.
std::string_view safetensors_name(DType dtype);
std::optional<DType> safetensors_dtype(std::string_view name);

}  // namespace mhla
