// libjpeg and libpng report an error by a call that must not return: ours keeps the message and jumps (longjmp) back
// into attempt(), which holds no C++ object, so no destructor is skipped; memory is freed by the owners around it.
#pragma once

#include <array>
#include <csetjmp>

namespace mhla {

struct Trouble {
  std::jmp_buf back{};
  std::array<char, 256> message{};

  [[noreturn]] void jump() { std::longjmp(back, 1); }
};

// Runs `work`, from which the library may jump. False: trouble.message says why.
template <class Work>
[[gnu::noinline]] bool attempt(Trouble& trouble, const Work& work) {
  if (setjmp(trouble.back) != 0) return false;  // NOLINT(cert-err52-cpp): the libraries know no other way
  work();
  return true;
}

}  // namespace mhla
