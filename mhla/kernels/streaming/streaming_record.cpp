#include "mhla/kernels/streaming/streaming_record.h"

#include <algorithm>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_cuda_call.h"

namespace mhla {
namespace {

using namespace cuda;

constexpr const char* kRecord = "StreamingRecord";

constexpr std::int64_t bytes_of_sequences(std::int64_t B) {
  return B * static_cast<std::int64_t>(sizeof(DecodeSequence));
}
constexpr std::int64_t bytes_of_closers(std::int64_t B) {
  return static_cast<std::int64_t>(sizeof(StreamClosers)) + B * static_cast<std::int64_t>(sizeof(StreamSequence));
}

void expect_part(std::span<std::byte> part, std::int64_t bytes, const char* name) {
  if (static_cast<std::int64_t>(part.size()) < bytes || reinterpret_cast<std::uintptr_t>(part.data()) % 8 != 0)
    fail(kRecord, ": the table's ", name, " have ", part.size(), " bytes at ", part.data(), ", expected ", bytes,
         " at a multiple of 8");
}

}  // namespace

struct StreamingRecord::Impl {
  StreamShape shape;
  DType dtype = DType::kF32;
  int device = 0;
  std::int64_t B = 0;
};

StreamingRecord::StreamingRecord(std::span<StreamingState* const> states) : impl_(std::make_unique<Impl>()) {
  if (states.empty() || states[0] == nullptr) fail(kRecord, ": no states are given, expected at least one");
  const StreamingState::Impl& state = states[0]->impl();
  if (!state.on_device()) fail(kRecord, ": the states are on the CPU, expected a CUDA device");
  impl_->shape = shape_of(state), impl_->dtype = state.config.dtype, impl_->device = state.config.device;
  impl_->B = static_cast<std::int64_t>(states.size());
}
StreamingRecord::~StreamingRecord() = default;
StreamingRecord::StreamingRecord(StreamingRecord&&) noexcept = default;
StreamingRecord& StreamingRecord::operator=(StreamingRecord&&) noexcept = default;

std::int64_t StreamingRecord::sequences_bytes() const { return bytes_of_sequences(impl_->B); }
std::int64_t StreamingRecord::closers_bytes() const { return bytes_of_closers(impl_->B); }

bool StreamingRecord::fits(std::span<StreamingState* const> states) const {
  if (static_cast<std::int64_t>(states.size()) != impl_->B) return false;
  return std::all_of(states.begin(), states.end(), [&](const StreamingState* state) {
    const StreamingState::Impl& own = state->impl();
    return own.config.device == impl_->device && own.config.dtype == impl_->dtype && !own.at.stale &&
           shape_of(own) == impl_->shape;
  });
}

void StreamingRecord::launch(const StreamingParams& params, const StreamingTable& table, bool closing,
                             const RunOptions& run) const {
  const StreamingAppend a = checked_append(params, run);
  if (a.T != 1 || !fits(params.states))
    fail(kRecord, "::launch: ", a.T, " tokens of ", a.B, " states, expected 1 of ", impl_->B,
         " states of the configuration of the record");
  expect_part(table.sequences, sequences_bytes(), "sequences");
  if (closing) expect_part(table.closers, closers_bytes(), "closers");
  const DeviceGuard guard(impl_->device);
  DecodeReplay job;
  job.shape = impl_->shape, job.early = true, job.count = static_cast<std::int32_t>(impl_->B);
  set_tensors(job, a);
  job.sequences = reinterpret_cast<const DecodeSequence*>(table.sequences.data());
  if (closing) job.maybe_closers = reinterpret_cast<const StreamClosers*>(table.closers.data());
  if (job.shape.layout.panels)
    stream_decode_panels(job, run.stream);
  else
    stream_decode(impl_->dtype, job, run.stream);
  if (!closing) return;
  StreamJob close;
  close.shape = impl_->shape, close.T = 1, close.maybe_closers = job.maybe_closers;
  close.count = static_cast<std::int32_t>(impl_->B);
  stream_prefixes(impl_->dtype, close, run.stream);
  if (close.shape.extend) stream_fold(close, run.stream);
}

bool StreamingRecord::tell(std::span<StreamingState* const> states, const StreamingTable& table) const {
  expect_part(table.sequences, sequences_bytes(), "sequences");
  expect_part(table.closers, closers_bytes(), "closers");
  StreamClosers closers;
  for (std::size_t b = 0; b < states.size(); ++b) {
    const StreamingState::Impl& state = states[b]->impl();
    expect_room(*states[b], 1, static_cast<std::int64_t>(b));
    expect_chunks(state, 1, static_cast<std::int64_t>(b));
    const DecodeSequence own = decode_sequence(state);
    std::memcpy(table.sequences.data() + b * sizeof(own), &own, sizeof(own));
    if ((state.at.position + 1) % state.config.chunk != 0) continue;
    StreamSequence piece = sequence_of(state, state.at, 1, 1, 0);
    if (piece.closed == 0) continue;
    piece.batch = static_cast<std::int32_t>(b);
    std::memcpy(table.closers.data() + sizeof(closers) + static_cast<std::size_t>(closers.count++) * sizeof(piece),
                &piece, sizeof(piece));
  }
  std::memcpy(table.closers.data(), &closers, sizeof(closers));
  return closers.count > 0;
}

void StreamingRecord::moved(std::span<StreamingState* const> states, void* stream) {
  if (states.empty()) return;
  const CallNumber call = next_call(states[0]->impl().config.device, stream);
  for (StreamingState* const each : states) {
    StreamingState::Impl& state = each->impl();
    pass(sequence_of(state, state.at, 1, 1, 0), state.at);
    count_tokens(state.at, 1);
    state.last_call = call.own, state.last_stream = stream;
  }
}

}  // namespace mhla
