// How a call on a CUDA device is cut into waves, and the arguments of its kernels. Host code without a CUDA
// header: it is tested on machines without a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/cuda/jobs.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::cuda {

inline constexpr std::int64_t kMaxHeadSize = 256;  // D and E
inline constexpr std::int64_t kMaxHeads = 65535;   // query heads of a wave: one axis of a grid

// What a wave may take. Less keeps summaries in the cache between the launch that writes them and the one that reads
// them (50 MB on an H100 or H200); more means fewer launches, which dominate when heads are short: a backward wave is a
// dozen of them, and 32 MiB are ten waves at deit_t_224.
inline constexpr std::int64_t kWaveBytes = std::int64_t{128} << 20;

// Why the `cuda` candidate does not take a problem, or empty.
std::string fit(const Problem& p);

// A range of whole sequences and of kv heads: several heads or sequences, or one head of one sequence at least.
struct WaveRange {
  std::int64_t first_sequence, sequences;
  std::int64_t first_block, blocks;
  std::int64_t first_kv_head, kv_heads;
};

// first_block[s]: blocks of the sequences before s, [S + 1]. `bytes`: of all buffers per block and kv head. Looks at
// nothing else, so results that depend on the cut (the order of sums in dmix) depend on the shape alone.
std::vector<WaveRange> plan_waves(std::span<const std::int64_t> first_block, std::int64_t Hkv, std::int64_t group,
                                  std::int64_t bytes, std::int64_t budget = kWaveBytes);

// A checked problem as kernels see it. Carves tables of packed sequences from the workspace.
class Call {
 public:
  Call(const Problem& p, Workspace& workspace);

  // Floats per block and kv head of the buffers below; set by the first pass over them.
  void plan(std::int64_t bytes_per_block_and_head);
  // Room for `floats_per_block` floats in every block and head of a wave; heads as `of_queries` says.
  float* take(Workspace& workspace, std::int64_t floats_per_block, bool of_queries, const char* name) const;

  void make_tables() const;  // launches; before the first wave
  [[nodiscard]] const std::vector<WaveRange>& waves() const { return waves_; }
  [[nodiscard]] Wave wave(const WaveRange& range) const;

  [[nodiscard]] std::int64_t summary_stride() const { return summary_stride_; }
  [[nodiscard]] std::int32_t summary_columns() const { return static_cast<std::int32_t>(p_.D * p_.E + p_.D); }
  [[nodiscard]] std::int64_t z_offset() const { return p_.D * p_.E; }
  [[nodiscard]] DeviceMix mix() const;
  [[nodiscard]] MixReduceJob mix_gradient() const;  // of no wave yet

 private:
  const Problem& p_;
  std::vector<std::int64_t> first_block_;  // [S + 1]
  DeviceSequences tables_;
  std::int64_t summary_stride_ = 0;
  std::vector<WaveRange> waves_;
  std::int64_t most_ = 0;  // blocks times kv heads of the largest wave
};

constexpr std::int64_t slices_of(std::int64_t columns) { return (columns + kSlice - 1) / kSlice; }

DeviceTensor tensor_of(const ConstView& view);
TokenSource plain(const ConstView& x);
TokenSource features(const ConstView& x);                                  // phi(x)
TokenSource gradient_of_output(const Problem& p, const float* maybe_den);  // dout * scale / den

}  // namespace mhla::cuda
