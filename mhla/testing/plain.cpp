#include "mhla/testing/plain.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/common/reference.h"
#include "mhla/testing/eager.h"

namespace mhla {
namespace {

using namespace eager;
using reference::Positions;

template <class T>
Matrix<T> features(FeatureMap feature_map, const Matrix<T>& x) {
  using W = Wide<T>;
  const auto relu = [](W value) { return value <= 0 ? W{0} : value; };
  switch (feature_map) {
    case FeatureMap::kReluEps: return map(map(x, relu), [](W value) { return value + static_cast<W>(kReluEpsilon); });
    case FeatureMap::kRelu: return map(x, relu);
    case FeatureMap::kElu1:
      return map(map(x, [](W value) { return value <= 0 ? std::expm1(value) : value; }),
                 [](W value) { return value + 1; });
    case FeatureMap::kIdentity: return x;
  }
  fail("plain_case: unknown feature map");
}

template <class T>
Matrix<T> features_backward(FeatureMap feature_map, const Matrix<T>& x, const Matrix<T>& gradient) {
  using W = Wide<T>;
  switch (feature_map) {
    case FeatureMap::kReluEps:
    case FeatureMap::kRelu: return zip(x, gradient, [](W value, W g) { return value <= 0 ? W{0} : g; });
    case FeatureMap::kElu1: return zip(x, gradient, [](W value, W g) { return value <= 0 ? g * std::exp(value) : g; });
    case FeatureMap::kIdentity: return gradient;
  }
  fail("plain_case: unknown feature map");
}

// Everything of one (sequence, query head) that both forms need, and what backward leaves behind.
template <class T>
struct Head {
  const Case& c;
  const Positions& at;
  double scale;
  Matrix<T> mix;                    // [M, M] in T
  Matrix<T> q, k, v, q_den, k_den;  // features; q_den and k_den are q and k where they are not given
  Matrix<T> S, z;                   // [M, D E], [M, D]
  Matrix<T> num, den;               // [n, E] after scaling, [n, 1]
  Matrix<T> dq, dk, dv, dq_den, dk_den, dmix;

  [[nodiscard]] bool normalized() const { return c.normalizer != Normalizer::kNone; }
  [[nodiscard]] Matrix<T> block(const Matrix<T>& x, std::int64_t i) const {
    return x.slice(at.begin[i], at.begin[i + 1]);
  }
  [[nodiscard]] Matrix<T> summary(const Matrix<T>& all, std::int64_t i) const {  // row i as [D, E]
    return all.slice(i, i + 1).reshaped(c.D, c.E);
  }
  [[nodiscard]] std::int64_t M() const { return at.blocks(); }

  void summaries() {
    S = Matrix<T>(M(), c.D * c.E), z = Matrix<T>(M(), c.D);
    for (std::int64_t b = 0; b < M(); ++b) {
      S.put(b, matmul(block(k, b).transposed(), block(v, b)).reshaped(1, c.D * c.E));
      z.put(b, sum_rows(block(k_den, b)));
    }
  }

  Matrix<T> finish() {  // scale, add eps, divide
    if (scale != 1.0) num = scaled(num, static_cast<Wide<T>>(scale));
    if (!normalized()) return num;
    den = map(den, [this](auto x) { return x + static_cast<Wide<T>>(c.eps); });
    return over_column(num, den);
  }

  // Gradients of num (before scaling) and den from dout.
  std::pair<Matrix<T>, Matrix<T>> finish_backward(const Matrix<T>& dout) const {
    Matrix<T> dnum = dout, dden;
    if (normalized()) {
      dnum = over_column(dout, den);
      const Matrix<T> slope = over_column(over_column(num, den), den);
      dden = sum_columns(zip(dout, slope, [](auto g, auto s) { return -g * s; }));
    }
    if (scale != 1.0) dnum = scaled(dnum, static_cast<Wide<T>>(scale));
    return {dnum, dden};
  }

  void start_backward() {
    const std::int64_t n = at.tokens();
    dq = dk = dq_den = dk_den = Matrix<T>(n, c.D), dv = Matrix<T>(n, c.E), dmix = Matrix<T>(M(), M());
  }

  // From gradients of S and z to those of k, v and k_den, on top of what the chunk itself gave.
  void summaries_backward(const Matrix<T>& dS, const Matrix<T>& dz, bool add_to) {
    for (std::int64_t b = 0; b < M(); ++b) {
      Matrix<T> dk_b = matmul(block(v, b), summary(dS, b).transposed()), dv_b = matmul(block(k, b), summary(dS, b));
      Matrix<T> dk_den_b(dk_b.rows, c.D);
      for (std::int64_t r = 0; r < dk_den_b.rows && normalized(); ++r) dk_den_b.put(r, dz.slice(b, b + 1));
      if (add_to) {
        dk_b = add(dk_b, block(dk, b)), dv_b = add(dv_b, block(dv, b)), dk_den_b = add(dk_den_b, block(dk_den, b));
      }
      dk.put(at.begin[b], dk_b), dv.put(at.begin[b], dv_b), dk_den.put(at.begin[b], dk_den_b);
    }
  }

  Matrix<T> bidirectional(const Matrix<T>* maybe_dout) {
    summaries();
    const Matrix<T> S_mixed = matmul(mix, S), z_mixed = matmul(mix, z);
    const bool official = c.normalizer == Normalizer::kOfficial;
    num = Matrix<T>(at.tokens(), c.E), den = Matrix<T>(at.tokens(), 1);
    Matrix<T> r(M(), at.begin[1]);  // official: r[b, w] = q~_{b,w} . z_b
    for (std::int64_t i = 0; i < M(); ++i) {
      num.put(at.begin[i], matmul(block(q, i), summary(S_mixed, i)));
      if (!normalized()) continue;
      const Matrix<T> z_i = (official ? z : z_mixed).slice(i, i + 1);
      const Matrix<T> q_z = matmul(block(q_den, i), z_i.transposed());
      if (official)
        r.put(i, q_z.reshaped(1, q_z.rows));
      else
        den.put(at.begin[i], q_z);
    }
    if (official) den = matmul(mix, r).reshaped(at.tokens(), 1);
    const Matrix<T> out = finish();
    if (maybe_dout == nullptr) return out;

    start_backward();
    const auto [dnum, dden] = finish_backward(*maybe_dout);
    Matrix<T> dS_mixed(M(), c.D * c.E), dz_in(M(), c.D), dr;  // dz_in: of z_mixed, or of z for official
    if (official) {
      const Matrix<T> drm = dden.reshaped(M(), r.columns);
      dr = matmul(mix.transposed(), drm);
      dmix = matmul(drm, r.transposed());
    }
    for (std::int64_t i = 0; i < M(); ++i) {
      dq.put(at.begin[i], matmul(block(dnum, i), summary(S_mixed, i).transposed()));
      dS_mixed.put(i, matmul(block(q, i).transposed(), block(dnum, i)).reshaped(1, c.D * c.E));
      if (!normalized()) continue;
      const Matrix<T> g = official ? dr.slice(i, i + 1).transposed() : block(dden, i);
      dq_den.put(at.begin[i], matmul(g, (official ? z : z_mixed).slice(i, i + 1)));
      dz_in.put(i, matmul(g.transposed(), block(q_den, i)));
    }
    dmix = add(dmix, matmul(dS_mixed, S.transposed()));
    if (normalized() && !official) dmix = add(dmix, matmul(dz_in, z.transposed()));
    const Matrix<T> dz = official ? dz_in : matmul(mix.transposed(), dz_in);
    summaries_backward(matmul(mix.transposed(), dS_mixed), dz, false);
    return out;
  }

  static Matrix<T> lower(Matrix<T> a, bool diagonal) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      for (std::int64_t col = diagonal ? r + 1 : r; col < a.columns; ++col) a(r, col) = 0;
    }
    return a;
  }
  static Matrix<T> cumulative(const Matrix<T>& a) {  // running sum over rows
    Matrix<T> out(a.rows, a.columns);
    for (std::int64_t col = 0; col < a.columns; ++col) {
      Wide<T> sum = 0;
      for (std::int64_t r = 0; r < a.rows; ++r) out(r, col) = rounded<T>(sum += a(r, col));
    }
    return out;
  }
  static Matrix<T> reversed(const Matrix<T>& a) {
    Matrix<T> out(a.rows, a.columns);
    for (std::int64_t r = 0; r < a.rows; ++r) std::copy(a.row(r), a.row(r) + a.columns, out.row(a.rows - 1 - r));
    return out;
  }
  static Wide<T> total(const Matrix<T>& a) { return sum_columns(sum_rows(a))(0, 0); }

  Matrix<T> causal(const Matrix<T>* maybe_dout) {
    summaries();
    const Matrix<T> mix_before = lower(mix, false);
    const Matrix<T> prefix = matmul(mix_before, S), z_prefix = matmul(mix_before, z);
    num = Matrix<T>(at.tokens(), c.E), den = Matrix<T>(at.tokens(), 1);
    Matrix<T> intra(at.tokens(), c.E), z_open(at.tokens(), c.D), z_seen(at.tokens(), c.D);
    for (std::int64_t i = 0; i < M(); ++i) {
      const Matrix<T> A = lower(matmul(block(q, i), block(k, i).transposed()), true);
      intra.put(at.begin[i], matmul(A, block(v, i)));
      num.put(at.begin[i], add(matmul(block(q, i), summary(prefix, i)), scaled(block(intra, i), mix(i, i))));
      if (!normalized()) continue;
      z_open.put(at.begin[i], cumulative(block(k_den, i)));
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        z_seen.put(t, add(z_prefix.slice(i, i + 1), scaled(z_open.slice(t, t + 1), mix(i, i))));
        den.put(t, matmul(q_den.slice(t, t + 1), z_seen.slice(t, t + 1).transposed()));
      }
    }
    const Matrix<T> out = finish();
    if (maybe_dout == nullptr) return out;

    start_backward();
    const auto [dnum, dden] = finish_backward(*maybe_dout);
    Matrix<T> d_prefix(M(), c.D * c.E), dz_prefix(M(), c.D), d_diagonal(M(), 1);
    for (std::int64_t i = 0; i < M(); ++i) {
      const Matrix<T> g = block(dnum, i), g_intra = scaled(g, mix(i, i)), q_i = block(q, i);
      const Matrix<T> A = lower(matmul(q_i, block(k, i).transposed()), true);
      const Matrix<T> dA = lower(matmul(g_intra, block(v, i).transposed()), true);
      d_diagonal(i, 0) = total(zip(g, block(intra, i), [](auto x, auto y) { return x * y; }));
      dq.put(at.begin[i], add(matmul(g, summary(prefix, i).transposed()), matmul(dA, block(k, i))));
      dk.put(at.begin[i], matmul(dA.transposed(), q_i));
      dv.put(at.begin[i], matmul(A.transposed(), g_intra));
      d_prefix.put(i, matmul(q_i.transposed(), g).reshaped(1, c.D * c.E));
      if (!normalized()) continue;
      const Matrix<T> dz_seen = times_column(block(q_den, i), block(dden, i));
      dq_den.put(at.begin[i], times_column(block(z_seen, i), block(dden, i)));
      dz_prefix.put(i, sum_rows(dz_seen));
      dk_den.put(at.begin[i], reversed(cumulative(reversed(scaled(dz_seen, mix(i, i))))));
      d_diagonal(i, 0) =
          rounded<T>(d_diagonal(i, 0) + total(zip(dz_seen, block(z_open, i), [](auto x, auto y) { return x * y; })));
    }
    dmix = matmul(d_prefix, S.transposed());
    if (normalized()) dmix = add(dmix, matmul(dz_prefix, z.transposed()));
    dmix = lower(dmix, false);
    for (std::int64_t i = 0; i < M(); ++i) dmix(i, i) = d_diagonal(i, 0);
    summaries_backward(matmul(mix_before.transposed(), d_prefix), matmul(mix_before.transposed(), dz_prefix), true);
    return out;
  }
};

template <class T>
Matrix<T> gather(const ConstView& x, const Sequence& sequence, const Positions& at, std::int64_t head) {
  const reference::Array rows = reference::gather(x, sequence, at, head);
  Matrix<T> out(at.tokens(), x.shape[3]);
  std::copy(rows.begin(), rows.end(), out.data.begin());
  return out;
}

template <class T>
void scatter(Tensor& x, const Sequence& sequence, const Positions& at, std::int64_t head, const Matrix<T>& rows) {
  reference::scatter(x.view(), sequence, at, head, reference::Array(rows.data.begin(), rows.data.end()));
}

template <class T>
class PlainCase {
 public:
  PlainCase(const Case& c, const CaseInputs& in) : c_(c), in_(in) {
    const auto like = [](const ConstView& view) {
      return Tensor(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
    };
    result_.out = like(in.dout);
    result_.dq = like(in.q), result_.dk = like(in.k), result_.dv = like(in.v), result_.dmix = like(in.mix);
    if (c.den) result_.maybe_dq_den = like(in.maybe_q_den), result_.maybe_dk_den = like(in.maybe_k_den);
    dmix_.assign(static_cast<std::size_t>(result_.dmix.numel()), 0);
    scale_ = c.scale.value_or(
        c.form == Form::kCausal && c.normalizer == Normalizer::kNone ? 1 / std::sqrt(static_cast<double>(c.D)) : 1.0);
  }

  CaseResult run() {
    for (const Sequence& s : c_.sequences()) sequence(s);
    for (std::int64_t index = 0; index < result_.dmix.numel(); ++index)
      result_.dmix.set(index, rounded<T>(dmix_[static_cast<std::size_t>(index)]));
    return std::move(result_);
  }

 private:
  void sequence(const Sequence& s) {
    if (s.length == 0) return;
    const Positions at(c_.layout, s.length);
    for (std::int64_t kv_head = 0; kv_head < c_.Hkv; ++kv_head) kv_group(s, at, kv_head);
  }

  void kv_group(const Sequence& s, const Positions& at, std::int64_t kv_head) {
    const std::int64_t group = c_.H / c_.Hkv;
    const Matrix<T> k = gather<T>(in_.k, s, at, kv_head);
    const Matrix<T> k_den = c_.den ? gather<T>(in_.maybe_k_den, s, at, kv_head) : k;
    Matrix<T> dk(at.tokens(), c_.D), dk_den(at.tokens(), c_.D), dv(at.tokens(), c_.E);
    const auto accumulate = [](Matrix<T>& sum, const Matrix<T>& part) {  // rounded at the end, as sum() does
      for (std::size_t j = 0; j < sum.data.size(); ++j) sum.data[j] += part.data[j];
    };
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Matrix<T> q = gather<T>(in_.q, s, at, head);
      const Matrix<T> q_den = c_.den ? gather<T>(in_.maybe_q_den, s, at, head) : q;
      Head<T> h{c_,
                at,
                scale_,
                mix_of(at.blocks(), head),
                features(c_.feature_map, q),
                features(c_.feature_map, k),
                gather<T>(in_.v, s, at, kv_head),
                features(c_.feature_map, q_den),
                features(c_.feature_map, k_den),
                {},
                {},
                {},
                {},
                {},
                {},
                {},
                {},
                {},
                {}};
      const Matrix<T> dout = gather<T>(in_.dout, s, at, head);
      scatter(result_.out, s, at, head, c_.form == Form::kCausal ? h.causal(&dout) : h.bidirectional(&dout));
      if (!c_.den && h.normalized()) h.dq = add(h.dq, h.dq_den);
      scatter(result_.dq, s, at, head, features_backward(c_.feature_map, q, h.dq));
      if (c_.den) scatter(result_.maybe_dq_den, s, at, head, features_backward(c_.feature_map, q_den, h.dq_den));
      if (!c_.den && h.normalized()) h.dk = add(h.dk, h.dk_den);
      accumulate(dk, h.dk), accumulate(dk_den, h.dk_den), accumulate(dv, h.dv);
      add_mix(h.dmix, head);
    }
    const auto round_all = [](const Matrix<T>& x) { return map(x, [](auto value) { return value; }); };
    scatter(result_.dk, s, at, kv_head, features_backward(c_.feature_map, k, round_all(dk)));
    scatter(result_.dv, s, at, kv_head, round_all(dv));
    if (c_.den)
      scatter(result_.maybe_dk_den, s, at, kv_head, features_backward(c_.feature_map, k_den, round_all(dk_den)));
  }

  [[nodiscard]] std::int64_t mix_offset(std::int64_t head, std::int64_t i, std::int64_t b) const {
    const std::int64_t L = c_.mix_rows();
    const MixIndex at = mix_index(i, b, L);
    return ((c_.per_head ? head : 0) * L + at.row) * L + at.column;
  }

  Matrix<T> mix_of(std::int64_t M, std::int64_t head) const {
    Matrix<T> mix(M, M);
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t b = 0; b < (c_.form == Form::kCausal ? i + 1 : M); ++b) {
        mix(i, b) = rounded<T>(static_cast<Wide<T>>(load_f64(in_.mix.data, in_.mix.dtype, mix_offset(head, i, b))));
      }
    }
    return mix;
  }

  void add_mix(const Matrix<T>& dmix, std::int64_t head) {
    for (std::int64_t i = 0; i < dmix.rows; ++i) {
      for (std::int64_t b = 0; b < (c_.form == Form::kCausal ? i + 1 : dmix.rows); ++b)
        dmix_[static_cast<std::size_t>(mix_offset(head, i, b))] += dmix(i, b);
    }
  }

  const Case& c_;
  const CaseInputs& in_;
  CaseResult result_;
  std::vector<Wide<T>> dmix_;
  double scale_;
};

}  // namespace

CaseResult plain_case(const Case& c, const CaseInputs& inputs) {
  switch (inputs.q.dtype) {
    case DType::kF32: return PlainCase<float>(c, inputs).run();
    case DType::kBF16: return PlainCase<bf16>(c, inputs).run();
    case DType::kF16: return PlainCase<f16>(c, inputs).run();
    case DType::kF64: return PlainCase<double>(c, inputs).run();
    default: fail("plain_case: dtype is ", name_of(inputs.q.dtype), ", expected a float type");
  }
}

}  // namespace mhla
