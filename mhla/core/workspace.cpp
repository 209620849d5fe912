#include "mhla/core/workspace.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <new>
#include <utility>

#include "mhla/core/error.h"

namespace mhla {

Workspace::Workspace(std::span<std::byte> memory)
    : base_(memory.data()), capacity_(static_cast<std::int64_t>(memory.size())), counting_(false) {
  if (reinterpret_cast<std::uintptr_t>(base_) % kAlignment != 0) {
    fail("workspace: memory is not aligned, expected a multiple of ", kAlignment, " bytes");
  }
}

void* Workspace::take_bytes(std::int64_t count, std::int64_t size, const char* name) {
  std::int64_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX - used_ - kAlignment) {
    fail("workspace: buffer ", name, " of ", count, " x ", size, " bytes overflows");
  }
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::int64_t offset = used_;
  used_ += bytes;
  if (counting_) return nullptr;
  if (used_ > capacity_) {
    fail("workspace: buffer ", name, " needs ", bytes, " bytes, ", capacity_ - offset, " of ", capacity_, " are left");
  }
  return base_ + offset;
}

AlignedBuffer::AlignedBuffer(std::int64_t bytes, std::int64_t alignment)
    : size_(static_cast<std::size_t>(bytes)), alignment_(alignment) {
  if (bytes < 0) fail("AlignedBuffer: size is ", bytes);
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(::operator new(size_, static_cast<std::align_val_t>(alignment)));
}

AlignedBuffer::~AlignedBuffer() { ::operator delete(data_, static_cast<std::align_val_t>(alignment_)); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(alignment_, other.alignment_);
  return *this;
}

AlignedBuffer AlignedBuffer::for_workspace(std::int64_t bytes) {
  if (bytes < kLargePage) return AlignedBuffer(bytes);
  AlignedBuffer buffer(bytes, kLargePage);
#if defined(__linux__)
  madvise(buffer.data_, buffer.size_ / kLargePage * kLargePage, MADV_HUGEPAGE);  // a wish: failing is fine
#endif
  return buffer;
}

}  // namespace mhla
