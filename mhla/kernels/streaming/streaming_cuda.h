// The arguments of the streaming kernels, and how a call is cut for them: host code without a CUDA header, so
// that the cut is tested without a device.
//
// A call of T tokens visits the chunks they fall into. It is done in pieces of at most `piece` chunks of every
// sequence: summaries of the chunks that are complete, prefixes of those that follow, then outputs. Positions differ
// between sequences, and travel as kernel arguments, a list of sequences per launch: no copy from host memory, no
// allocation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mhla/kernels/common/cuda/jobs.h"

namespace mhla::cuda {

// Arguments of a kernel may take 4 KiB.
inline constexpr int kSequences = 64, kDecodeSequences = 64;

// With kExtend a ring of summaries turns while a piece is worked on: it holds so many beyond those that decode needs.
inline constexpr std::int64_t kExtendPiece = 8;
inline constexpr std::int64_t kPieceBytes = std::int64_t{128} << 20;  // of prefixes and denominators of a piece
inline constexpr std::int64_t kMaxPiece = 1024;

// Chunks [first, first + chunks) hold tokens of a piece; the first `closed` of them are complete at its end.
struct PieceRange {
  std::int64_t first, chunks, closed;
};

// Piece number `index` of T tokens that follow `start` others, in chunks of C.
constexpr PieceRange piece_range(std::int64_t start, std::int64_t T, std::int64_t C, std::int64_t piece,
                                 std::int64_t index) {
  const std::int64_t first = start / C + index * piece, end = (start + T - 1) / C + 1;
  if (first >= end) return {first, 0, 0};
  const std::int64_t chunks = std::min(piece, end - first);
  return {first, chunks, std::min(chunks, (start + T) / C - first)};
}

// Chunks that the tokens of a call touch.
constexpr std::int64_t chunks_of(std::int64_t start, std::int64_t T, std::int64_t C) {
  return (start + T - 1) / C - start / C + 1;
}

// Chunks of a piece: as many as their prefixes (all but the first and the last need a place) and denominators leave
// room for, one at least. Bits do not depend on it.
constexpr std::int64_t piece_size(std::int64_t longest, std::int64_t bytes_per_chunk, bool extend) {
  const std::int64_t fitting = std::clamp<std::int64_t>(kPieceBytes / bytes_per_chunk, 1, kMaxPiece);
  return std::min({longest, fitting, extend ? kExtendPiece : kMaxPiece});
}

// How a mixed prefix lies in memory. With bf16 inputs every product rounds it to bf16, so it is kept in bf16: half the
// bytes that decode reads, and no other bits. Panels of 64 columns, [D][64] each, are rows of 128 bytes whose 16-byte
// pieces are swizzled among eight rows, so that a panel can be copied to shared memory as it lies and read there
// without bank conflicts. z, which no product rounds, follows in f32. Other inputs: a summary as it is, all f32.
inline constexpr std::int32_t kPanelColumns = 64;

struct PrefixLayout {
  bool panels = false;
  std::int64_t stride = 0;  // bytes of a prefix, a multiple of 64
  std::int64_t z = 0;       // bytes before z

  bool operator==(const PrefixLayout&) const = default;
  static constexpr PrefixLayout of(DType dtype, std::int64_t D, std::int64_t E, bool normalized,
                                   std::int64_t summary_stride) {
    if (dtype != DType::kBF16) return {false, 4 * summary_stride, 4 * D * E};
    const std::int64_t z = (E + kPanelColumns - 1) / kPanelColumns * kPanelColumns * D * 2;
    return {true, z + (normalized ? (4 * D + 63) / 64 * 64 : 0), z};
  }
  // Elements of a panelled prefix before column e of row d.
  [[nodiscard]] MHLA_HOST_DEVICE static constexpr std::int64_t index(std::int32_t d, std::int32_t e, std::int32_t D) {
    return (static_cast<std::int64_t>(e / kPanelColumns) * D + d) * kPanelColumns +
           ((e % kPanelColumns / 8) ^ (d % 8)) * 8 + e % 8;
  }
};

// Sizes of a state, the same for all of a call, and where things lie in its memory, in bytes from its start.
struct StreamShape {
  std::int32_t C = 0, D = 0, E = 0, Hkv = 0, group = 1;
  std::int32_t L = 0, slots = 0, ring = 0;
  std::int32_t columns = 0;  // of a summary that are mixed: S, and z where there is a normaliser
  bool per_head = false;     // mix, and so prefixes, of query heads
  bool extend = false, normalized = false, has_den = false;
  FeatureMap feature_map = FeatureMap::kReluEps;
  float eps = 0, scale = 1;
  std::int64_t stride = 0;  // floats of a summary
  PrefixLayout layout;
  std::int64_t mix = 0, summaries = 0, sum = 0, prefix[2] = {}, k = 0, v = 0, k_den = 0;

  bool operator==(const StreamShape&) const = default;
  [[nodiscard]] MHLA_HOST_DEVICE std::int32_t heads() const { return Hkv * group; }
  [[nodiscard]] MHLA_HOST_DEVICE std::int32_t ring_row(std::int32_t in_ring, std::int32_t place) const {
    return in_ring + place < ring ? in_ring + place : in_ring + place - ring;
  }
  [[nodiscard]] MHLA_HOST_DEVICE std::int32_t prefixes() const { return per_head ? heads() : Hkv; }
};

// One sequence in one piece.
struct StreamSequence {
  std::byte* state = nullptr;
  std::int64_t start = 0;  // tokens before the call
  std::int32_t batch = 0;  // of the tensors
  std::int32_t first = 0;  // PieceRange; closed: and read by a later chunk
  std::int32_t chunks = 0, closed = 0;
  std::int32_t base = 0;       // kExtend: blocks before this one are only in the sum
  std::int32_t next_base = 0;  // and after the piece
  std::int32_t open = 0;       // prefix buffer of chunk `first`; that of the chunk after the closed ones is the other
};

// Sequences whose chunks are complete, in device memory: a list of them follows.
struct alignas(8) StreamClosers {
  std::int32_t count = 0;

  [[nodiscard]] MHLA_HOST_DEVICE const StreamSequence* list() const {
    return reinterpret_cast<const StreamSequence*>(this + 1);
  }
};

// Every kernel but decode. Workspace: prefixes of the chunks in between, [batch][piece - 1][prefixes], and
// denominators, [batch][H][piece][C].
struct StreamJob {
  StreamShape shape;
  DeviceTensor q, k, v, q_den, k_den, out;
  std::int64_t T = 0;
  std::byte* maybe_prefixes = nullptr;
  float* maybe_den = nullptr;
  std::int32_t piece = 1;
  bool open_only = false;                        // stream_prefixes: that of chunk `first`, in its place
  std::int32_t count = 0;                        // sequences along z
  const StreamClosers* maybe_closers = nullptr;  // recorded: the sequences are these, however many
  StreamSequence sequences[kSequences];

  [[nodiscard]] MHLA_HOST_DEVICE int sequence_count() const { return maybe_closers ? maybe_closers->count : count; }
  [[nodiscard]] MHLA_HOST_DEVICE const StreamSequence& sequence(int n) const {
    return maybe_closers ? maybe_closers->list()[n] : sequences[n];
  }
};

// Where a sequence stands, as numbers that a kernel need not divide for.
struct DecodeSequence {
  std::byte* state = nullptr;
  std::int32_t chunk = 0;    // the open one
  std::int32_t inside = 0;   // place of the newest token in it
  std::int32_t in_ring = 0;  // row of the ring of place 0
  std::int32_t open = 0;     // prefix buffer of the chunk
};

struct DecodeJob {
  StreamShape shape;
  DeviceTensor q, k, v, q_den, k_den, out;
  std::int32_t first = 0;  // batch element of sequence 0
  std::int32_t count = 0;
  bool early = false;  // may start while the previous kernel runs, which writes nothing of its states
};

// Sequences as arguments of the launch.
struct DecodeCall : DecodeJob {
  std::int32_t closers = 0;  // sequences whose chunk is complete with this token, and read by a later one
  std::uint8_t closing[kDecodeSequences] = {};
  DecodeSequence sequences[kDecodeSequences];

  [[nodiscard]] MHLA_HOST_DEVICE const DecodeSequence& sequence(int n) const { return sequences[n]; }
  [[nodiscard]] MHLA_HOST_DEVICE int closer_count() const { return closers; }
  [[nodiscard]] MHLA_HOST_DEVICE int closer(int n) const { return closing[n]; }
};

// Sequences in device memory, written before every replay of a recorded launch.
struct DecodeReplay : DecodeJob {
  const DecodeSequence* sequences = nullptr;     // [count]
  const StreamClosers* maybe_closers = nullptr;  // up to `count`

  [[nodiscard]] MHLA_HOST_DEVICE const DecodeSequence& sequence(int n) const { return sequences[n]; }
  [[nodiscard]] MHLA_HOST_DEVICE int closer_count() const { return maybe_closers ? maybe_closers->count : 0; }
  [[nodiscard]] MHLA_HOST_DEVICE int closer(int n) const { return maybe_closers->list()[n].batch; }
};
static_assert(sizeof(StreamJob) <= 4000 && sizeof(DecodeCall) <= 4000, "arguments of a kernel take 4 KiB at most");

void stream_summaries(DType dtype, const StreamJob& job, void* stream);      // of closed chunks, into their slots
void stream_prefixes(DType arithmetic, const StreamJob& job, void* stream);  // of the chunks after them
void stream_denominators(DType dtype, const StreamJob& job, void* stream);
void stream_read_out(DType dtype, const StreamJob& job, void* stream);
void stream_fold(const StreamJob& job, void* stream);                  // kExtend: blocks [base, next_base) join the sum
void stream_keep(DType dtype, const StreamJob& job, void* stream);     // the last tokens into the rings
void stream_decode(DType dtype, const DecodeCall& job, void* stream);  // one token of each, and what it completes
void stream_decode(DType dtype, const DecodeReplay& job, void* stream);
void stream_decode_panels(const DecodeCall& job, void* stream);  // the same for bf16
void stream_decode_panels(const DecodeReplay& job, void* stream);
bool decode_sm90_fits(const DecodeJob& job);                   // where no chunk becomes complete
void stream_decode_sm90(const DecodeCall& job, void* stream);  // the same without normaliser and complete chunks
void stream_decode_sm90(const DecodeReplay& job, void* stream);

}  // namespace mhla::cuda
