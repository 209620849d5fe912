#include "mhla/kernels/common/cuda/plan.h"

#include <algorithm>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla::cuda {
namespace {

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b * b; }
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::string fit(const Problem& p) {
  if (!cuda_built()) return "built without CUDA";
  if (p.device() == kCpu) return "memory is on the CPU";
  if (p.is_f64()) return "dtype f64";
  if (p.D > kMaxHeadSize) return str("D is ", p.D, ", above ", kMaxHeadSize);
  if (p.E > kMaxHeadSize) return str("E is ", p.E, ", above ", kMaxHeadSize);
  if (p.group() > kMaxHeads) return str(p.group(), " query heads share a kv head, more than ", kMaxHeads);
  if (p.C >= kMaxBlockTokens || (p.layout.rank > 1 && p.N >= kMaxBlockTokens))
    return str("a block or grid of ", std::max(p.C, p.layout.rank > 1 ? p.N : 0), " tokens, more than 2^31 - 1");
  if (p.L >= kMaxBlockTokens || p.M >= kMaxBlockTokens) return "more than 2^31 - 1 blocks";
  return {};
}

std::vector<WaveRange> plan_waves(std::span<const std::int64_t> first_block, std::int64_t Hkv, std::int64_t group,
                                  std::int64_t bytes, std::int64_t budget) {
  const auto S = static_cast<std::int64_t>(first_block.size()) - 1;
  const std::int64_t most_heads = std::min(Hkv, kMaxHeads / group);
  const std::int64_t fitting = std::max<std::int64_t>(1, budget / bytes);  // blocks times kv heads
  const std::int64_t at_once = fitting / Hkv;                              // blocks of all heads
  // Waves of equal size rather than full ones and a small rest.
  const std::int64_t total = first_block[S], whole = std::max<std::int64_t>(1, at_once);
  const std::int64_t even = total == 0 ? 0 : divide_up(total, divide_up(total, whole));
  std::vector<WaveRange> waves;
  for (std::int64_t s = 0; s < S;) {
    const std::int64_t own = first_block[s + 1] - first_block[s];
    if (own > at_once || most_heads < Hkv) {
      const std::int64_t heads = std::clamp<std::int64_t>(fitting / std::max<std::int64_t>(1, own), 1, most_heads);
      const std::int64_t per_wave = divide_up(Hkv, divide_up(Hkv, heads));
      for (std::int64_t head = 0; head < Hkv && own > 0; head += per_wave) {
        waves.push_back({s, 1, first_block[s], own, head, std::min(per_wave, Hkv - head)});
      }
      ++s;
      continue;
    }
    std::int64_t end = s + 1;
    while (end < S && first_block[end] - first_block[s] < even && first_block[end + 1] - first_block[s] <= at_once)
      ++end;
    const std::int64_t blocks = first_block[end] - first_block[s];
    if (blocks > 0) waves.push_back({s, end - s, first_block[s], blocks, 0, Hkv});
    s = end;
  }
  return waves;
}

Call::Call(const Problem& p, Workspace& workspace) : p_(p) {
  first_block_.reserve(p.sequences.size() + 1);
  first_block_.push_back(0);
  for (const Sequence& sequence : p.sequences) {
    first_block_.push_back(first_block_.back() + BlockMap(p.layout, sequence.length).blocks());
  }
  summary_stride_ = round_up(p.D * p.E + p.D, 4);
  tables_.N = p.N, tables_.M = FastDivisor(std::max<std::int64_t>(1, p.M));
  if (!p.maybe_cu_seqlens.given()) return;
  const auto count = static_cast<std::int64_t>(first_block_.size());
  tables_.maybe_start = workspace.take<std::int64_t>(count, "sequence starts");
  tables_.maybe_first_block = workspace.take<std::int64_t>(count, "first blocks");
  tables_.maybe_sequence_of_block = workspace.take<std::int32_t>(first_block_.back(), "sequence of block");
}

void Call::plan(std::int64_t bytes_per_block_and_head) {
  waves_ = plan_waves(first_block_, p_.Hkv, p_.group(), bytes_per_block_and_head);
  most_ = 0;
  for (const WaveRange& wave : waves_) most_ = std::max(most_, wave.blocks * wave.kv_heads);
}

float* Call::take(Workspace& workspace, std::int64_t floats_per_block, bool of_queries, const char* name) const {
  return workspace.take<float>(most_ * (of_queries ? p_.group() : 1) * floats_per_block, name);
}

Wave Call::wave(const WaveRange& range) const {
  Wave w;
  w.layout = DeviceLayout(p_.layout, std::max<std::int64_t>(1, p_.C));
  w.sequences = tables_;
  w.first_sequence = range.first_sequence, w.first_block = range.first_block;
  w.sequence_count = static_cast<std::int32_t>(range.sequences);
  w.blocks = static_cast<std::int32_t>(range.blocks);
  w.M = static_cast<std::int32_t>(p_.M), w.C = static_cast<std::int32_t>(p_.C);
  w.D = static_cast<std::int32_t>(p_.D), w.E = static_cast<std::int32_t>(p_.E);
  w.group = static_cast<std::int32_t>(p_.group());
  w.first_kv_head = static_cast<std::int32_t>(range.first_kv_head);
  w.kv_heads = static_cast<std::int32_t>(range.kv_heads);
  w.summary_stride = summary_stride_;
  w.feature_map = p_.feature_map;
  w.low_tiles = (p_.layout.rank == 1 ? p_.layout.block_size : p_.C) <= 32;
  return w;
}

DeviceMix Call::mix() const {
  DeviceMix mix;
  mix.data = data_as<float>(p_.mix);
  mix.head_stride = p_.Hm == 1 ? 0 : p_.mix.stride[0];
  mix.row_stride = p_.mix.stride[1], mix.column_stride = p_.mix.stride[2];
  mix.L = static_cast<std::int32_t>(p_.L);
  return mix;
}

MixReduceJob Call::mix_gradient() const {
  MixReduceJob job;
  job.dmix = data_as<float>(p_.dmix);
  job.head_stride = p_.dmix.stride[0], job.row_stride = p_.dmix.stride[1], job.column_stride = p_.dmix.stride[2];
  job.L = static_cast<std::int32_t>(p_.L);
  job.per_head = p_.Hm > 1;
  job.causal = p_.causal;
  return job;
}

DeviceTensor tensor_of(const ConstView& view) {
  DeviceTensor tensor;
  if (!view.given()) return tensor;
  tensor.data = const_cast<void*>(view.data);
  const std::int64_t at_once = 16 / size_of(view.dtype);
  tensor.vector = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) {
    if (view.shape[axis] > 1 && view.stride[axis] % at_once != 0) tensor.vector = false;
  }
  tensor.batch_stride = view.stride[0], tensor.token_stride = view.stride[1], tensor.head_stride = view.stride[2];
  tensor.columns = static_cast<std::int32_t>(view.shape[3]);
  return tensor;
}

TokenSource plain(const ConstView& x) {
  TokenSource source;
  source.tensor = tensor_of(x);
  return source;
}

TokenSource features(const ConstView& x) {
  TokenSource source = plain(x);
  source.mapped = true;
  return source;
}

TokenSource gradient_of_output(const Problem& p, const float* maybe_den) {
  TokenSource source = plain(p.dout);
  source.scaled = maybe_den != nullptr || p.scale != 1.0;
  source.scale = static_cast<float>(p.scale);
  source.maybe_den = maybe_den;
  return source;
}

}  // namespace mhla::cuda
