#include "mhla/testing/token_view.h"

#include <algorithm>
#include <cmath>

namespace mhla {
namespace {

double feature(FeatureMap map, double x) {
  const double positive = x > 0 ? x : 0;
  switch (map) {
    case FeatureMap::kReluEps: return positive + 1e-6;
    case FeatureMap::kRelu: return positive;
    case FeatureMap::kElu1: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::kIdentity: break;
  }
  return x;
}

std::int64_t block_of(const Layout& layout, std::int64_t token) {
  if (layout.rank == 1) return token / layout.block_size;
  const auto coordinate = [&](int axis, std::int64_t place) {
    return place / ((layout.grid[axis] + layout.blocks[axis] - 1) / layout.blocks[axis]);
  };
  const std::int64_t column = token % layout.grid[2], row = token / layout.grid[2] % layout.grid[1];
  const std::int64_t frame = token / (layout.grid[2] * layout.grid[1]);
  return (coordinate(0, frame) * layout.blocks[1] + coordinate(1, row)) * layout.blocks[2] + coordinate(2, column);
}

class OneHead {
 public:
  OneHead(const Case& c, const CaseInputs& in, const Sequence& s, std::int64_t head)
      : c_(c), in_(in), s_(s), head_(head), kv_head_(head / (c.H / c.Hkv)) {
    for (std::int64_t t = 0; t < s.length; ++t) {
      const std::int64_t block = block_of(c.layout, t);
      place_.push_back(std::count(block_.begin(), block_.end(), block));  // tokens of the same block before t
      block_.push_back(block);
    }
  }

  void run(Tensor& out) const {
    const double scale = c_.scale.value_or(
        c_.form == Form::kCausal && c_.normalizer == Normalizer::kNone ? std::pow(static_cast<double>(c_.D), -0.5) : 1);
    for (std::int64_t t = 0; t < s_.length; ++t) {
      std::vector<double> row(static_cast<std::size_t>(c_.E));
      for (std::int64_t s = 0; s < end(t); ++s) {
        const double A = mix(block_[t], block_[s]) * similarity(t, s, in_.q, in_.k);
        for (std::int64_t e = 0; e < c_.E; ++e)
          row[e] += A * CaseInputs::get(in_.v, index(s, kv_head_, c_.Hkv, e, c_.E));
      }
      const double den = denominator(t);
      for (std::int64_t e = 0; e < c_.E; ++e) out.set(index(t, head_, c_.H, e, c_.E), scale * row[e] / den);
    }
  }

 private:
  [[nodiscard]] std::int64_t end(std::int64_t t) const { return c_.form == Form::kCausal ? t + 1 : s_.length; }
  [[nodiscard]] std::int64_t index(std::int64_t t, std::int64_t head, std::int64_t heads, std::int64_t j,
                                   std::int64_t size) const {
    return ((s_.batch * c_.N + s_.start + t) * heads + head) * size + j;
  }

  [[nodiscard]] double similarity(std::int64_t t, std::int64_t s, const ConstView& q, const ConstView& k) const {
    double sum = 0;
    for (std::int64_t d = 0; d < c_.D; ++d) {
      sum += feature(c_.feature_map, CaseInputs::get(q, index(t, head_, c_.H, d, c_.D))) *
             feature(c_.feature_map, CaseInputs::get(k, index(s, kv_head_, c_.Hkv, d, c_.D)));
    }
    return sum;
  }

  [[nodiscard]] double mix(std::int64_t i, std::int64_t b) const {
    const std::int64_t L = c_.mix_rows();
    if (i >= L) b = std::max<std::int64_t>(0, L - 1 - (i - b)), i = L - 1;
    return CaseInputs::get(in_.mix, ((c_.per_head ? head_ : 0) * L + i) * L + b);
  }

  [[nodiscard]] double denominator(std::int64_t t) const {
    if (c_.normalizer == Normalizer::kNone) return 1;
    const ConstView& q = c_.den ? in_.maybe_q_den : in_.q;
    const ConstView& k = c_.den ? in_.maybe_k_den : in_.k;
    double sum = c_.eps;
    if (c_.normalizer == Normalizer::kPaper) {
      for (std::int64_t s = 0; s < end(t); ++s) sum += mix(block_[t], block_[s]) * similarity(t, s, q, k);
      return sum;
    }
    // official: the query at the same place of every block, with that block's own keys
    for (std::int64_t other = 0; other < s_.length; ++other) {
      if (place_[other] != place_[t]) continue;
      for (std::int64_t s = 0; s < s_.length; ++s) {
        if (block_[s] == block_[other]) sum += mix(block_[t], block_[other]) * similarity(other, s, q, k);
      }
    }
    return sum;
  }

  const Case& c_;
  const CaseInputs& in_;
  Sequence s_;
  std::int64_t head_, kv_head_;
  std::vector<std::int64_t> block_, place_;
};

}  // namespace

Tensor token_view(const Case& c, const CaseInputs& inputs) {
  Tensor out(DType::kF64, {c.B, c.N, c.H, c.E});
  for (const Sequence& sequence : c.sequences()) {
    for (std::int64_t head = 0; head < c.H; ++head) OneHead(c, inputs, sequence, head).run(out);
  }
  return out;
}

}  // namespace mhla
