// Writes the file front to back through a sink, so that a checkpoint on its way to the disk is never in memory twice.
#include <algorithm>
#include <array>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json_events.h"
#include "mhla/io/safetensors.h"
#include "mhla/io/safetensors_header.h"
#include "mhla/io/safetensors_stream.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

// `some_later`: data may be null.
std::vector<NamedView> checked_and_sorted(std::vector<NamedView> tensors, const Metadata& metadata, bool some_later) {
  const auto refuse = [](const NamedView& tensor, const auto&... parts) {
    fail("write_safetensors: tensor ", quoted_excerpt(tensor.name), ": ", parts...);
  };
  for (const NamedView& tensor : tensors) {
    const ConstView& view = tensor.view;
    if (!is_utf8(tensor.name)) refuse(tensor, "the name is not UTF-8");
    if (tensor.name == "__metadata__") refuse(tensor, "the name is reserved");
    if (!view.given()) refuse(tensor, "the view is not given (rank 0), expected a rank of 1 to ", kMaxRank);
    if (view.device != kCpu) refuse(tensor, "the data is on device ", view.device, ", expected host memory");
    if (!some_later && view.numel() > 0 && view.data == nullptr)
      refuse(tensor, "data is null, shape is ", shape_text(view));
  }
  for (const auto& [key, value] : metadata)
    if (!is_utf8(key) || !is_utf8(value)) fail("write_safetensors: metadata ", quoted_excerpt(key), " is not UTF-8");
  std::sort(tensors.begin(), tensors.end(), [](const NamedView& a, const NamedView& b) {
    const std::int64_t size_a = size_of(a.view.dtype), size_b = size_of(b.view.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  // Names are unique across element sizes, too.
  std::vector<std::string_view> names;
  for (const NamedView& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    fail("write_safetensors: tensor ", quoted_excerpt(*twice), ": given twice");
  return tensors;
}

std::int64_t bytes_of(const ConstView& view, const std::string& name) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(view.numel(), size_of(view.dtype), &bytes))
    fail("write_safetensors: tensor ", quoted_excerpt(name), ": the number of bytes does not fit 63 bits");
  return bytes;
}

std::string header_text(const std::vector<NamedView>& tensors, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      ((text += json_quote(key)) += ':') += json_quote(value);
    }
    text += '}';
  }
  std::int64_t offset = 0;
  for (const NamedView& tensor : tensors) {
    if (text.size() > 1) text += ',';
    const std::int64_t bytes = bytes_of(tensor.view, tensor.name);
    std::int64_t end = 0;
    if (__builtin_add_overflow(offset, bytes, &end)) fail("write_safetensors: the tensors do not fit 63 bits of bytes");
    // std::to_string and not a stream, which would group digits as the program's locale likes them.
    text += json_quote(tensor.name);
    text.append(":{\"dtype\":\"").append(safetensors_name(tensor.view.dtype)).append("\",\"shape\":[");
    for (int axis = 0; axis < tensor.view.rank; ++axis)
      text.append(axis > 0 ? "," : "").append(std::to_string(tensor.view.shape[axis]));
    text.append("],\"data_offsets\":[")
        .append(std::to_string(offset))
        .append(",")
        .append(std::to_string(end))
        .append("]}");
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');  // the data starts at a multiple of 8
  if (text.size() > kMaxHeader)
    fail("write_safetensors: header of ", text.size(), " bytes, readers take at most ", kMaxHeader);
  return text;
}

// Rows of a strided view in row-major order, gathered into pieces of 64 KiB.
template <class Sink>
void write_elements(const ConstView& view, Sink& sink) {
  const std::int64_t numel = view.numel();
  if (numel == 0) return;
  const auto size = static_cast<std::size_t>(size_of(view.dtype));
  const auto* data = static_cast<const std::byte*>(view.data);
  if (view.contiguous()) {
    sink({data, static_cast<std::size_t>(numel) * size});
    return;
  }
  std::array<std::byte, std::size_t{1} << 16> piece{};
  std::size_t filled = 0;
  std::array<std::int64_t, kMaxRank> index{};
  std::int64_t element = 0;  // offset of `index` in elements
  for (std::int64_t i = 0; i < numel; ++i) {
    std::memcpy(piece.data() + filled, data + element * static_cast<std::int64_t>(size), size);
    if ((filled += size) == piece.size()) {
      sink(std::span<const std::byte>(piece));
      filled = 0;
    }
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      element += view.stride[axis];
      if (++index[axis] < view.shape[axis]) break;
      element -= view.stride[axis] * view.shape[axis];
      index[axis] = 0;
    }
  }
  sink(std::span<const std::byte>(piece.data(), filled));
}

template <class Sink>
void write_later(const NamedView& tensor, const LaterBytes& later, Sink& sink) {
  const auto due = static_cast<std::size_t>(bytes_of(tensor.view, tensor.name));
  std::size_t given = 0;
  later(tensor, [&](std::span<const std::byte> bytes) { given += bytes.size(), sink(bytes); });
  if (given != due)
    fail("write_safetensors: tensor ", quoted_excerpt(tensor.name), ": ", given, " bytes came, expected ", due);
}

template <class Sink>
void write_all(const std::vector<NamedView>& tensors, const std::string& header, Sink&& sink,
               const LaterBytes& later = {}) {
  const std::uint64_t length = header.size();
  sink(std::as_bytes(std::span(&length, 1)));
  sink(std::as_bytes(std::span(header.data(), header.size())));
  for (const NamedView& tensor : tensors) {
    if (tensor.view.data == nullptr && tensor.view.numel() > 0)
      write_later(tensor, later, sink);
    else
      write_elements(tensor.view, sink);
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata) {
  write_safetensors(path, tensors, metadata, {});
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata, const LaterBytes& later) {
  const std::vector<NamedView> sorted = checked_and_sorted(tensors, metadata, static_cast<bool>(later));
  const std::string header = header_text(sorted, metadata);
  AtomicFile file(path);
  write_all(
      sorted, header, [&](std::span<const std::byte> bytes) { file.write(bytes); }, later);
  file.commit();
}

std::vector<std::byte> safetensors_bytes(const std::vector<NamedView>& tensors, const Metadata& metadata) {
  const std::vector<NamedView> sorted = checked_and_sorted(tensors, metadata, /*some_later=*/false);
  const std::string header = header_text(sorted, metadata);
  std::size_t total = 8 + header.size();
  for (const NamedView& tensor : sorted) total += static_cast<std::size_t>(bytes_of(tensor.view, tensor.name));
  std::vector<std::byte> out(total);
  std::byte* at = out.data();
  write_all(sorted, header, [&](std::span<const std::byte> bytes) {
    std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  });
  return out;
}

}  // namespace mhla
