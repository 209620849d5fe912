#include "mhla/io/safetensors.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "mhla/core/error.h"
#include "mhla/core/workspace.h"
#include "mhla/io/file.h"
#include "mhla/io/json_events.h"
#include "mhla/io/safetensors_header.h"

namespace mhla {
namespace {

constexpr std::string_view kNames[] = {"F32", "BF16", "F16", "F64", "I8",  "U8",  "I16",
                                       "U16", "I32",  "U32", "I64", "U64", "BOOL"};  // in the order of DType

}  // namespace

struct Safetensors::State {
  std::unique_ptr<MappedFile> file;  // empty when the bytes are the caller's
  SafetensorsHeader header;
  std::span<const std::byte> data;
  std::mutex mutex;
  std::unordered_map<std::uint32_t, AlignedBuffer> aligned;  // copies of tensors at unusable addresses
};

Safetensors Safetensors::read(const std::filesystem::path& path) {
  auto state = std::make_shared<State>();
  state->file = std::make_unique<MappedFile>(path);
  const std::span<const std::byte> bytes = state->file->bytes();
  state->header = read_safetensors_header(bytes, path.string());
  state->data = bytes.subspan(8 + state->header.text.size());
  return Safetensors(std::move(state));
}

Safetensors Safetensors::from_memory(std::span<const std::byte> bytes, const std::string& label) {
  auto state = std::make_shared<State>();
  state->header = read_safetensors_header(bytes, label);
  state->data = bytes.subspan(8 + state->header.text.size());
  return Safetensors(std::move(state));
}

const std::string& Safetensors::label() const { return state_->header.label; }
const Metadata& Safetensors::metadata() const { return state_->header.metadata; }
std::size_t Safetensors::size() const { return state_->header.rows.size(); }

Safetensors::Entry Safetensors::entry(std::size_t index) const {
  if (index >= size()) fail(label(), ": has ", size(), " tensors, tensor ", index, " was asked for");
  return state_->header.entry(static_cast<std::uint32_t>(index));
}

ConstView Safetensors::view(std::size_t index) const {
  const Entry found = entry(index);
  const std::byte* data = state_->data.data() + found.offset;
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_of(found.dtype)) != 0) {
    const std::lock_guard lock(state_->mutex);
    AlignedBuffer& copy = state_->aligned[static_cast<std::uint32_t>(index)];
    if (copy.bytes().empty() && found.bytes > 0) {
      copy = AlignedBuffer(found.bytes);
      std::memcpy(copy.bytes().data(), data, static_cast<std::size_t>(found.bytes));
    }
    data = copy.bytes().data();
  }
  return found.shape.empty() ? ConstView(data, found.dtype, {1}) : ConstView(data, found.dtype, found.shape);
}

std::optional<std::size_t> Safetensors::find(std::string_view name) const {
  const SafetensorsHeader& header = state_->header;
  const std::uint32_t row = header.index.find(name, [&](std::uint32_t i) { return header.name_at(i); });
  if (row == NameIndex::kNone) return std::nullopt;
  return row;
}

ConstView Safetensors::view(std::string_view name) const {
  const std::optional<std::size_t> index = find(name);
  if (!index) fail(label(), ": has no tensor ", quoted_excerpt(name), " among its ", size());
  return view(*index);
}

std::string_view safetensors_name(DType dtype) { return kNames[static_cast<int>(dtype)]; }

std::optional<DType> safetensors_dtype(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace mhla
