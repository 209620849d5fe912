// The `cuda` candidate of streaming: which states it takes, and the launches of a call. Counters stay on the host, so a
// call knows what to launch without asking the device, and a chunk's end costs decode one launch more.
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/kernels/streaming/streaming_cuda_call.h"

namespace mhla {
namespace {

using namespace cuda;
using Impl = StreamingState::Impl;

std::string fit_cuda(const StreamingConfig& c) {
  if (!cuda_built()) return "built without CUDA";
  if (c.dtype == DType::kF64) return "dtype f64";
  if (c.D > kMaxHeadSize) return str("D is ", c.D, ", above ", kMaxHeadSize);
  if (c.E > kMaxHeadSize) return str("E is ", c.E, ", above ", kMaxHeadSize);
  if (c.H > kMaxHeads) return str("H is ", c.H, ", above ", kMaxHeads);
  if (c.chunk + *c.rollback > kMostChunks)
    return str("a ring of ", c.chunk + *c.rollback, " tokens, above ", kMostChunks);
  return {};
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
      expect_chunks(state, a.T, b);
    }
    if (a.T == 1) return;
    const StreamingConfig& c = any.config;
    const std::int64_t row = any.prefixes() * job_.shape.layout.stride, values = any.normalized() ? c.H * c.chunk : 0;
    job_.piece = static_cast<std::int32_t>(piece_size(longest_, a.B * (row + 4 * values), any.extend()));
    job_.maybe_prefixes = workspace.take<std::byte>(a.B * (job_.piece - 1) * row, "prefixes");
    if (values > 0) job_.maybe_den = workspace.take<float>(a.B * job_.piece * values, "denominators");
  }

  void run() {
    look_at(0);
    const bool mixed = mix_stale();
    const CallNumber call = next_call(any_device(), a_.stream);
    const bool early = !mixed && settled(call);
    for (std::int64_t b = 0; b < a_.B; ++b) a_.state(b).last_call = call.own, a_.state(b).last_stream = a_.stream;
    a_.T == 1 ? decode(early) : append();
    for (std::int64_t b = 0; b < a_.B; ++b) {
      StreamingCounters& at = next_[static_cast<std::size_t>(b)];
      count_tokens(at, a_.T);
      a_.state(b).at = at;
    }
  }

 private:
  // What piece `index` is for every sequence.
  void look_at(std::int64_t index) {
    piece_.clear();
    for (std::int64_t b = 0; b < a_.B; ++b) {
      piece_.push_back(sequence_of(a_.state(b), next_[static_cast<std::size_t>(b)], a_.T, job_.piece, index));
      piece_.back().batch = static_cast<std::int32_t>(b);
    }
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

  bool mix_stale() {
    bool any = false;
    job_.open_only = true;
    in_lists([&](const StreamSequence& s) { return next_[static_cast<std::size_t>(s.batch)].stale; },
             [&] { stream_prefixes(dtype_, job_, a_.stream), any = true; });
    job_.open_only = false;
    for (StreamingCounters& at : next_) at.stale = false;
    return any;
  }

  [[nodiscard]] int any_device() const { return a_.state(0).config.device; }

  // Whether another call of ours lies between this one and the last that wrote any of these states (next_call).
  [[nodiscard]] bool settled(const CallNumber& call) const {
    for (std::int64_t b = 0; b < a_.B; ++b) {
      const Impl& state = a_.state(b);
      if (state.last_call == 0) continue;
      if (state.last_stream != a_.stream || state.last_call == call.before || call.before == 0) return false;
    }
    return true;
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
    for (const StreamSequence& s : piece_) pass(s, next_[static_cast<std::size_t>(s.batch)]);
  }

  void decode(bool early) {
    DecodeCall job;
    job.shape = job_.shape, job.early = early;
    set_tensors(job, a_);
    for (std::int64_t b = 0; b < a_.B; b += job.count) {
      job.first = static_cast<std::int32_t>(b);
      job.count = static_cast<std::int32_t>(std::min<std::int64_t>(kDecodeSequences, a_.B - b));
      job.closers = 0;
      for (std::int64_t n = 0; n < job.count; ++n) {
        const Impl& state = a_.state(b + n);
        job.sequences[n] = decode_sequence(state);
        if (piece_[static_cast<std::size_t>(b + n)].closed > 0)
          job.closing[job.closers++] = static_cast<std::uint8_t>(n);
      }
      if (job.shape.layout.panels)
        stream_decode_panels(job, a_.stream);
      else
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
    .prefix_bytes = [](const Impl& state) { return prefix_layout(state).stride; },
};

}  // namespace mhla
