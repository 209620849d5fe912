// The forward of the bidirectional form in one call, or one phase of it for some of the blocks (common/part.h): the
// same functions on the same numbers, so the bits are those of one call.
#include "mhla/kernels/bidirectional/bidirectional_forward-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_FORWARD_PART_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_FORWARD_PART_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_FORWARD_PART_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_FORWARD_PART_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

template <class T>
class ForwardPart : public Forward<T> {
 public:
  using Forward<T>::Forward;

  void run() {
    const Problem& p = this->p_;
    const bool summaries = p.part.phase == Phase::kSummaries;
    if (!summaries) pack_mixes(p, /*transposed=*/false, this->mix_);
    for (std::int64_t unit = 0; unit < this->units_.count; ++unit) {
      const auto u = this->unit_at(unit, 0);
      const PanelRow row = this->row_.plain(p, /*transposed=*/false);
      const std::int64_t size = p.summary_size();
      if (summaries) this->share_summaries(u);
      const std::int64_t blocks = summaries ? p.part.blocks : p.M;
      this->executor_.run(u.heads * blocks, [&](std::int64_t task, int) HWY_ATTR {
        const std::int64_t j = task / blocks, b = task % blocks;
        const std::int64_t at = ((b * p.B + u.sequence.batch) * p.Hkv + u.head + j) * size;
        float* S = u.S + j * this->units_.head_floats + b * this->row_.stride;
        if (summaries)
          to_plain(row, S, data_as<float>(p.part.own) + at);
        else
          from_plain(row, data_as<float>(p.part.gathered) + at, S);
      });
      if (!summaries) this->share_outputs(u);
    }
  }
};

template <class T>
void forward(const Problem& p, Workspace& ws, Executor& executor) {
  const auto run = [&](auto pass) HWY_ATTR {
    if (!ws.counting()) pass.run();
  };
  if (p.part.given())
    run(ForwardPart<T>(p, ws, executor));
  else
    run(Forward<T>(p, ws, executor));
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
