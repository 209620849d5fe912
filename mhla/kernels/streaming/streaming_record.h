// One token of a batch of states, recorded into a CUDA graph. What the kernels of a call get as arguments,
// where every state stands and which chunks are complete, a recorded step reads from a table in device memory:
//
//   StreamingRecord step(states);
//   step.launch(params, table, closing, run);            while a graph is recorded: one for steps in which some state
//                                                        completes a chunk, one without what that takes
//   const bool closing = step.tell(states, host_table);  before every replay; bring it to `table`, on the same stream
//   ... replay ...
//   StreamingRecord::moved(states, stream);
//
// Outputs have the bits of streaming_append. In one graph a state comes in one step, once.
#pragma once

#include "mhla/kernels/streaming/streaming.h"

namespace mhla {

// Two parts, each aligned to 8 bytes. `closers` is read by steps that complete a chunk.
struct StreamingTable {
  std::span<std::byte> sequences, closers;
};

class StreamingRecord {
 public:
  explicit StreamingRecord(std::span<StreamingState* const> states);  // B states of one configuration, on a device
  ~StreamingRecord();
  StreamingRecord(StreamingRecord&&) noexcept;
  StreamingRecord& operator=(StreamingRecord&&) noexcept;

  [[nodiscard]] std::int64_t sequences_bytes() const;  // of the parts of a table
  [[nodiscard]] std::int64_t closers_bytes() const;

  // Whether states like these may be told to this step: as many, of the same configuration, none of them loaded, rolled
  // back or reset since the last call, which would have to mix its prefix first.
  [[nodiscard]] bool fits(std::span<StreamingState* const> states) const;

  // The kernels of a step, T = 1; params.states: such states, which do not move. `table` is in device memory.
  void launch(const StreamingParams& params, const StreamingTable& table, bool closing, const RunOptions& run) const;

  // Writes the table of the next step to host memory and says whether a chunk is complete with it. Only then are
  // `closers` written. Throws like streaming_append where mix has no rows for one more token.
  bool tell(std::span<StreamingState* const> states, const StreamingTable& table) const;
  static void moved(std::span<StreamingState* const> states, void* stream);  // the step is on its way

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mhla
