// Rows of a norm as floats, and their statistics. `Rows`: data, stride and dtype of rows in memory.
#if defined(MHLA_KERNELS_NORM_NORM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_NORM_NORM_ROWS_INL_H_
#undef MHLA_KERNELS_NORM_NORM_ROWS_INL_H_
#else
#define MHLA_KERNELS_NORM_NORM_ROWS_INL_H_
#endif

#include <cmath>
#include <vector>

#include "mhla/core/threads.h"
#include "mhla/kernels/common/simd/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

template <class T, class Rows>
T* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
}

template <class From, class To>
void copy_row(const From* from, int X, To* to) {
  each_vector(X, [&](std::int64_t c, std::int64_t n) { store_part(load_part(from + c, n), to + c, n); });
}

// Rows as floats: each take() is memory for one more.
class RowBuffers {
 public:
  RowBuffers(float* memory, int X) : next_(memory), X_(X) {}
  float* take() {
    float* const buffer = next_;
    next_ += X_;
    return buffer;
  }

  // A row that is read: where it lies, or a copy as floats. Null where there are no such rows.
  template <class Rows>
  const float* read(const Rows& rows, std::int64_t row) {
    if (rows.data == nullptr) return nullptr;
    if (rows.dtype == DType::kF32) return row_of<float>(rows, row);
    float* const buffer = take();
    rows.dtype == DType::kBF16 ? copy_row(row_of<bf16>(rows, row), X_, buffer)
                               : copy_row(row_of<f16>(rows, row), X_, buffer);
    return buffer;
  }
  // A row that is written: its place, or a buffer until write().
  template <class Rows>
  float* begin(const Rows& rows, std::int64_t row) {
    if (rows.data == nullptr) return nullptr;
    return rows.dtype == DType::kF32 ? row_of<float>(rows, row) : take();
  }
  template <class Rows>
  void write(const float* from, const Rows& rows, std::int64_t row) const {
    if (rows.data == nullptr || rows.dtype == DType::kF32) return;
    rows.dtype == DType::kBF16 ? copy_row(from, X_, row_of<bf16>(rows, row))
                               : copy_row(from, X_, row_of<f16>(rows, row));
  }

 private:
  float* next_;
  int X_;
};

// Memory of every thread's buffers.
class ThreadBuffers {
 public:
  ThreadBuffers(Executor& executor, int X, int buffers)
      : X_(X),
        floats_(static_cast<std::size_t>(buffers) * static_cast<std::size_t>(X)),
        memory_(static_cast<std::size_t>(executor.concurrency()) * floats_) {}
  RowBuffers of(int worker) { return {memory_.data() + static_cast<std::size_t>(worker) * floats_, X_}; }

 private:
  int X_;
  std::size_t floats_;
  std::vector<float> memory_;
};

struct Stats {
  float mean = 0, factor = 0;
};

HWY_INLINE Stats stats_of(const float* x, int X, bool centered, float eps) {
  const float share = 1.0f / static_cast<float>(X);
  Stats s;
  if (centered) {
    s.mean = share *
             sum_of(X, [&](std::int64_t c, std::int64_t n, Vector sum) { return hn::Add(sum, load_part(x + c, n)); });
  }
  const Vector mean = hn::Set(Full(), s.mean);
  const float squares = sum_of(X, [&](std::int64_t c, std::int64_t n, Vector sum) {
    const Vector d = only(hn::Sub(load_part(x + c, n), mean), n);
    return hn::MulAdd(d, d, sum);
  });
  s.factor = 1.0f / std::sqrt(squares * share + eps);
  return s;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
