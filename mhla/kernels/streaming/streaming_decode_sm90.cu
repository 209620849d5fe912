// streaming_decode_panels_cuda.cu once more, for sm_90 in its most frequent form: no normaliser, no chunk that becomes
// complete, whole panels. A decode step is over before the code of a large kernel has come from memory, so this one is
// small: bulk copies bring prefix, keys and values, one instruction a row. The sums are the same, bit for bit.
#include <type_traits>

#include "mhla/kernels/common/cuda/arguments.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/sm90_bytes.cuh"
#include "mhla/kernels/streaming/streaming_decode.cuh"
#include "mhla/kernels/streaming/streaming_decode_panels.cuh"

namespace mhla::cuda {
namespace {

constexpr int kKeyDepth = 128;  // D
constexpr int kKeyPitch = kKeyDepth + kPieceSize;

using sm90::barrier_expect, sm90::barrier_wait, sm90::prefetch_bytes;

__device__ inline void bring(const bf16* to, const void* from, int bytes, std::uint32_t barrier) {
  sm90::copy_bytes(shared_address(static_cast<const void*>(to)), from, bytes, barrier);
}

// Keys or values of the open chunk of a head: the newest from the call, the others from the ring.
struct Tokens {
  const bf16* newest;
  bf16* ring;  // row 0
  int pitch;   // of the ring

  __device__ Tokens(const DecodeJob& job, const DecodeSequence& sequence, const DeviceTensor& x, std::int64_t offset,
                    int batch, int head, int column)
      : newest(static_cast<const bf16*>(x.data) + batch * x.batch_stride + head * x.head_stride + column),
        ring(reinterpret_cast<bf16*>(sequence.state + offset) + head * x.columns + column),
        pitch(job.shape.Hkv * x.columns) {}
};

// Features of a pair of values, as the product rounds them.
__device__ inline std::uint32_t features(FeatureMap map, std::uint32_t pair) {
  const float2 x = unpack_bf16(pair);
  return pack_bf16(feature(map, x.x), feature(map, x.y));
}

template <int kPanels, class Job>
__global__ void __launch_bounds__(kThreads, 4) decode_sm90_kernel(const __grid_constant__ Job job) {
  constexpr int kBlockColumns = kPanels * kPanelColumns, kWarpColumns = kBlockColumns / kWarps;
  constexpr int kTiles = kWarpColumns / 8, kRowPieces = kPanelColumns / kPieceSize;
  constexpr int kValuePitch = kBlockColumns + kPieceSize;
  bf16* const memory = reinterpret_cast<bf16*>(dynamic_shared());
  const StreamShape& s = job.shape;
  const int number = static_cast<int>(blockIdx.z), block_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int most = most_rows(s), tiles = row_tiles(s);
  const int kv_head = tiles == 1 ? blockIdx.y : blockIdx.y / tiles,
            tile = static_cast<int>(blockIdx.y) - kv_head * tiles;
  const int head = kv_head * s.group + tile * most, rows = min(most, s.group - tile * most);
  const DecodeSequence sequence = job.sequence(number);
  const int batch = job.first + number, keys = sequence.inside + 1;
  const DecodePlaces at(s, kPanels, most);
  bf16 *const P = memory + at.prefix, *const K = memory + at.k, *const V = memory + at.v, *const Q = memory + at.q;
  bf16* const scores = memory + at.scores;
  const std::uint32_t barrier = shared_address(static_cast<const void*>(memory + at.end));
  const Tokens k(job, sequence, job.k, s.k, batch, kv_head, 0),
      v(job, sequence, job.v, s.v, batch, kv_head, block_column);

  // Of the tokens [first, first + 32) those that the ring has, by a warp; the bytes of a round are counted before.
  const auto bring_rows = [&](bf16* to, int to_pitch, const Tokens& x, int first, int bytes) {
    if (first + lane < sequence.inside)
      bring(to + lane * to_pitch,
            x.ring + static_cast<std::int64_t>(s.ring_row(sequence.in_ring, first + lane)) * x.pitch, bytes, barrier);
  };
  const auto clear_values = [&](int given) {  // after the last, up to a whole step
    for (int i = threadIdx.x; i < (up(given, kStep) - given) * kBlockColumns; i += kThreads)
      V[(given + i / kBlockColumns) * kValuePitch + i % kBlockColumns] = {};
  };
  const auto round_bytes = [&](int first) {
    return max(min(sequence.inside - first, kTokens), 0) * (kKeyDepth + kBlockColumns) * static_cast<int>(sizeof(bf16));
  };
  if (threadIdx.x == 0) {
    constexpr int kPrefixBytes = kBlockColumns * kKeyDepth * static_cast<int>(sizeof(bf16));
    sm90::barrier_init(barrier, 1);
    sm90::barriers_ready();
    barrier_expect(barrier, kPrefixBytes + round_bytes(0));
    bring(P,
          sequence.state + (sequence.open ? s.prefix[1] : s.prefix[0]) +
              (s.per_head ? head : kv_head) * s.layout.stride +
              static_cast<std::int64_t>(block_column) * kKeyDepth * static_cast<int>(sizeof(bf16)),
          kPrefixBytes, barrier);
  }
  __syncthreads();
  if (warp == 0) bring_rows(K, kKeyPitch, k, 0, kKeyDepth * static_cast<int>(sizeof(bf16)));
  if (warp == 1) bring_rows(V, kValuePitch, v, 0, kBlockColumns * static_cast<int>(sizeof(bf16)));
  if (warp >= 2 && kTokens + lane < sequence.inside) {  // later ones to the second-level cache
    const std::int64_t row = s.ring_row(sequence.in_ring, kTokens + lane);
    prefetch_bytes(warp == 2 ? k.ring + row * k.pitch : v.ring + row * v.pitch,
                   (warp == 2 ? kKeyDepth : kBlockColumns) * static_cast<int>(sizeof(bf16)));
  }
  clear_values(min(kTokens, keys));
  const float coefficient = diagonal_of(s, sequence, head);
  // When the next kernel may start: as in streaming_decode_panels_cuda.cu.
  constexpr bool kRecorded = std::is_same_v<Job, DecodeReplay>;
  expect_arguments(job);
  if constexpr (kRecorded) allow_next();
  wait_for_previous();
  if constexpr (!kRecorded) allow_next();

  // What the call brings, the newest tokens to the ring as well.
  const bool mapped = s.feature_map != FeatureMap::kIdentity;
  const auto take_query = [&](bf16* to, const bf16* from) {
    uint4 x = *reinterpret_cast<const uint4*>(from);
    if (mapped) {
      x.x = features(s.feature_map, x.x), x.y = features(s.feature_map, x.y);
      x.z = features(s.feature_map, x.z), x.w = features(s.feature_map, x.w);
    }
    *reinterpret_cast<uint4*>(to) = x;
  };
  const int place = sequence.inside % kTokens, piece = static_cast<int>(threadIdx.x) % 16 * kPieceSize;
  const auto take_newest = [&](bool here, bool keep) {
    const bool key = threadIdx.x < 16, value = threadIdx.x >= 32 && threadIdx.x < 48 && piece < kBlockColumns;
    if (!key && !value) return;
    const uint4 newest = *reinterpret_cast<const uint4*>((key ? k.newest : v.newest) + piece);
    if (here) *reinterpret_cast<uint4*>((key ? K + place * kKeyPitch : V + place * kValuePitch) + piece) = newest;
    if (keep && tile == 0 && (value || blockIdx.x == 0)) {
      const std::int64_t row = s.ring_row(sequence.in_ring, sequence.inside);
      *reinterpret_cast<uint4*>((key ? k.ring + row * k.pitch : v.ring + row * v.pitch) + piece) = newest;
    }
  };
  for (int row = (static_cast<int>(threadIdx.x) - 64) / 16; threadIdx.x >= 64 && row < rows; row += 4)
    take_query(Q + row * kKeyPitch + piece, static_cast<const bf16*>(job.q.data) + batch * job.q.batch_stride +
                                                (head + row) * job.q.head_stride + piece);
  take_newest(keys <= kTokens, true);
  barrier_wait(barrier, 0);
  __syncthreads();

  // Rows of a step that a lane names: 8 x 8 matrices (depth, column) in the order (0, 0), (8, 0), (0, 8), (8, 8).
  const int g = lane / 4, q = lane % 4, inner = lane % 8, lower = lane / 8 % 2 * 8, right = lane / 16;
  const int warp_column = warp * kWarpColumns;
  float sums[kTiles][4] = {};
#pragma unroll 1
  for (int first = 0, parity = 1; first < keys; first += kTokens, parity ^= 1) {
    const int given = min(kTokens, keys - first);
    if (first > 0) {
      __syncthreads();
      if (threadIdx.x == 32) barrier_expect(barrier, round_bytes(first));
      __syncwarp();
      if (warp == 1) bring_rows(V, kValuePitch, v, first, kBlockColumns * static_cast<int>(sizeof(bf16)));
      clear_values(given);
      if (first + given == keys) take_newest(true, false);
      barrier_wait(barrier, parity ^ 1);
      __syncthreads();
    }
    if (const int own = warp * kStep; own < given) {  // 16 tokens of a warp
      float products[2][4] = {};
      const bf16* const from = K + (own + inner + right * 8) * kKeyPitch + lower;
#pragma unroll 2
      for (int d = 0; d < kKeyDepth; d += kStep) {
        std::uint32_t x[4], y[4];
        load_rows(x, Q + d, kKeyPitch, rows);
        load_matrices(y, shared_address(from + d));
        if (mapped) {
#pragma unroll
          for (std::uint32_t& pair : y) pair = features(s.feature_map, pair);
        }
        multiply_add(products[0], x, y[0], y[1]);
        multiply_add(products[1], x, y[2], y[3]);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = g + e % 4 / 2 * 8, token = own + e / 4 * 8 + 2 * q + e % 2;
        if (row >= rows) continue;
        const float x = products[e / 4][e % 4];
        scores[row * kScorePitch + token] = narrow<bf16>(token < given ? coefficient * (x + 0.0f) : 0.0f);
      }
    }
    // The prefix comes first in every sum, and while scores are on their way.
#pragma unroll 2
    for (int d = 0; first == 0 && d < kKeyDepth; d += kStep) {
      std::uint32_t x[4];
      load_rows(x, Q + d, kKeyPitch, rows);
      const int row = d + lower + inner;
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        const int at_piece = warp_column / kPieceSize + 2 * pair + right, panel = at_piece / kRowPieces;
        std::uint32_t y[4];
        load_matrices_transposed(y, shared_address(P + (panel * kKeyDepth + row) * kPanelColumns +
                                                   ((at_piece % kRowPieces) ^ (row % 8)) * kPieceSize));
        multiply_add(sums[2 * pair], x, y[0], y[1]);
        multiply_add(sums[2 * pair + 1], x, y[2], y[3]);
      }
    }
    __syncthreads();
    if (warp == 0 && first + kTokens < keys)
      bring_rows(K, kKeyPitch, k, first + kTokens, kKeyDepth * static_cast<int>(sizeof(bf16)));
#pragma unroll 1
    for (int token = 0; token < given; token += kStep) {
      std::uint32_t x[4];
      load_rows(x, scores + token, kScorePitch, rows);
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        std::uint32_t y[4];
        load_matrices_transposed(y, shared_address(V + (token + lower + inner) * kValuePitch + warp_column +
                                                   (2 * pair + right) * kPieceSize));
        multiply_add(sums[2 * pair], x, y[0], y[1]);
        multiply_add(sums[2 * pair + 1], x, y[2], y[3]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int row = g + 8 * down, column = block_column + warp_column + 8 * j + 2 * q;
      if (row >= rows) continue;
      bf16* const out =
          static_cast<bf16*>(job.out.data) + batch * job.out.batch_stride + (head + row) * job.out.head_stride;
      *reinterpret_cast<std::uint32_t*>(out + column) =
          pack_bf16(s.scale * sums[j][2 * down], s.scale * sums[j][2 * down + 1]);
    }
  }
}

template <int kPanels, class Job>
void launch_decode(const Job& job, void* stream) {
  constexpr const char* kName = "decode_sm90_kernel";
  const StreamShape& s = job.shape;
  const auto bytes = static_cast<std::size_t>(DecodePlaces(s, kPanels, most_rows(s)).end) * sizeof(bf16) + 16;
  const auto kernel = decode_sm90_kernel<kPanels, Job>;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      kName);
  launch(kernel, grid_of(s.E / (kPanels * kPanelColumns), s.Hkv * row_tiles(s), job.count), job, stream, kName,
         {.shared_bytes = bytes, .early = job.early});
}

}  // namespace

bool decode_sm90_fits(const DecodeJob& job) {
  const StreamShape& s = job.shape;
  if (s.normalized || s.feature_map == FeatureMap::kElu1 || s.D != kKeyDepth || s.E % (2 * kPanelColumns) != 0 ||
      !s.layout.panels)
    return false;
  if (!job.q.vector || !job.k.vector || !job.v.vector || !job.out.vector) return false;
  int device = 0;
  cuda_check(cudaGetDevice(&device), "decode_sm90_fits");
  const DeviceFacts facts = device_facts(device);
  return facts.major == 9 && facts.minor == 0;
}

void stream_decode_sm90(const DecodeCall& job, void* stream) {
  decode_wide(job) ? launch_decode<2>(job, stream) : launch_decode<1>(job, stream);
}
void stream_decode_sm90(const DecodeReplay& job, void* stream) {
  decode_wide(job) ? launch_decode<2>(job, stream) : launch_decode<1>(job, stream);
}

}  // namespace mhla::cuda
