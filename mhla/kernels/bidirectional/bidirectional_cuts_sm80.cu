// The mixing matrix of cut blocks, and its gradient back (bidirectional_sm80_cuts.h). Small: at most 128 x 128 values a
// head. Sums are f64 in a fixed order.
#include "mhla/kernels/bidirectional/bidirectional_sm80_cuts.h"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {
namespace {

constexpr int kCutThreads = 128;

// A matrix [Hm, rows, rows] in memory.
template <class T>
struct Matrices {
  T* data;
  std::int64_t head, row, column;
  __device__ T& at(std::int64_t h, std::int64_t i, std::int64_t b) const {
    return data[h * head + i * row + b * column];
  }
};

struct CutShape {
  int blocks[3], whole_blocks[3], parts[3];
  int M, whole_M, L;  // blocks after and before; rows of the whole matrix

  __device__ int whole_of(int part) const {
    const int column = part % blocks[2], row = part / blocks[2] % blocks[1], frame = part / (blocks[2] * blocks[1]);
    return (frame / parts[0] * whole_blocks[1] + row / parts[1]) * whole_blocks[2] + column / parts[2];
  }

  __device__ int count() const { return parts[0] * parts[1] * parts[2]; }  // parts of a whole block
  // Part k of a block, or -1: the last block of an axis may have fewer.
  __device__ int part_of(int whole, int k) const {
    const int column = whole % whole_blocks[2] * parts[2] + k % parts[2];
    const int row = whole / whole_blocks[2] % whole_blocks[1] * parts[1] + k / parts[2] % parts[1];
    const int frame = whole / (whole_blocks[2] * whole_blocks[1]) * parts[0] + k / (parts[2] * parts[1]);
    if (column >= blocks[2] || row >= blocks[1] || frame >= blocks[0]) return -1;
    return (frame * blocks[1] + row) * blocks[2] + column;
  }
};

__global__ void __launch_bounds__(kCutThreads) spread_mix_kernel(CutShape s, Matrices<const float> mix, float* to) {
  after_previous();
  const int i = blockIdx.x, h = blockIdx.y, own = s.whole_of(i);
  for (int b = threadIdx.x; b < s.M; b += kCutThreads)
    to[(std::int64_t{h} * s.M + i) * s.M + b] = mix.at(h, own, s.whole_of(b));
}

// One entry of dmix for each thread; zero where no block is.
__global__ void __launch_bounds__(kCutThreads) gather_dmix_kernel(CutShape s, const float* from, Matrices<float> dmix) {
  after_previous();
  const int i = blockIdx.x, h = blockIdx.y;
  for (int b = threadIdx.x; b < s.L; b += kCutThreads) {
    double sum = 0;
    if (i < s.whole_M && b < s.whole_M) {
      for (int k = 0; k < s.count() * s.count(); ++k) {
        const int j = s.part_of(i, k / s.count()), c = s.part_of(b, k % s.count());
        if (j >= 0 && c >= 0) sum += __ldcg(from + (std::int64_t{h} * s.M + j) * s.M + c);
      }
    }
    dmix.at(h, i, b) = static_cast<float>(sum);
  }
}

CutShape shape_of(const Problem& whole, const BlockCuts& cuts) {
  CutShape s{};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    s.blocks[axis] = static_cast<int>(cuts.blocks[axis]), s.parts[axis] = static_cast<int>(cuts.parts[axis]);
    s.whole_blocks[axis] = static_cast<int>(cuts.whole_blocks[axis]);
  }
  s.M = static_cast<int>(cuts.M), s.whole_M = static_cast<int>(whole.M), s.L = static_cast<int>(whole.L);
  return s;
}

}  // namespace

CutProblem::CutProblem(const Problem& problem, const BlockCuts& cuts, Workspace& workspace)
    : whole_(problem), inner_(problem), cuts_(cuts) {
  const std::int64_t values = problem.Hm * cuts.M * cuts.M;
  const auto matrix = [&](float* data) {
    View view(data, DType::kF32, {problem.Hm, cuts.M, cuts.M});
    view.device = problem.mix.device;
    return view;
  };
  mix_ = workspace.take<float>(values, "mix of cut blocks");
  inner_.mix = matrix(mix_);
  if (problem.dmix.given()) dmix_ = workspace.take<float>(values, "dmix of cut blocks"), inner_.dmix = matrix(dmix_);
  inner_.layout = cuts.layout, inner_.M = inner_.L = cuts.M, inner_.C = cuts.C;
}

void CutProblem::spread_mix() const {
  const ConstView& mix = whole_.mix;
  const Matrices<const float> from{data_as<float>(mix), mix.stride[0], mix.stride[1], mix.stride[2]};
  const dim3 grid(static_cast<unsigned>(cuts_.M), static_cast<unsigned>(whole_.Hm));
  launch_next("spread_mix_kernel", spread_mix_kernel, grid, kCutThreads, 0, stream_of(whole_.stream),
              shape_of(whole_, cuts_), from, mix_);
}

void CutProblem::gather_dmix() const {
  if (!whole_.dmix.given()) return;
  const View& dmix = whole_.dmix;
  const Matrices<float> to{static_cast<float*>(dmix.data), dmix.stride[0], dmix.stride[1], dmix.stride[2]};
  const dim3 grid(static_cast<unsigned>(whole_.L), static_cast<unsigned>(whole_.Hm));
  launch_next("gather_dmix_kernel", gather_dmix_kernel, grid, kCutThreads, 0, stream_of(whole_.stream),
              shape_of(whole_, cuts_), static_cast<const float*>(dmix_), to);
}

}  // namespace mhla::sm80
