// The phases of the causal backward for some of the chunks (common/part.h): the steps of chunkwise_backward_pass-inl.h
// on the same numbers, so the bits are those of one call, dmix included. Rows of memory have the numbers of the whole
// sequence; those that no local chunk needs are not filled.
#include "mhla/kernels/chunkwise/chunkwise_backward_pass-inl.h"
#include "mhla/kernels/common/simd/plain-inl.h"

#if defined(MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PART_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PART_INL_H_
#undef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PART_INL_H_
#else
#define MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PART_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

template <class T>
class CausalBackwardPart : public CausalBackward<T> {
  using Base = CausalBackward<T>;
  using typename Base::Unit;

 public:
  using Base::Base;

 private:
  void run_one(const Unit& u, double* partial, Executor& inner, BackwardScratch* scratch) override {
    const Problem& p = this->p_;
    if (!this->s_.normalized)
      std::fill_n(u.x->factors, this->s_.group * u.sequence.length, static_cast<float>(p.scale));
    if (p.part.phase == Phase::kQueries)
      query_part(u, partial, inner, scratch);
    else
      key_part(u, inner, scratch);
  }

  void query_part(const Unit& u, double* partial, Executor& inner, BackwardScratch* scratch) {
    const auto& s = this->s_;
    const std::int64_t heads = s.group / s.prefixes;  // that share a mix
    load(u, 0, u.end - 1, u.kv_head, this->p_.Hkv, inner, u.x->S);
    for (std::int64_t m = 0; m < s.prefixes; ++m) {
      this->coefficients(u, m * heads);
      this->mix(u, u.x->S, u.x->P, inner, scratch, /*adjoint=*/false);
      inner.run(u.end - u.first, [&](std::int64_t i, int worker)
                                     HWY_ATTR { this->queries(u, u.first + i, m * heads, heads, scratch[worker]); });
      if (partial) this->mix_gradients(u, inner);
      if (partial) this->add_partial(u, partial + m * this->rows_ * this->rows_);
      store_gradients_of(u, m, inner);
    }
    if (s.normalized) exchange_terms(u, data_as<float>(this->p_.part.own_terms), /*store=*/true);
  }

  void key_part(const Unit& u, Executor& inner, BackwardScratch* scratch) {
    const auto& s = this->s_;
    const std::int64_t heads = s.group / s.prefixes, all = this->p_.gradient_heads();
    if (s.normalized) exchange_terms(u, const_cast<float*>(data_as<float>(this->p_.part.terms)), /*store=*/false);
    for (std::int64_t m = 0; m < s.prefixes; ++m) {
      load(u, u.first + 1, u.M, all == this->p_.Hkv ? u.kv_head : u.kv_head * s.group + m, all, inner, u.x->dP);
      this->coefficients(u, m * heads);
      this->mix(u, u.x->dP, s.prefixes > 1 ? u.x->P : u.x->dP, inner, scratch, /*adjoint=*/true);
      if (s.prefixes > 1) this->add_summary_gradients(u, m == 0);
    }
    inner.run(u.end - u.first,
              [&](std::int64_t i, int worker) HWY_ATTR { this->keys(u, u.first + i, scratch[worker]); });
  }

  [[nodiscard]] PanelRow plain() const {
    const auto& s = this->s_;
    return {s.E, s.D, s.z, s.normalized ? s.D : 0, s.size, /*transposed=*/true};
  }
  [[nodiscard]] std::int64_t place(const Unit& u, std::int64_t block, std::int64_t head, std::int64_t heads) const {
    return ((block * this->p_.B + u.sequence.batch) * heads + head) * this->p_.summary_size();
  }

  // Rows [begin, end) of head `head` of `heads`.
  void load(const Unit& u, std::int64_t begin, std::int64_t end, std::int64_t head, std::int64_t heads, Executor& inner,
            float* to) const {
    inner.run(HWY_MAX(std::int64_t{0}, end - begin), [&](std::int64_t index, int) HWY_ATTR {
      const std::int64_t b = begin + index;
      from_plain(plain(), data_as<float>(this->p_.part.gathered) + place(u, b, head, heads), to + b * this->s_.stride);
    });
  }

  // dP of the local chunks. Chunk 0 has no prefix.
  void store_gradients_of(const Unit& u, std::int64_t m, Executor& inner) const {
    const std::int64_t all = this->p_.gradient_heads();
    const std::int64_t head = all == this->p_.Hkv ? u.kv_head : u.kv_head * this->s_.group + m;
    inner.run(u.end - u.first, [&](std::int64_t index, int) HWY_ATTR {
      float* to = data_as<float>(this->p_.part.own) + place(u, index, head, all);
      if (u.first + index == 0)
        std::fill_n(to, this->p_.summary_size(), 0.0f);
      else
        to_plain(plain(), u.x->dP + (u.first + index) * this->s_.stride, to);
    });
  }

  // scale / den and the gradient of den, from or to [B, N, H, 2].
  void exchange_terms(const Unit& u, float* terms, bool store) const {
    const std::int64_t n = u.sequence.length;
    for (std::int64_t j = 0; j < this->s_.group; ++j) {
      for (std::int64_t t = 0; t < n; ++t) {
        float* at = terms + ((u.sequence.batch * this->p_.N + t) * this->p_.H + u.kv_head * this->s_.group + j) * 2;
        if (store)
          at[0] = u.x->factors[j * n + t], at[1] = u.x->dn[j * n + t];
        else
          u.x->factors[j * n + t] = at[0], u.x->dn[j * n + t] = at[1];
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
