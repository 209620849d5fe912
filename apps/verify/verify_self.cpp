// The self-check: the same cases and checks that the tests use, run by the program that is going to be trusted.
// One row per form, candidate, element type and check, with the worst case of its list; the accuracy rows show the
// RMS error against f64 as a share of what the rule allows.
#include "apps/verify/verify_self.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "apps/bench/problem.h"
#include "apps/cli/candidates.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/accuracy.h"
#include "mhla/testing/plain.h"
#include "mhla/testing/run_case_device.h"

namespace mhla::apps {
namespace {

// Cases of the size models use, beside the small ones: head sizes and blocks that take the fast paths.
std::vector<Case> model_shapes(Form form) {
  std::vector<Case> cases;
  const auto add = [&](std::int64_t N, std::int64_t D, std::int64_t E, const Layout& layout) {
    Case c;
    c.form = form;
    c.normalizer = form == Form::kCausal ? Normalizer::kNone : Normalizer::kPaper;
    c.N = N, c.H = 2, c.Hkv = 2, c.D = D, c.E = E, c.layout = layout, c.seed = 100 + cases.size();
    cases.push_back(c);
  };
  if (form == Form::kBidirectional) {
    add(256, 64, 64, Layout::grid2d(16, 16, 4, 4));
    add(1024, 72, 72, Layout::grid2d(32, 32, 4, 4));
    add(1024, 32, 32, Layout::grid2d(32, 32, 4, 4));
    add(630, 128, 128, Layout::grid3d({7, 9, 10}, {7, 3, 5}));
  } else {
    add(512, 128, 256, Layout::line(64));
    add(600, 64, 64, Layout::line(128));
  }
  return cases;
}

// `quick`: two dozen of the small ones, from everywhere in the lists.
std::vector<Case> all_cases(Form form, DType dtype, bool quick) {
  std::vector<Case> cases;
  const auto add = [&](const std::vector<Case>& more, std::size_t step) {
    for (std::size_t i = step / 2; i < more.size(); i += step) cases.push_back(more[i]);
  };
  add(forgotten_shapes(form), quick ? 11 : 1);
  add(option_combinations(form), quick ? 17 : 1);
  if (quick) add(fast_path_shapes(form), 5);
  if (!quick) add(model_shapes(form), 1);
  for (Case& c : cases) {
    c.dtype = dtype;
    if (dtype == DType::kF16) c.eps = std::max(c.eps, 0.1);  // 1 / 1e-6 is beyond f16: plain code overflows
  }
  return cases;
}

struct Verdict {
  std::string form, backend, dtype, check;
  int cases = 0;
  double share = 0.0;  // of the bound, for accuracy; worst case
  bool measured = false;
  std::string failure = {};  // of the first case that failed
};

class SelfCheck {
 public:
  SelfCheck(const Output& out, bool quick)
      : out_(out),
        quick_(quick),
        table_(
            out,
            {{"form", -14}, {"backend", -8}, {"dtype", -6}, {"check", -30}, {"cases", 6}, {"of bound", 9}, {"", -6}}) {
    table_.head();
  }

  void accuracy(Form form, const std::vector<std::string>& backends, DType dtype);
  void bits(Form form, const std::string& backend, DType dtype);
  void splits(const std::string& backend, DType dtype);

  int checked = 0, failed = 0;

 private:
  void report(Verdict verdict);
  const Output& out_;
  bool quick_;
  TextTable table_;
};

const char* form_name(Form form) { return form == Form::kCausal ? "causal" : "bidirectional"; }

void SelfCheck::report(Verdict v) {
  std::replace(v.failure.begin(), v.failure.end(), '\n', ' ');
  ++checked;
  if (!v.failure.empty()) ++failed;
  table_.row({v.form, v.backend, v.dtype, v.check, std::to_string(v.cases),
              v.measured ? fmt::format("{:.2f}", v.share) : "", v.failure.empty() ? "ok" : "FAILED"});
  if (!v.failure.empty()) out_.line("  " + v.failure);
  out_.row(JsonValue()
               .set("kind", "check")
               .set("form", v.form)
               .set("backend", v.backend)
               .set("dtype", v.dtype)
               .set("check", v.check)
               .set("cases", v.cases)
               .set("of_bound", v.measured ? JsonValue(v.share) : JsonValue())
               .set("ok", v.failure.empty())
               .set("failure", v.failure.empty() ? JsonValue() : JsonValue(v.failure)));
}

// Reference and plain code are computed once per case, for all candidates. The error of a handful of elements is luck:
// small cases are repeated with other seeds and their errors pooled, as in the tests.
void SelfCheck::accuracy(Form form, const std::vector<std::string>& backends, DType dtype) {
  struct Errors {
    PooledError got, plain;
    bool judged = false;
    std::string refusal = {};
    DType stored = DType::kF32;  // dmix is f32 whatever the tokens are
  };
  std::vector<Verdict> verdicts;  // [backend][field]
  for (const std::string& backend : backends)
    for (const ResultField& field : kResultFields)
      verdicts.push_back(
          {form_name(form), backend, std::string(name_of(dtype)), fmt::format("accuracy of {}", field.name)});
  std::map<std::string, std::pair<int, std::string>> aside;  // candidate: cases it does not take, the last reason
  const std::vector<Case> cases = all_cases(form, dtype, quick_);
  for (const Case& c : cases) {
    out_.progress(fmt::format("accuracy {}", c.name()));
    std::map<std::string, bool> takes, takes_backward;
    for (const std::string& backend : backends) {
      const std::string why = steps_aside(c, backend);
      takes[backend] = why.empty();
      takes_backward[backend] = has_backward(form, backend) && steps_aside(c, backend, true).empty();
      if (!why.empty()) aside[backend] = {aside[backend].first + 1, why};
    }
    std::vector<Errors> errors(verdicts.size());
    const std::int64_t cost = c.B * c.N * c.H * c.D * c.E;
    const std::uint64_t repeats = cost == 0 ? 1 : cost < 30000 ? 4 : cost < 300000 ? 2 : 1;
    for (std::uint64_t repeat = 0; repeat < repeats; ++repeat) {
      Case seeded = c;
      seeded.seed += 1000 * repeat;
      const CaseInputs inputs(seeded);
      const CaseResult want = reference_case(seeded, inputs), plain = plain_case(seeded, inputs);
      auto error = errors.begin();
      for (const std::string& backend : backends) {
        RunOptions run;
        run.candidate = backend;
        CaseResult got;
        std::string refusal;
        try {
          if (takes[backend]) got = run_case(seeded, inputs, run);
        } catch (const Error& refused) {
          refusal = refused.what();
        }
        for (const ResultField& field : kResultFields) {
          Errors& e = *error++;
          const Tensor &mine = got.*field.tensor, &truth = want.*field.tensor;
          if (!truth.given() || truth.numel() == 0) continue;
          if (!takes[backend] || (field.gradient && !takes_backward[backend])) continue;
          e.judged = true;
          if (!mine.given()) {
            e.refusal = refusal.empty() ? "nothing was computed" : refusal;
            continue;
          }
          e.stored = mine.dtype();
          e.got.add(mine, truth);
          e.plain.add(plain.*field.tensor, truth);
        }
      }
    }
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const Errors& e = errors[i];
      Verdict& v = verdicts[i];
      if (!e.judged) continue;
      ++v.cases;
      const Accuracy a = judge(e.got, e.plain, e.stored, kResultFields[i % std::size(kResultFields)].gradient);
      v.measured = true;
      v.share = std::max(v.share, a.rms / a.rms_bound);
      if (!v.failure.empty() || (e.refusal.empty() && a.holds())) continue;
      v.failure = !e.refusal.empty()
                      ? str(c.name(), ": ", e.refusal)
                      : fmt::format("{}: RMS error {:.3g} (bound {:.3g}), max error {:.3g} (bound {:.3g})", c.name(),
                                    a.rms, a.rms_bound, a.max, a.max_bound);
    }
  }
  for (const Verdict& v : verdicts) report(v);
  for (const auto& [backend, count] : aside)
    out_.line(
        fmt::format("  {} stepped aside for {} of {} cases: {}", backend, count.first, cases.size(), count.second));
}

void SelfCheck::bits(Form form, const std::string& backend, DType dtype) {
  using Check = std::string (*)(const Case&, std::string_view);
  static constexpr std::pair<const char*, Check> kChecks[] = {{"same bits, 1, 2, 7 threads", check_repeatable},
                                                              {"same bits alone", check_alone},
                                                              {"NaN stays in its sequence", check_nan_stays},
                                                              {"same bits through strides", check_strides}};
  for (const auto& [name, check] : kChecks) {
    Verdict v{form_name(form), backend, std::string(name_of(dtype)), name};
    const std::vector<Case> cases = all_cases(form, dtype, quick_);
    // These run a case up to five times: one in five of the list, its end (the model shapes) among them.
    for (std::size_t i = (cases.size() + 4) % 5; i < cases.size(); i += 5) {
      const Case& c = cases[i];
      if (!steps_aside(c, backend).empty()) continue;
      out_.progress(fmt::format("{} {} {}", backend, name, c.name()));
      ++v.cases;
      if (!v.failure.empty()) continue;
      try {
        v.failure = check(c, backend);
      } catch (const Error& error) {
        v.failure = str(c.name(), ": ", error.what());
      }
    }
    report(v);
  }
}

// A sequence cut into calls of the given lengths (the last repeats) must give the bits of one chunkwise pass.
std::string check_split(const Case& c, const std::string& backend, const std::vector<std::int64_t>& lengths) {
  const CaseInputs inputs(c);
  RunOptions run;
  run.candidate = backend;
  const Tensor want = run_case(c, inputs, run, kOnlyOut).out;
  Tensor got(c.dtype, {c.B, c.N, c.H, c.E});

  StreamingConfig config;
  config.H = c.H, config.Hkv = c.Hkv, config.D = c.D, config.E = c.E, config.chunk = c.layout.block_size;
  config.dtype = c.dtype, config.feature_map = c.feature_map, config.normalizer = c.normalizer;
  config.eps = c.eps, config.scale = c.scale;
  CaseInputs placed = inputs.alias();
  View out = got.view();
  DevicePlace place(0, nullptr);
  if (on_device(backend)) {
    config.device = 0;
    place.move_input(placed.q, "q"), place.move_input(placed.k, "k"), place.move_input(placed.v, "v");
    place.move_output(out, got.guarded_bytes(), "out");
  }
  std::vector<StreamingState> states(static_cast<std::size_t>(c.B), StreamingState(config, inputs.mix, backend));
  std::vector<StreamingState*> pointers;
  for (StreamingState& state : states) pointers.push_back(&state);
  const auto tokens = [&](auto view, std::int64_t begin, std::int64_t count) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
    view.data = static_cast<Byte*>(view.data) + begin * view.stride[1] * size_of(view.dtype);
    view.shape[1] = count;
    return view;
  };
  std::size_t call = 0;
  for (std::int64_t begin = 0; begin < c.N;) {
    const std::int64_t count = std::min(lengths[std::min(call++, lengths.size() - 1)], c.N - begin);
    StreamingParams append;
    append.states = pointers;
    append.q = tokens(placed.q, begin, count);
    append.k = tokens(placed.k, begin, count);
    append.v = tokens(placed.v, begin, count);
    append.out = tokens(out, begin, count);
    streaming_append(append, run);
    begin += count;
  }
  if (on_device(backend)) place.finish(c.name());
  if (got.same_bits(want)) return {};
  return fmt::format("calls of {} tokens: {}: {}", fmt::join(lengths, ", "), worst_element(got, want), c.name());
}

void SelfCheck::splits(const std::string& backend, DType dtype) {
  Verdict v{"streaming", backend, std::string(name_of(dtype)), "same bits in any split"};
  for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
    for (const auto& [D, E, chunk] : {std::array<std::int64_t, 3>{16, 24, 16}, {64, 64, 32}, {40, 7, 5}}) {
      Case c;
      c.form = Form::kCausal;
      c.dtype = dtype;
      c.normalizer = normalizer;
      c.B = 2, c.N = 3 * chunk + 5, c.H = 4, c.Hkv = 2, c.D = D, c.E = E, c.layout = Layout::line(chunk);
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{1}, {c.N}, {chunk}, {chunk - 1, 1, 1}, {chunk + 1, 2}, {3, 2 * chunk, 1}}) {
        out_.progress(fmt::format("{} streaming {}", backend, c.name()));
        ++v.cases;
        if (v.failure.empty()) v.failure = check_split(c, backend, lengths);
      }
    }
  }
  report(v);
}

}  // namespace

int verify_self(const std::string& backend, const std::vector<std::string>& dtypes, bool quick, const Output& out) {
  std::vector<DType> types;
  for (const std::string& name : dtypes) types.push_back(parse_dtype(name));
  if (types.empty()) types = {DType::kF32, DType::kBF16, DType::kF16};
  // The candidates of a form and an element type, or the one that was asked for: it may take one of the types alone.
  const auto backends_of = [&](OpForm form, DType dtype) {
    std::vector<std::string> backends = available_candidates(form, dtype);
    if (!backend.empty()) std::erase_if(backends, [&](const std::string& name) { return name != backend; });
    return backends;
  };
  const bool any = std::any_of(types.begin(), types.end(),
                               [&](DType dtype) { return !backends_of(OpForm::kBidirectional, dtype).empty(); });
  if (!any) require_available(backend, OpForm::kBidirectional, types.front(), "verify");
  SelfCheck check(out, quick);
  for (const Form form : {Form::kBidirectional, Form::kCausal}) {
    for (const DType dtype : types) {
      const auto backends = backends_of(form == Form::kCausal ? OpForm::kCausal : OpForm::kBidirectional, dtype);
      if (!backends.empty()) check.accuracy(form, backends, dtype);
      for (const std::string& name : backends) check.bits(form, name, dtype);
    }
  }
  for (const DType dtype : types) {
    for (const std::string& name : backends_of(OpForm::kDecode, dtype)) check.splits(name, dtype);
  }
  const bool good = check.failed == 0 && check.checked > 0;
  out.line(fmt::format("{} checks, {} failed", check.checked, check.failed));
  out.row(JsonValue().set("kind", "summary").set("checked", check.checked).set("failed", check.failed).set("ok", good));
  return good ? kDone : kFailed;
}

}  // namespace mhla::apps
