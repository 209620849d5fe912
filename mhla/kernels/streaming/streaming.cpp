// The entry points of streaming: everything is checked before anything moves.
#include "mhla/kernels/streaming/streaming.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/problem.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla {
namespace {

constexpr const char* kState = "StreamingState";
constexpr const char* kAppend = "streaming_append";

constexpr const StreamingCandidate* kCandidates[] = {
    &kStreamingCuda, &kStreamingSimd,
    &kStreamingRef,  // the definition: by name, and for f64
};

std::string place_text(int device) { return device == kCpu ? std::string("cpu") : str("cuda:", device); }

void check_device(int device) {
  if (device == kCpu) return;
  if (device < kCpu) fail(kState, ": device is ", device, ", expected ", kCpu, " for host memory or a CUDA ordinal");
  if (const std::string missing = cuda_missing(); !missing.empty())
    fail(kState, ": device is ", place_text(device), ", but there is none: ", missing);
  if (device >= cuda_device_count())
    fail(kState, ": device is ", place_text(device), ", expected one below cuda:", cuda_device_count());
}

// A configuration as choose() of common/candidate.h sees a problem.
struct StateProblem {
  const StreamingConfig& config;
  [[nodiscard]] bool is_f64() const { return config.dtype == DType::kF64; }
  [[nodiscard]] std::string describe() const {
    return str(name_of(config.dtype), " H=", config.H, " Hkv=", config.Hkv, " D=", config.D, " E=", config.E, " on ",
               place_text(config.device));
  }
};

// A candidate of states, with the place of its memory as a part of what fits.
struct StateChoice {
  const StreamingCandidate* kind;
  const char* name = kind->name;
  bool on_device = kind->on_device;
  [[nodiscard]] std::string fit(const StateProblem& problem) const {
    const bool here = (problem.config.device == kCpu) != on_device;
    return here ? kind->fit(problem.config) : str("memory is on ", place_text(problem.config.device));
  }
};

std::vector<StateChoice> state_choices() {
  std::vector<StateChoice> list;
  for (const StreamingCandidate* candidate : kCandidates) list.push_back({candidate});
  return list;
}

// The configuration with its defaults filled in.
StreamingConfig checked(StreamingConfig c) {
  const auto at_least = [](std::int64_t value, std::int64_t least, const char* name) {
    if (value < least) fail(kState, ": ", name, " is ", value, ", expected at least ", least);
  };
  if (c.Hkv == 0) c.Hkv = c.H;
  at_least(c.H, 1, "H"), at_least(c.Hkv, 1, "Hkv"), at_least(c.D, 1, "D"), at_least(c.E, 1, "E");
  at_least(c.chunk, 1, "chunk");
  if (c.H % c.Hkv != 0) fail(kState, ": Hkv is ", c.Hkv, ", expected a divisor of H = ", c.H);
  if (!is_float(c.dtype)) fail(kState, ": dtype is ", name_of(c.dtype), ", expected f32, bf16, f16 or f64");
  if (c.normalizer == Normalizer::kOfficial) fail(kState, ": normalizer is official, expected none or paper");
  const bool normalized = c.normalizer == Normalizer::kPaper;
  if (c.den_features && !normalized) fail(kState, ": den_features with normalizer none, expected paper");
  if (!c.scale) c.scale = normalized ? 1.0 : 1.0 / std::sqrt(static_cast<double>(c.D));
  if (!c.rollback) c.rollback = c.chunk;
  at_least(*c.rollback, 0, "rollback");
  if (*c.rollback > INT64_MAX / 4 - c.chunk) fail(kState, ": rollback is ", *c.rollback, ", which overflows");
  if (!std::isfinite(c.eps)) fail(kState, ": eps is ", c.eps, ", expected a finite number");
  if (!std::isfinite(*c.scale)) fail(kState, ": scale is ", *c.scale, ", expected a finite number");
  check_device(c.device);
  return c;
}

// mix as [Hm, L, L].
ConstView checked_mix(const StreamingConfig& c, ConstView mix) {
  const bool per_head = mix.rank == 3;
  const int rows = mix.rank - 2;
  if ((mix.rank != 2 && mix.rank != 3) || mix.shape[rows] < 1 || mix.shape[rows] != mix.shape[rows + 1] ||
      (per_head && mix.shape[0] != c.H)) {
    fail(kState, ": mix has shape ", shape_text(mix), ", expected [L, L] or [", c.H, ", L, L] with L >= 1");
  }
  const DType dtype = c.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (mix.dtype != dtype) fail(kState, ": mix has dtype ", name_of(mix.dtype), ", expected ", name_of(dtype));
  if (mix.device != kCpu && mix.device != c.device) {
    fail(kState, ": mix is on ", place_text(mix.device), ", expected host memory",
         c.device == kCpu ? std::string() : str(" or ", place_text(c.device)));
  }
  if (mix.data == nullptr) fail(kState, ": mix has null data, expected ", shape_text(mix), " elements");
  if (!per_head) {
    mix.rank = 3;
    mix.shape = {1, mix.shape[0], mix.shape[1]};
    mix.stride = {0, mix.stride[0], mix.stride[1]};
  }
  return mix;
}

// Row by row; from a device one row of bytes at a time, gaps and all, then sorted out here.
void copy_mix(const ConstView& mix, int device, std::byte* to) {
  const std::int64_t L = mix.shape[1], size = size_of(mix.dtype), count = mix.shape[0] * L * L;
  std::vector<std::byte> packed(static_cast<std::size_t>(device == kCpu ? 0 : count * size));
  std::byte* const host = device == kCpu ? to : packed.data();
  const std::int64_t step = mix.stride[2];
  std::vector<std::byte> row(static_cast<std::size_t>(mix.device == kCpu ? 0 : ((L - 1) * std::abs(step) + 1) * size));
  for (std::int64_t line = 0; line < mix.shape[0] * L; ++line) {
    const auto* from =
        static_cast<const std::byte*>(mix.data) + (line / L * mix.stride[0] + line % L * mix.stride[1]) * size;
    if (mix.device != kCpu) {
      const std::int64_t before = step < 0 ? (L - 1) * step * size : 0;
      device_copy(row.data(), from + before, static_cast<std::int64_t>(row.size()), mix.device);
      from = row.data() - before;
    }
    for (std::int64_t j = 0; j < L; ++j) std::copy_n(from + j * step * size, size, host + (line * L + j) * size);
  }
  if (device != kCpu) device_copy(to, host, count * size, device);
}

bool same_sizes(const StreamingState::Impl& a, const StreamingState::Impl& b) {
  const StreamingConfig &x = a.config, &y = b.config;
  return a.candidate == b.candidate && a.Hm == b.Hm && a.L == b.L && x.H == y.H && x.Hkv == y.Hkv && x.D == y.D &&
         x.E == y.E && x.chunk == y.chunk && x.dtype == y.dtype && x.feature_map == y.feature_map &&
         x.normalizer == y.normalizer && x.eps == y.eps && x.scale == y.scale && x.beyond_mix == y.beyond_mix &&
         x.den_features == y.den_features && x.rollback == y.rollback && x.device == y.device;
}

void check_states(const StreamingParams& params) {
  const std::span<StreamingState* const> states = params.states;
  for (std::size_t b = 0; b < states.size(); ++b) {
    if (states[b] == nullptr) fail(kAppend, ": state ", b, " is null");
    if (!same_sizes(states[b]->impl(), states[0]->impl())) {
      fail(kAppend, ": state ", b, " has another configuration than state 0, expected one for all");
    }
    const StreamingState::Impl& impl = states[b]->impl();
    if (impl.layout.lanes != impl.candidate->lanes()) {
      fail(kAppend, ": state ", b, " was made for vectors of ", impl.layout.lanes, " floats, now there are ",
           impl.candidate->lanes(), " (", impl.candidate->instruction_set(), "): save and load it");
    }
  }
  std::vector<StreamingState*> sorted(states.begin(), states.end());
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    const auto first = std::find(states.begin(), states.end(), *twice);
    const auto second = std::find(first + 1, states.end(), *twice);
    fail(kAppend, ": states ", first - states.begin(), " and ", second - states.begin(),
         " are the same, expected distinct states");
  }
}

void check_tensors(const StreamingParams& params, const StreamingState::Impl& state) {
  const StreamingConfig& c = state.config;
  const auto B = static_cast<std::int64_t>(params.states.size());
  if (params.q.rank != 4) fail(kAppend, ": q has shape ", shape_text(params.q), ", expected [B, T, H, D]");
  const std::vector<std::int64_t> want{B, params.q.shape[1], c.H, c.D};
  if (!std::equal(want.begin(), want.end(), params.q.shape.begin()) || params.q.shape[1] < 0) {
    fail(kAppend, ": q has shape ", shape_text(params.q), ", expected ", shape_text(want), " (B states, H, D)");
  }
  if (params.q.dtype != c.dtype) {
    fail(kAppend, ": q has dtype ", name_of(params.q.dtype), ", expected ", name_of(c.dtype), " like the state");
  }
  if (params.q.device != c.device) {
    fail(kAppend, ": q is on ", place_text(params.q.device), ", expected ", place_text(c.device), " like the state");
  }
  if (params.k.rank == 4 && params.k.shape[2] != c.Hkv) {
    fail(kAppend, ": k has ", params.k.shape[2], " heads, expected Hkv = ", c.Hkv);
  }
  if (params.v.rank == 4 && params.v.shape[3] != c.E) {
    fail(kAppend, ": v has size ", params.v.shape[3], ", expected E = ", c.E);
  }
  if (params.maybe_q_den.given() != c.den_features) {
    fail(kAppend, ": q_den and k_den are ", c.den_features ? "not " : "",
         "given to a state made with den_features = ", c.den_features ? "true" : "false");
  }
  Problem p;  // the checks of one pass: shapes, dtypes, strides, null data, overlap
  p.entry = kAppend;
  p.causal = p.extend = true;
  p.q = params.q, p.k = params.k, p.v = params.v, p.out = params.out;
  p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
  p.mix = ConstView(state.mix, c.dtype == DType::kF64 ? DType::kF64 : DType::kF32, {state.Hm, state.L, state.L});
  if (state.Hm == 1) p.mix = ConstView(state.mix, p.mix.dtype, {state.L, state.L});
  p.mix.device = c.device;
  p.layout = Layout::line(c.chunk);
  p.normalizer = c.normalizer;
  check_problem(p);
}

}  // namespace

void expect_room(const StreamingState& state, std::int64_t T, std::int64_t number) {
  if (T <= state.capacity() - state.position()) return;
  const StreamingState::Impl& impl = state.impl();
  fail(kAppend, ": state ", number, " is at position ", state.position(), " and T is ", T, ", expected at most ",
       state.capacity(), " tokens in all (L = ", impl.L, " rows of mix, C = ", impl.config.chunk, ")");
}

StreamingAppend checked_append(const StreamingParams& params, const RunOptions& run) {
  if (params.states.empty()) fail(kAppend, ": no states are given, expected at least one");
  check_states(params);
  check_tensors(params, params.states[0]->impl());
  const std::int64_t T = params.q.shape[1];
  for (std::size_t b = 0; b < params.states.size(); ++b) {
    expect_room(*params.states[b], T, static_cast<std::int64_t>(b));
  }
  return {.states = params.states,
          .q = params.q,
          .k = params.k,
          .v = params.v,
          .maybe_q_den = params.maybe_q_den,
          .maybe_k_den = params.maybe_k_den,
          .out = params.out,
          .B = static_cast<std::int64_t>(params.states.size()),
          .T = T,
          .stream = run.stream};
}

std::span<const StreamingCandidate* const> streaming_candidates() { return kCandidates; }

StreamingState::StreamingState(const StreamingConfig& config, ConstView mix, std::string_view candidate) {
  const StreamingConfig c = checked(config);
  const ConstView m = checked_mix(c, mix);
  const std::vector<StateChoice> list = state_choices();
  const StreamingCandidate& chosen = *choose(list, StateProblem{c}, candidate, kState).kind;
  impl_ = std::make_unique<Impl>(c, chosen, m.shape[0], m.shape[1]);
  copy_mix(m, c.device, impl_->mix);
}

StreamingState::StreamingState(const StreamingState& other)
    : impl_(std::make_unique<Impl>(other.impl_->config, *other.impl_->candidate, other.impl_->Hm, other.impl_->L)) {
  impl_->copy_from(*other.impl_);
}

StreamingState& StreamingState::operator=(const StreamingState& other) {
  if (this == &other) return *this;
  if (impl_ == nullptr || !same_sizes(*impl_, *other.impl_)) return *this = StreamingState(other);
  impl_->copy_from(*other.impl_);
  return *this;
}

StreamingState::StreamingState(StreamingState&&) noexcept = default;
StreamingState& StreamingState::operator=(StreamingState&&) noexcept = default;
StreamingState::~StreamingState() = default;

const StreamingConfig& StreamingState::config() const { return impl_->config; }
std::string_view StreamingState::candidate() const { return impl_->candidate->name; }
std::int64_t StreamingState::position() const { return impl_->at.position; }
std::int64_t StreamingState::bytes() const { return static_cast<std::int64_t>(impl_->bytes().size()); }
void StreamingState::reset() { impl_->clear(); }

std::int64_t StreamingState::capacity() const {
  std::int64_t tokens = 0;
  const bool endless = impl_->extend() || __builtin_mul_overflow(impl_->L, impl_->config.chunk, &tokens);
  return endless ? INT64_MAX : tokens;
}

std::int64_t StreamingState::rollback_limit() const {
  const StreamingCounters& at = impl_->at;
  return at.position - std::max<std::int64_t>(0, at.furthest - *impl_->config.rollback);
}

void StreamingState::rollback(std::int64_t tokens) {
  StreamingCounters& at = impl_->at;
  if (tokens < 0 || tokens > rollback_limit()) {
    fail("StreamingState::rollback: tokens is ", tokens, ", expected 0 to ", rollback_limit(),
         " (R = ", *impl_->config.rollback, ", position ", at.position, " of at most ", at.furthest, " so far)");
  }
  if (tokens == 0) return;
  const std::int64_t C = impl_->config.chunk, before = at.position / C;
  at.position -= tokens;
  impl_->candidate->rebuild(*impl_, at.position / C == before);
}

void streaming_append(const StreamingParams& params, const RunOptions& run) {
  const StreamingAppend a = checked_append(params, run);
  if (!run.candidate.empty() && run.candidate != a.state(0).candidate->name) {
    fail(kAppend, ": candidate is '", run.candidate, "', expected '", a.state(0).candidate->name,
         "': a state stays with its candidate");
  }
  if (a.T == 0) return;
  run_in_workspace(kAppend, a.state(0).config.device, run, [&](Workspace& workspace, Executor& executor) {
    a.state(0).candidate->append(a, workspace, executor);
  });
}

std::int64_t streaming_append_workspace(const StreamingParams& params, const RunOptions& run) {
  const StreamingAppend a = checked_append(params, run);
  if (a.T == 0) return 0;
  return count_workspace(a.state(0).config.device, run, [&](Workspace& workspace, Executor& executor) {
    a.state(0).candidate->append(a, workspace, executor);
  });
}

std::vector<Support> streaming_support(const StreamingConfig& config) {
  const StreamingConfig c = checked(config);
  return support_of(state_choices(), StateProblem{c});
}

}  // namespace mhla
