// The backward of the bidirectional form in one call, or one phase of it for some of the blocks (common/part.h): the
// same functions on the same numbers, so the bits are those of one call, dmix included.
#include "mhla/kernels/bidirectional/bidirectional_backward-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_PART_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_PART_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_PART_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_PART_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

template <class T>
class BackwardPart : public Backward<T> {
  using Base = Backward<T>;
  using typename Base::Shared;
  using typename Base::Unit;

 public:
  BackwardPart(const Problem& p, Workspace& ws, Executor& executor) : Base(p, ws, executor) {
    this->wants_grads_ = true;  // dP
  }

  void run() {
    const Problem& p = this->p_;
    const bool queries = p.part.phase == Phase::kQueries;
    pack_mixes(p, /*transposed=*/!queries, queries ? this->mix_ : this->mix_transposed_);
    const auto slots = this->slots();
    if (this->dmix_) set_zero(this->dmix_, slots.count * slots.floats);
    for (std::int64_t slot = 0; slot < slots.count; ++slot) {
      for (std::int64_t s = slots.first(slot); s < slots.first(slot + slots.visits); ++s) {
        const Unit u = this->unit_at(slot, s, 0);
        if (queries)
          query_part(u);
        else
          key_part(u);
      }
    }
    if (this->dmix_) this->sum_dmix();
  }

 private:
  // Rows of `blocks` blocks, heads [head, head + u.heads) of a plain tensor with `heads` heads.
  template <class F>
  void for_each_row(const Unit& u, std::int64_t blocks, std::int64_t head, std::int64_t heads, F&& f) {
    const Problem& p = this->p_;
    this->executor_.run(u.heads * blocks, [&](std::int64_t task, int) HWY_ATTR {
      const std::int64_t j = task / blocks, b = task % blocks;
      f(j * this->units_.head_floats + b * this->row_.stride,
        ((b * p.B + u.sequence.batch) * heads + head + j) * p.summary_size());
    });
  }
  void load(const Unit& u, std::int64_t head, std::int64_t heads) {
    const Problem& p = this->p_;
    const PanelRow row = this->row_.plain(p, /*transposed=*/true);
    for_each_row(u, p.M, head, heads, [&](std::int64_t place, std::int64_t at) HWY_ATTR {
      from_plain(row, data_as<float>(p.part.gathered) + at, u.S + place);
    });
  }

  void query_part(const Unit& u) {
    const Problem& p = this->p_;
    const Shared cut{this->executor_};
    const PanelRow row = this->row_.plain(p, /*transposed=*/true);
    const std::int64_t group = p.group(), h0 = u.head * group, heads = p.gradient_heads();
    const bool own = this->units_.own_mix;
    load(u, u.head, p.Hkv);
    for (std::int64_t g = 0; g < (own ? group : 1); ++g) {
      this->query_phases(u, cut, h0 + g, own ? h0 + g + 1 : h0 + u.heads * group);
      for_each_row(u, p.part.blocks, own ? h0 + g : u.head, heads, [&](std::int64_t place, std::int64_t at) HWY_ATTR {
        to_plain(row, u.G + place, data_as<float>(p.part.own) + at);
      });
    }
  }

  void key_part(const Unit& u) {
    const Problem& p = this->p_;
    const Shared cut{this->executor_};
    const std::int64_t group = p.group(), h0 = u.head * group;
    const bool own = this->units_.own_mix;
    for (std::int64_t g = 0; g < (own ? group : 1); ++g) {
      load(u, own ? h0 + g : u.head, p.gradient_heads());
      for (std::int64_t j = 0; j < u.heads; ++j) {
        const std::int64_t offset = j * this->units_.head_floats;
        this->mix(u, cut, this->mix_transposed_, u.S + offset, u.sums + offset, h0 + g + j, g > 0);
      }
    }
    this->over_blocks(
        u, cut, [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { this->key_side(u, b0, b1, worker); });
  }
};

template <class T>
void backward(const Problem& p, Workspace& ws, Executor& executor) {
  const auto run = [&](auto pass) HWY_ATTR {
    if (!ws.counting()) pass.run();
  };
  if (p.part.given())
    run(BackwardPart<T>(p, ws, executor));
  else
    run(Backward<T>(p, ws, executor));
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
