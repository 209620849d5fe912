// Scratch memory of one call. One code path describes the buffers; run over a counting workspace it
// yields the size, run over real memory it carves them, so the two cannot drift.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mhla {

inline constexpr std::int64_t kAlignment = 64;  // one cache line, one AVX-512 vector
inline constexpr std::int64_t kLargePage = std::int64_t{2} << 20;

class Workspace {
 public:
  Workspace() = default;                            // counts only: take() returns null
  explicit Workspace(std::span<std::byte> memory);  // carves; throws when a buffer does not fit

  // `count` elements aligned to kAlignment. `name` appears in the error when memory runs out.
  template <class T>
  T* take(std::int64_t count, const char* name) {
    return static_cast<T*>(take_bytes(count, static_cast<std::int64_t>(sizeof(T)), name));
  }
  [[nodiscard]] std::int64_t used() const { return used_; }  // bytes, including alignment
  [[nodiscard]] bool counting() const { return counting_; }

 private:
  void* take_bytes(std::int64_t count, std::int64_t size, const char* name);
  std::byte* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t used_ = 0;
  bool counting_ = true;
};

// Uninitialised memory aligned to kAlignment, freed on destruction.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t bytes, std::int64_t alignment = kAlignment);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  // From kLargePage on, memory that the system is asked to back with large pages: summaries are walked with strides of
  // many small ones, and every new page costs a walk of the page tables.
  static AlignedBuffer for_workspace(std::int64_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t alignment_ = kAlignment;
};

}  // namespace mhla
