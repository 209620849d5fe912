// Any bytes are either refused with an Error, or a file whose every tensor can be read and written again.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mhla/core/error.h"
#include "mhla/io/safetensors.h"
#include "mhla/io/utf8.h"

namespace {

void check(bool held) {
  if (!held) std::abort();
}

void read_and_rewrite(std::span<const std::byte> file) {
  const mhla::Safetensors tensors = mhla::Safetensors::from_memory(file, "fuzz");
  std::vector<mhla::NamedView> views;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const mhla::Safetensors::Entry entry = tensors.entry(i);
    check(tensors.find(entry.name) == i);
    views.push_back({std::string(entry.name), tensors.view(i)});
  }
  const std::vector<std::byte> written = mhla::safetensors_bytes(views, tensors.metadata());
  const mhla::Safetensors again = mhla::Safetensors::from_memory(written, "written");
  check(again.size() == tensors.size() && again.metadata() == tensors.metadata());
  for (const auto& [name, view] : views) {
    const mhla::ConstView back = again.view(name);
    check(back.dtype == view.dtype && shape_text(back) == shape_text(view));
    const auto bytes = static_cast<std::size_t>(view.numel() * size_of(view.dtype));
    check(bytes == 0 || std::memcmp(back.data, view.data, bytes) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read_and_rewrite(std::as_bytes(std::span(data, size)));
  } catch (const mhla::Error& error) {
    check(mhla::is_utf8(error.what()));
    // A refusal of what the writer has made would be a fault of ours.
    check(std::strncmp(error.what(), "fuzz", 4) == 0);
  }
  return 0;
}
