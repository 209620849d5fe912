// OpenBLAS, opened at run time: the ruler that `bench op` measures itself against. mhla does not link it, so the
// program runs where it is missing and says so.
#pragma once

#include <cstdint>
#include <string>

namespace mhla::apps {

class OpenBlas {
 public:
  OpenBlas();  // opens the library; check reason()
  OpenBlas(const OpenBlas&) = delete;
  OpenBlas& operator=(const OpenBlas&) = delete;

  [[nodiscard]] bool found() const { return reason_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }  // why it cannot be used
  [[nodiscard]] std::string path() const { return path_; }
  [[nodiscard]] std::string config() const { return config_; }  // "OpenBLAS 0.3.21 ... Zen MAX_THREADS=64"
  [[nodiscard]] std::string core() const { return core_; }      // the instruction set it chose

  void set_threads(int threads) const;
  // c = a b, row-major [n, n], f32.
  void multiply(std::int64_t n, const float* a, const float* b, float* c) const;

 private:
  std::string reason_, path_, config_, core_;
  void (*set_threads_)(int) = nullptr;
  void* sgemm_ = nullptr;
};

}  // namespace mhla::apps
