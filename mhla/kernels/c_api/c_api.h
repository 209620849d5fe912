// What the files behind mhla/c.h share: exceptions become statuses, C structs become the C++ ones.
// A struct of the caller is copied before it is read: the bytes that his header knew, defaults for the rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "mhla/c.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/core/view.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/common/options.h"

struct mhla_pool {
  std::unique_ptr<mhla::Executor> executor;
};

namespace mhla::c_api {

// Remembers what the current exception says for mhla_last_error() and returns its status.
mhla_status status_of_current_exception() noexcept;

template <class Call>
mhla_status guarded(Call&& call) noexcept {
  try {
    call();
    return MHLA_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

template <class T>
T& required(T* pointer, const char* entry, const char* argument) {
  if (pointer == nullptr) fail(entry, ": ", argument, " is null");
  return *pointer;
}

// The *_init functions: `defaults` for as much of the struct as the caller's header knew.
template <class Struct>
void init(Struct* target, std::size_t struct_size, Struct defaults) {
  if (target == nullptr || struct_size < sizeof(target->struct_size)) return;
  defaults.struct_size = struct_size;
  std::memset(target, 0, struct_size);
  std::memcpy(target, &defaults, std::min(struct_size, sizeof(Struct)));
}

// The caller's struct as this library knows it. `least` is the size of the struct in the first published header. A
// larger struct than ours is fine as long as what we do not know is zero, which is how new fields say "not used".
template <class Struct>
Struct read(const Struct* source, std::size_t least, Struct defaults, const char* entry, const char* argument) {
  const std::size_t size = required(source, entry, argument).struct_size;
  if (size < least) {
    fail(entry, ": ", argument, " has struct_size ", size, ", expected at least ", least, ": call its *_init first");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(source);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(entry, ": ", argument, " has struct_size ", size, " and uses fields beyond the ", sizeof(Struct),
           " bytes that version ", mhla_version(), " knows");
    }
  }
  std::memcpy(&defaults, source, std::min(size, sizeof(Struct)));
  return defaults;
}

// An enum of the C header, which spells the values of the C++ one.
template <class Enum>
Enum enum_of(std::int32_t value, Enum last, const char* entry, const char* argument) {
  if (value < 0 || value > static_cast<std::int32_t>(last)) {
    fail(entry, ": ", argument, " is ", value, ", expected 0 to ", static_cast<std::int32_t>(last));
  }
  return static_cast<Enum>(value);
}

View view_of(const mhla_tensor& tensor, const char* entry, const char* argument);
mhla_tensor tensor_of(const ConstView& view);

// The options of a call; `maybe_options` null gives the defaults. The result points into the caller's memory.
RunOptions run_options_of(const mhla_run_options* maybe_options, const char* entry);

}  // namespace mhla::c_api
