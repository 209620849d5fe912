// What kernels get to know of a state and how its counters move, for a call (streaming_cuda.cpp) and for a recorded
// step (streaming_record.cpp). Plain code.
#pragma once

#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/kernels/streaming/streaming_cuda.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla::cuda {

inline constexpr std::int64_t kMostChunks = kMaxBlockTokens - 1;  // also slots and places

PrefixLayout prefix_layout(const StreamingState::Impl& state);
StreamShape shape_of(const StreamingState::Impl& state);
// Piece `index` of T tokens of a state whose counters are `at`; its batch element is left to the caller.
StreamSequence sequence_of(const StreamingState::Impl& state, const StreamingCounters& at, std::int64_t T,
                           std::int64_t piece, std::int64_t index);
DecodeSequence decode_sequence(const StreamingState::Impl& state);
// Throws where T more tokens of state number `number` are more chunks than kernels can count.
void expect_chunks(const StreamingState::Impl& state, std::int64_t T, std::int64_t number);

inline void pass(const StreamSequence& piece, StreamingCounters& at) {  // a piece is done
  at.base = piece.next_base;
  if (piece.closed > 0) at.open ^= 1;
}
inline void count_tokens(StreamingCounters& at, std::int64_t T) {  // and all pieces of a call
  at.position += T;
  at.furthest = std::max(at.furthest, at.position);
}

template <class Job>
void set_tensors(Job& job, const StreamingAppend& a) {
  job.q = tensor_of(a.q), job.k = tensor_of(a.k), job.v = tensor_of(a.v), job.out = tensor_of(a.out);
  job.q_den = tensor_of(a.maybe_q_den), job.k_den = tensor_of(a.maybe_k_den);
}

// Numbers the calls of this process, and tells which was the one before on the same stream. A decode kernel reads its
// states before the previous kernel of the stream has ended (programmatic launch), which that one may not be
// writing. Ours let the next one start when all in front of them has ended, so one call in between is enough. 0: not
// known. The default streams of threads share a handle, and tell nothing.
struct CallNumber {
  std::uint64_t own = 0, before = 0;
};

CallNumber next_call(int device, void* stream);

}  // namespace mhla::cuda
