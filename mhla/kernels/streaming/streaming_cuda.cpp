// The `cuda` candidate of streaming: which states it takes, and the launches of a call. Counters stay on the host, so a
// call knows what to launch without asking the device, and a chunk's end costs decode one launch more.
#include "mhla/kernels/streaming/streaming_cuda.h"

#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla {
namespace {

using namespace cuda;
using Impl = StreamingState::Impl;

constexpr std::int64_t kMost = kMaxBlockTokens - 1;  // chunks, slots, places

std::string fit_cuda(const StreamingConfig& c) {
  if (!cuda_built()) return "built without CUDA";
  if (c.dtype == DType::kF64) return "dtype f64";
  if (c.D > kMaxHeadSize) return str("D is ", c.D, ", above ", kMaxHeadSize);
  if (c.E > kMaxHeadSize) return str("E is ", c.E, ", above ", kMaxHeadSize);
  if (c.H > kMaxHeads) return str("H is ", c.H, ", above ", kMaxHeads);
  if (c.chunk + *c.rollback > kMost) return str("a ring of ", c.chunk + *c.rollback, " tokens, above ", kMost);
  return {};
}

StreamShape shape_of(const Impl& state) {
  const StreamingConfig& c = state.config;
  const auto small = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const auto offset = [&](const std::byte* part) {
    return part == nullptr ? std::int64_t{0} : part - state.bytes().data();
  };
  StreamShape s;
  s.C = small(c.chunk), s.D = small(c.D), s.E = small(c.E), s.Hkv = small(c.Hkv), s.group = small(state.group());
  s.L = small(state.L), s.slots = small(state.slots), s.ring = small(state.ring);
  s.columns = small(state.layout.size());
  s.per_head = state.Hm > 1, s.extend = state.extend(), s.normalized = state.normalized(), s.has_den = c.den_features;
  s.feature_map = c.feature_map;
  s.eps = static_cast<float>(c.eps), s.scale = static_cast<float>(*c.scale);
  s.stride = state.layout.stride();
  s.mix = offset(state.mix), s.summaries = offset(state.summaries), s.sum = offset(state.sum);
  s.prefix[0] = offset(state.prefix[0]), s.prefix[1] = offset(state.prefix[1]);
  s.k = offset(state.k), s.v = offset(state.v), s.k_den = offset(state.k_den);
  return s;
}

template <class Job>
void set_tensors(Job& job, const StreamingAppend& a) {
  job.q = tensor_of(a.q), job.k = tensor_of(a.k), job.v = tensor_of(a.v), job.out = tensor_of(a.out);
  job.q_den = tensor_of(a.maybe_q_den), job.k_den = tensor_of(a.maybe_k_den);
}

// One call. States move at its end, when every launch was accepted.
class DeviceAppend {
 public:
  DeviceAppend(const StreamingAppend& a, Workspace& workspace) : a_(a), dtype_(a.state(0).config.dtype) {
    const Impl& any = a.state(0);
    job_.shape = shape_of(any);
    job_.T = a.T;
    set_tensors(job_, a);
    for (std::int64_t b = 0; b < a.B; ++b) {
      const Impl& state = a.state(b);
      next_.push_back(state.at);
      longest_ = std::max(longest_, chunks_of(state.at.position, a.T, state.config.chunk));
      if ((state.at.position + a.T) / state.config.chunk >= kMost)
        fail("streaming_append: state ", b, " would hold more than ", kMost, " chunks, the most of candidate cuda");
    }
    if (a.T == 1) return;
    const StreamingConfig& c = any.config;
    const std::int64_t row = any.prefixes() * any.layout.stride(), values = any.normalized() ? c.H * c.chunk : 0;
    job_.piece = static_cast<std::int32_t>(piece_size(longest_, 4 * a.B * (row + values), any.extend()));
    job_.maybe_prefixes = workspace.take<float>(a.B * (job_.piece - 1) * row, "prefixes");
    if (values > 0) job_.maybe_den = workspace.take<float>(a.B * job_.piece * values, "denominators");
  }

  void run() {
    look_at(0);
    mix_stale();
    a_.T == 1 ? decode() : append();
    for (std::int64_t b = 0; b < a_.B; ++b) {
      StreamingCounters& at = next_[static_cast<std::size_t>(b)];
      at.position += a_.T;
      at.furthest = std::max(at.furthest, at.position);
      a_.state(b).at = at;
    }
  }

 private:
  // What piece `index` is for every sequence.
  void look_at(std::int64_t index) {
    piece_.clear();
    for (std::int64_t b = 0; b < a_.B; ++b) piece_.push_back(sequence_of(b, index));
  }
  [[nodiscard]] StreamSequence sequence_of(std::int64_t b, std::int64_t index) const {
    const Impl& state = a_.state(b);
    const StreamingCounters& at = next_[static_cast<std::size_t>(b)];
    PieceRange range = piece_range(at.position, a_.T, state.config.chunk, job_.piece, index);
    if (!state.extend()) range.closed = std::clamp<std::int64_t>(state.L - 1 - range.first, 0, range.closed);
    StreamSequence s;
    s.state = state.bytes().data(), s.start = at.position, s.batch = static_cast<std::int32_t>(b);
    s.first = static_cast<std::int32_t>(range.first), s.chunks = static_cast<std::int32_t>(range.chunks);
    s.closed = static_cast<std::int32_t>(range.closed), s.open = at.open;
    s.base = s.next_base = static_cast<std::int32_t>(at.base);
    if (state.extend() && range.closed > 0) {
      const std::int64_t base = oldest_block(range.first + range.closed, state.L, state.back);
      s.next_base = static_cast<std::int32_t>(std::max(at.base, base));
    }
    return s;
  }

  // f() for lists of the sequences of the piece that are wanted, as many as one launch takes.
  template <class Wanted, class F>
  void in_lists(const Wanted& wanted, const F& f) {
    job_.count = 0;
    for (const StreamSequence& s : piece_) {
      if (wanted(s)) job_.sequences[job_.count++] = s;
      if (job_.count == kSequences) f(), job_.count = 0;
    }
    if (job_.count > 0) f();
  }

  void mix_stale() {
    job_.open_only = true;
    in_lists([&](const StreamSequence& s) { return next_[static_cast<std::size_t>(s.batch)].stale; },
             [&] { stream_prefixes(dtype_, job_, a_.stream); });
    job_.open_only = false;
    for (StreamingCounters& at : next_) at.stale = false;
  }

  // Summaries (decode has them already) and prefixes of what the piece completes.
  void close(bool summaries) {
    in_lists([](const StreamSequence& s) { return s.closed > 0; },
             [&] {
               if (summaries) stream_summaries(dtype_, job_, a_.stream);
               stream_prefixes(dtype_, job_, a_.stream);
             });
  }
  void moved() {
    in_lists([](const StreamSequence& s) { return s.base < s.next_base; }, [&] { stream_fold(job_, a_.stream); });
    for (const StreamSequence& s : piece_) {
      StreamingCounters& at = next_[static_cast<std::size_t>(s.batch)];
      at.base = s.next_base;
      if (s.closed > 0) at.open ^= 1;
    }
  }

  void decode() {
    DecodeJob job;
    job.shape = job_.shape;
    set_tensors(job, a_);
    for (std::int64_t b = 0; b < a_.B; b += job.count) {
      job.first = static_cast<std::int32_t>(b);
      job.count = static_cast<std::int32_t>(std::min<std::int64_t>(kDecodeSequences, a_.B - b));
      job.closers = 0;
      for (std::int64_t n = 0; n < job.count; ++n) {
        const Impl& state = a_.state(b + n);
        job.sequences[n] = {state.bytes().data(), Impl::as<float>(state.prefix[state.at.open]), state.at.position};
        if (piece_[static_cast<std::size_t>(b + n)].closed > 0)
          job.closing[job.closers++] = static_cast<std::uint8_t>(n);
      }
      stream_decode(dtype_, job, a_.stream);
    }
    close(/*summaries=*/false);
    moved();
  }

  void append() {
    const auto any = [](const StreamSequence& s) { return s.chunks > 0; };
    for (std::int64_t index = 0; index * job_.piece < longest_; ++index) {
      if (index > 0) look_at(index);
      close(/*summaries=*/true);
      in_lists(any, [&] {
        if (job_.shape.normalized) stream_denominators(dtype_, job_, a_.stream);
        stream_read_out(dtype_, job_, a_.stream);
      });
      moved();
    }
    in_lists([](const StreamSequence&) { return true; }, [&] { stream_keep(dtype_, job_, a_.stream); });
  }

  const StreamingAppend& a_;
  DType dtype_;
  StreamJob job_;
  std::int64_t longest_ = 0;
  std::vector<StreamingCounters> next_;
  std::vector<StreamSequence> piece_;
};

void append_cuda(const StreamingAppend& a, Workspace& workspace, Executor& /*executor*/) {
  DeviceAppend call(a, workspace);
  if (!workspace.counting()) call.run();
}

// Summaries and rings say all: a prefix of another chunk is mixed by the next call, on its stream.
void rebuild_cuda(Impl& state, bool same_chunk) { state.at.stale = state.at.stale || !same_chunk; }

}  // namespace

const StreamingCandidate kStreamingCuda = {
    .name = "cuda",
    .on_device = true,
    .fit = fit_cuda,
    .element = DType::kF32,
    .keeps_features = false,
    .extra_slots = kExtendPiece,
    .lanes = [] { return std::int64_t{0}; },
    .instruction_set = [] { return std::string("cuda"); },
    .append = append_cuda,
    .rebuild = rebuild_cuda,
};

}  // namespace mhla
