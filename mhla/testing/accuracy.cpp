#include "mhla/testing/accuracy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/testing/plain.h"

namespace mhla {
namespace {

std::string where(const Case& c, std::string_view candidate) {
  return str("\n  candidate ", candidate, "; to run it alone: MHLA_CASE='", c.name(), "' and this test\n");
}

RunOptions options(std::string_view candidate, Executor* executor = nullptr) {
  RunOptions run;
  run.candidate = candidate;
  run.maybe_executor = executor;
  return run;
}

std::string compare_bits(const CaseResult& got, const CaseResult& want, const char* what) {
  for (const ResultField& field : kResultFields) {
    const Tensor &a = got.*field.tensor, &b = want.*field.tensor;
    if (!b.given() || a.same_bits(b)) continue;
    return str(field.name, " has other bits ", what, ": ", worst_element(a, b));
  }
  return {};
}

// Rows [start, start + length) of one batch element of a per-token result.
Tensor rows_of(const Tensor& x, const Sequence& sequence) {
  ConstView view = x.view();
  const std::int64_t offset = sequence.batch * view.stride[0] + sequence.start * view.stride[1];
  view.data = static_cast<const std::byte*>(view.data) + offset * size_of(view.dtype);
  view.shape[0] = 1, view.shape[1] = sequence.length;
  return contiguous(view);
}

// Per-token results of one sequence inside `all` against those of a run over it alone.
std::string compare_rows(const CaseResult& all, const CaseResult& alone, const Sequence& sequence, const char* what) {
  for (const ResultField& field : kResultFields) {
    const Tensor& whole = all.*field.tensor;
    if (field.tensor == &CaseResult::dmix || !whole.given()) continue;
    const Tensor got = rows_of(whole, sequence);
    const Tensor& want = alone.*field.tensor;
    if (!got.same_bits(want)) {
      return str(field.name, " of the sequence at batch ", sequence.batch, ", token ", sequence.start,
                 " has other bits ", what, ": ", worst_element(got, want));
    }
  }
  return {};
}

// NaN exactly where the reference has it: neither swallowed nor spread further. dmix is a sum over tokens, heads and
// batch; there a NaN may reach the entries of other heads, but never be lost.
std::string compare_nan(const CaseResult& got, const CaseResult& want) {
  for (const ResultField& field : kResultFields) {
    const Tensor &g = got.*field.tensor, &w = want.*field.tensor;
    for (std::int64_t index = 0; index < g.numel(); ++index) {
      const bool spread = std::isnan(g.at(index)) && field.tensor == &CaseResult::dmix;
      if (std::isnan(g.at(index)) != std::isnan(w.at(index)) && !spread)
        return str(field.name, " element ", index, " is ", g.at(index), ", expected ", w.at(index));
    }
  }
  return {};
}

struct Largest {
  double rms = 0, max = 0, of_rms_bound = 0, of_max_bound = 0;
  void add(const Accuracy& a) {
    rms = std::max(rms, a.rms), max = std::max(max, a.max);
    of_rms_bound = std::max(of_rms_bound, a.rms / a.rms_bound),
    of_max_bound = std::max(of_max_bound, a.max / a.max_bound);
  }
};
std::map<std::string, Largest>& seen() {
  static std::map<std::string, Largest> largest;
  return largest;
}

}  // namespace

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0x1p-23;
    case DType::kBF16: return 0x1p-7;
    case DType::kF16: return 0x1p-10;
    case DType::kF64: return 0x1p-52;
    default: fail("epsilon_of: dtype is ", name_of(dtype), ", expected a float type");
  }
}

void PooledError::add(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape())
    fail("compare: got shape ", shape_text(got.shape()), ", expected ", shape_text(want.shape()));
  for (std::int64_t index = 0; index < want.numel(); ++index) {
    const double difference = std::abs(got.at(index) - want.at(index)), size = std::abs(want.at(index));
    square_ += difference * difference, want_square_ += size * size;
    if (!(difference <= largest_)) largest_ = difference;  // keeps a NaN
    if (!(size <= want_largest_)) want_largest_ = size;
  }
}

// A NaN makes the sum of squares NaN for good; 0 / 0 is an exact result.
double PooledError::rms() const { return square_ == 0 ? 0 : std::sqrt(square_ / want_square_); }
double PooledError::max() const { return square_ == 0 ? 0 : std::isnan(square_) ? square_ : largest_ / want_largest_; }

Accuracy judge(const PooledError& got, const PooledError& plain, DType dtype, bool gradient) {
  Accuracy a;
  const double epsilon = epsilon_of(dtype);
  a.rms = got.rms(), a.plain_rms = plain.rms(), a.max = got.max(), a.plain_max = plain.max();
  a.rms_bound = (gradient ? 1.5 : 1.0) * a.plain_rms + epsilon;
  a.max_bound = 8 * std::max(a.plain_max, epsilon);
  return a;
}

Accuracy measure_accuracy(const Tensor& got, const Tensor& plain, const Tensor& want, bool gradient) {
  PooledError error, plain_error;
  error.add(got, want), plain_error.add(plain, want);
  return judge(error, plain_error, got.dtype(), gradient);
}

std::string check_accuracy(const Case& c, std::string_view candidate) {
  constexpr std::size_t kFields = std::size(kResultFields);
  std::array<PooledError, kFields> errors, plain_errors;
  std::array<std::string, kFields> worst;
  CaseResult got;
  const std::int64_t cost = c.B * c.N * c.H * c.D * c.E;
  const std::uint64_t repeats = cost == 0 ? 1 : cost < 30000 ? 4 : cost < 300000 ? 2 : 1;
  for (std::uint64_t repeat = 0; repeat < repeats; ++repeat) {
    Case seeded = c;
    seeded.seed += 1000 * repeat;
    const CaseInputs inputs(seeded);
    got = run_case(seeded, inputs, options(candidate));
    const CaseResult want = reference_case(seeded, inputs), plain = plain_case(seeded, inputs);
    for (std::size_t f = 0; f < kFields; ++f) {
      const auto tensor = kResultFields[f].tensor;
      if (!(got.*tensor).given()) continue;
      errors[f].add(got.*tensor, want.*tensor), plain_errors[f].add(plain.*tensor, want.*tensor);
      worst[f] = worst_element(got.*tensor, want.*tensor);
    }
  }
  for (std::size_t f = 0; f < kFields; ++f) {
    const ResultField& field = kResultFields[f];
    if ((got.*field.tensor).numel() == 0) continue;
    const Accuracy a = judge(errors[f], plain_errors[f], (got.*field.tensor).dtype(), field.gradient);
    seen()[str(candidate, " ", name_of(c.dtype), " ", field.name)].add(a);
    if (a.holds()) continue;
    return str(field.name, ": RMS error ", a.rms, " (bound ", a.rms_bound, ", plain code ", a.plain_rms,
               "), max error ", a.max, " (bound ", a.max_bound, ", plain code ", a.plain_max, "), over ", repeats,
               " seeds; in the last one ", worst[f], where(c, candidate));
  }
  return {};
}

std::string accuracy_summary() {
  std::ostringstream text;
  text << std::setprecision(2);
  for (const auto& [name, largest] : seen()) {
    text << "accuracy " << name << ": largest RMS error " << largest.rms << " (" << 100 * largest.of_rms_bound
         << " % of its bound), max error " << largest.max << " (" << 100 * largest.of_max_bound << " %)\n";
  }
  return text.str();
}

std::string check_repeatable(const Case& c, std::string_view candidate) {
  const CaseInputs inputs(c);
  InlineExecutor one;
  const CaseResult want = run_case(c, inputs, options(candidate, &one));
  std::string wrong = compare_bits(run_case(c, inputs, options(candidate, &one)), want, "in a second run");
  for (const int threads : {2, 7}) {
    if (!wrong.empty()) break;
    ThreadPool pool(threads);
    wrong =
        compare_bits(run_case(c, inputs, options(candidate, &pool)), want, str("with ", threads, " threads").c_str());
  }
  return wrong.empty() ? wrong : wrong + where(c, candidate);
}

std::string check_kept(const Case& c, std::string_view candidate) {
  const CaseInputs inputs(c);
  const CaseResult want = run_case(c, inputs, options(candidate));
  std::int64_t kept = 0;
  const CaseResult got = run_case(c, inputs, options(candidate), kAllResults, &kept);
  const bool rounds_alike = c.form == Form::kBidirectional || !on_device(candidate);
  for (const ResultField& field : kResultFields) {
    const Tensor &a = got.*field.tensor, &b = want.*field.tensor;
    if (!b.given() || a.same_bits(b) || (!rounds_alike && rms_error(a, b) <= 1.0 / 256)) continue;
    return str(field.name, " differs with summaries that forward kept: ", worst_element(a, b), where(c, candidate));
  }
  return {};
}

std::string check_alone(const Case& c, std::string_view candidate) {
  const CaseInputs inputs(c);
  const CaseResult all = run_case(c, inputs, options(candidate));
  for (const Sequence& sequence : c.sequences()) {
    const CaseSlice alone = slice_case(c, inputs, sequence.batch, sequence.start, sequence.length);
    const std::string wrong =
        compare_rows(all, run_case(alone.c, alone.inputs, options(candidate)), sequence, "than alone");
    if (!wrong.empty()) return wrong + where(c, candidate);
  }
  return {};
}

std::string check_nan_stays(const Case& c, std::string_view candidate) {
  struct Input {
    const char* name;
    ConstView CaseInputs::*view;
  };
  constexpr Input kInputs[] = {
      {"q", &CaseInputs::q}, {"k", &CaseInputs::k}, {"v", &CaseInputs::v}, {"dout", &CaseInputs::dout}};
  const std::vector<Sequence> sequences = c.sequences();
  const CaseInputs clean = CaseInputs(c).to(c.dtype);  // contiguous, so that a token is one stretch of memory
  Case contiguous_case = c;
  contiguous_case.fused = contiguous_case.broadcast = false;
  const CaseResult undisturbed = run_case(contiguous_case, clean, options(candidate));
  for (const Sequence& poisoned : sequences) {
    for (const Input& input : kInputs) {
      if (poisoned.length == 0) continue;
      const CaseInputs inputs = clean.to(c.dtype);
      const ConstView& view = inputs.*input.view;
      const std::int64_t token = poisoned.start + poisoned.length / 2;
      CaseInputs::set(view, poisoned.batch * view.stride[0] + token * view.stride[1],
                      std::numeric_limits<double>::quiet_NaN());
      const CaseResult got = run_case(contiguous_case, inputs, options(candidate));
      const CaseResult want = reference_case(contiguous_case, inputs);
      std::string wrong = compare_nan(got, want);
      for (const Sequence& other : sequences) {
        if (!wrong.empty() || (other.batch == poisoned.batch && other.start == poisoned.start)) continue;
        CaseResult alone;
        for (const ResultField& field : kResultFields) {
          const Tensor& x = undisturbed.*field.tensor;
          if (x.given() && field.tensor != &CaseResult::dmix) alone.*field.tensor = rows_of(x, other);
        }
        wrong = compare_rows(got, alone, other, "beside a sequence with NaN");
      }
      if (!wrong.empty()) return str(wrong, " (NaN in ", input.name, " at token ", token, ")", where(c, candidate));
    }
  }
  return {};
}

std::string check_strides(const Case& c, std::string_view candidate) {
  const CaseInputs inputs(c);
  Case contiguous_case = c;
  contiguous_case.fused = contiguous_case.broadcast = false;
  const std::string wrong =
      compare_bits(run_case(c, inputs, options(candidate)),
                   run_case(contiguous_case, inputs.to(c.dtype), options(candidate)), "with strided views");
  return wrong.empty() ? wrong : wrong + where(c, candidate);
}

}  // namespace mhla
