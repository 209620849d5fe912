// The accuracy rule of docs/numerics.md, and the checks every candidate of a form must pass. Each check
// returns an empty string, or what went wrong: worst element, both values, tolerance, how to run it alone.
#pragma once

#include <string>
#include <string_view>

#include "mhla/testing/run_case.h"

namespace mhla {

double epsilon_of(DType dtype);  // distance from 1 to the next number: 2^-23, 2^-7, 2^-10, 2^-52

// Error of one tensor against f64, pooled over any number of runs: RMS of the difference over RMS of the f64 result,
// and largest difference over largest value.
class PooledError {
 public:
  void add(const Tensor& got, const Tensor& want);
  [[nodiscard]] double rms() const;  // NaN once a NaN was seen
  [[nodiscard]] double max() const;

 private:
  double square_ = 0, want_square_ = 0, largest_ = 0, want_largest_ = 0;
};

// How far a result and plain code in the same dtype are from f64, and the bounds that follow.
struct Accuracy {
  double rms = 0, plain_rms = 0, rms_bound = 0;
  double max = 0, plain_max = 0, max_bound = 0;
  [[nodiscard]] bool holds() const { return rms <= rms_bound && max <= max_bound; }  // false with NaN
};
Accuracy judge(const PooledError& got, const PooledError& plain, DType dtype, bool gradient);
Accuracy measure_accuracy(const Tensor& got, const Tensor& plain, const Tensor& want, bool gradient);

// Reference, plain code and candidate on one case. The error of a handful of elements is luck, so a small case is
// repeated with other seeds and its errors are pooled. Errors are remembered; accuracy_summary() is one line per
// candidate, dtype and tensor with the largest of them, for a test to print at its end.
std::string check_accuracy(const Case& c, std::string_view candidate);
std::string accuracy_summary();
// Two runs, and runs with 1, 2 and 7 threads, have the same bits.
std::string check_repeatable(const Case& c, std::string_view candidate);
// Summaries that forward keeps for backward change no bit, and backward only reads them. Causal on a device they change
// no more than rounding does: the two passes may mix with different instructions.
std::string check_kept(const Case& c, std::string_view candidate);
// Every batch element or packed sequence alone gives the bits it had in company: out, dq, dk, dv, dq_den, dk_den.
std::string check_alone(const Case& c, std::string_view candidate);
// A NaN in q, k, v or dout goes where the reference takes it, and the other sequences keep their bits.
std::string check_nan_stays(const Case& c, std::string_view candidate);
// Strided inputs and outputs give the bits of contiguous ones.
std::string check_strides(const Case& c, std::string_view candidate);

}  // namespace mhla
