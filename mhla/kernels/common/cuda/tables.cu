// Tables of packed sequences. Their numbers travel as kernel arguments, some hundred at a launch: a copy from host
// memory could not be recorded in a CUDA graph.
#include <algorithm>

#include "mhla/kernels/common/cuda/launch.cuh"
#include "mhla/kernels/common/cuda/plan.h"

namespace mhla::cuda {
namespace {

constexpr int kEntries = 224;  // 16 bytes each: 3.5 of the 4 KiB that arguments may take

struct SequenceEntry {
  std::int64_t start, first_block;
};

struct EntriesJob {
  DeviceSequences tables;
  std::int64_t first;
  int count;
  SequenceEntry entries[kEntries];
};

__global__ void write_entries(const __grid_constant__ EntriesJob job) {
  for (int index = threadIdx.x; index < job.count; index += kThreads) {
    job.tables.maybe_start[job.first + index] = job.entries[index].start;
    job.tables.maybe_first_block[job.first + index] = job.entries[index].first_block;
  }
}

struct OwnersJob {
  DeviceSequences tables;
  std::int64_t sequences, blocks;
};

// The last sequence that begins at or before the block; empty ones begin where the next does.
__global__ void write_owners(const OwnersJob job) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (block >= job.blocks) return;
  std::int64_t low = 0, high = job.sequences;  // first_block[low] <= block < first_block[high]
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (job.tables.maybe_first_block[middle] <= block ? low : high) = middle;
  }
  job.tables.maybe_sequence_of_block[block] = static_cast<std::int32_t>(low);
}

}  // namespace

void Call::make_tables() const {
  if (!p_.maybe_cu_seqlens.given()) return;
  const auto count = static_cast<std::int64_t>(first_block_.size());
  const auto S = static_cast<std::int64_t>(p_.sequences.size());
  for (std::int64_t first = 0; first < count; first += kEntries) {
    EntriesJob job{};
    job.tables = tables_, job.first = first;
    job.count = static_cast<int>(std::min<std::int64_t>(kEntries, count - first));
    for (std::int64_t s = first; s < first + job.count; ++s) {
      job.entries[s - first] = {s < S ? p_.sequences[static_cast<std::size_t>(s)].start : p_.N,
                                first_block_[static_cast<std::size_t>(s)]};
    }
    launch(write_entries, grid_of(1), job, p_.stream, "write_entries");
  }
  const std::int64_t blocks = first_block_.back();
  launch(write_owners, grid_of((blocks + kThreads - 1) / kThreads), OwnersJob{tables_, S, blocks}, p_.stream,
         "write_owners");
}

}  // namespace mhla::cuda
