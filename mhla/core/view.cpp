#include "mhla/core/view.h"

#include <type_traits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

template <class Sizes>
std::int64_t product(const Sizes& sizes, const char* what) {
  std::int64_t total = 1;
  bool zero = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) fail(what, " has a negative size ", size);
    if (size == 0)
      zero = true;
    else if (__builtin_mul_overflow(total, size, &total))
      fail(what, ": the number of elements does not fit 63 bits");
  }
  return zero ? 0 : total;
}

template <class Pointer, class Sizes>
void fill(BasicView<Pointer>& view, const Sizes& sizes) {
  if (sizes.size() > kMaxRank) fail("view has rank ", sizes.size(), ", expected at most ", kMaxRank);
  product(sizes, "view");
  view.rank = static_cast<int>(sizes.size());
  int axis = 0;
  for (const std::int64_t size : sizes) view.shape[axis++] = size;
  std::int64_t stride = 1;
  for (axis = view.rank - 1; axis >= 0; --axis) {
    view.stride[axis] = stride;
    stride *= view.shape[axis] > 0 ? view.shape[axis] : 1;
  }
}

}  // namespace

template <class Pointer>
BasicView<Pointer>::BasicView(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> sizes)
    : data(data_), dtype(dtype_) {
  fill(*this, sizes);
}

template <class Pointer>
BasicView<Pointer>::BasicView(Pointer data_, DType dtype_, const std::vector<std::int64_t>& sizes)
    : data(data_), dtype(dtype_) {
  fill(*this, sizes);
}

template <class Pointer>
std::int64_t BasicView<Pointer>::numel() const {
  return product(std::vector<std::int64_t>(shape.begin(), shape.begin() + rank), "view");
}

template <class Pointer>
bool BasicView<Pointer>::contiguous() const {
  std::int64_t expected = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && stride[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

template struct BasicView<const void*>;
template struct BasicView<void*>;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + "]";
}

std::string shape_text(const ConstView& view) {
  return shape_text(std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
}

std::int64_t checked_product(std::initializer_list<std::int64_t> sizes, const char* what) {
  return product(sizes, what);
}

}  // namespace mhla
