// The message for an exception that LibTorch or the allocator threw: one short line, without stack, file names
// of LibTorch or advice for its developers.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/core/memory.h"

namespace mhla::ops {

inline std::string short_reason(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  if (const std::size_t stack = text.find("Exception raised from"); stack != std::string::npos) text.resize(stack);
  for (const char* tried : {"you tried to allocate ", "Tried to allocate "}) {  // 4096 bytes. / 2.00 GiB (GPU 0; ...)
    const std::size_t at = text.find(tried);
    if (at == std::string::npos) continue;
    const char* size = text.c_str() + at + std::char_traits<char>::length(tried);
    char* unit = nullptr;
    const double amount = std::strtod(size, &unit);
    const std::string_view name(unit);
    const double bytes = amount * (name.rfind(" KiB", 0) == 0   ? 1024.0
                                   : name.rfind(" MiB", 0) == 0 ? 1048576.0
                                   : name.rfind(" GiB", 0) == 0 ? 1073741824.0
                                                                : 1.0);
    return str("out of memory", text.find("CUDA") != std::string::npos ? " on the GPU" : "", ": ", bytes_text(bytes),
               " could not be allocated");
  }
  if (text.rfind("[enforce fail at ", 0) == 0)
    text.erase(0, text.find("] ") == std::string::npos ? 0 : text.find("] ") + 2);
  text = text.substr(0, text.find('\n'));
  constexpr std::size_t kMost = 300;
  if (torch != nullptr && text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text.empty() ? "LibTorch failed without a reason" : text;
}

}  // namespace mhla::ops
