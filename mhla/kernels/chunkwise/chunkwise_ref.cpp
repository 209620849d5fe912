// The definition of the causal form (README.md, eq. 1 to 11): plain loops in f64 for every dtype, one
// (sequence, kv head) per task, only outputs rounded. Coefficients beyond the rows of mix come from
// mix_index; blocks that share the last of them are added up before they are weighed, as a state keeps them.
#include <algorithm>

#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

using reference::Array;
using reference::Positions;
using reference::zeros;

// What the query heads of one kv head share: features, values, chunk summaries (eq. 1).
struct Keys {
  Array k_raw, k_den_raw;  // [n, D]  before the feature map; k_den_raw is k_raw unless k_den is given
  Array k, k_den;          // [n, D]
  Array v;                 // [n, E]
  Array S;                 // [M, D, E]
  Array z;                 // [M, D]
  Array z_open;            // [n, D]  sum of k~ over the tokens of the chunk up to and including this one

  Keys(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
    const std::int64_t D = p.D, E = p.E;
    k_raw = reference::gather(p.k, sequence, at, kv_head);
    k_den_raw = p.has_den() ? reference::gather(p.maybe_k_den, sequence, at, kv_head) : k_raw;
    k = reference::map_features(p.feature_map, k_raw);
    k_den = reference::map_features(p.feature_map, k_den_raw);
    v = reference::gather(p.v, sequence, at, kv_head);
    S = zeros(at.blocks() * D * E);
    z = zeros(at.blocks() * D);
    z_open = zeros(at.tokens() * D);
    for (std::int64_t b = 0; b < at.blocks(); ++b) {
      for (std::int64_t s = at.begin[b]; s < at.begin[b + 1]; ++s) {
        reference::add_outer(&S[b * D * E], &k[s * D], D, &v[s * E], E);
        reference::add_scaled(&z[b * D], &k_den[s * D], 1.0, D);
        std::copy_n(&z[b * D], D, &z_open[s * D]);
      }
    }
  }
};

// One query head: features, the prefix of every chunk (eq. 2), numerators and denominators (eq. 3, 4).
struct Queries {
  Array q_raw, q_den_raw;  // [n, D]
  Array q, q_den;          // [n, D]
  Array prefix;            // [M, D, E]  P_i
  Array z_prefix;          // [M, D]     p_i
  Array intra;             // [n, E]     sum_{s <= t in chunk} (q~_t . k~_s) v_s
  Array out;               // [n, E]     before rounding
  Array den;               // [n]        1 without a normaliser

  Queries(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t head, const Keys& keys) {
    const std::int64_t M = at.blocks(), n = at.tokens(), D = p.D, E = p.E;
    q_raw = reference::gather(p.q, sequence, at, head);
    q_den_raw = p.has_den() ? reference::gather(p.maybe_q_den, sequence, at, head) : q_raw;
    q = reference::map_features(p.feature_map, q_raw);
    q_den = reference::map_features(p.feature_map, q_den_raw);
    prefix = zeros(M * D * E);
    z_prefix = zeros(M * D);
    intra = zeros(n * E);
    out = zeros(n * E);
    den.assign(static_cast<std::size_t>(n), 1.0);
    Array S_old = zeros(D * E), z_old = zeros(D);  // with `extend`: blocks that share a coefficient, oldest first
    std::int64_t summed = 0;
    for (std::int64_t i = 0; i < M; ++i) {
      const std::int64_t near = i < p.L ? 0 : std::min(i - p.L + 2, i);
      for (; summed < near; ++summed) {
        reference::add_scaled(S_old.data(), &keys.S[summed * D * E], 1.0, D * E);
        reference::add_scaled(z_old.data(), &keys.z[summed * D], 1.0, D);
      }
      if (near > 0) {
        reference::add_scaled(&prefix[i * D * E], S_old.data(), coefficient(p, head, i, 0), D * E);
        reference::add_scaled(&z_prefix[i * D], z_old.data(), coefficient(p, head, i, 0), D);
      }
      for (std::int64_t b = near; b < i; ++b) {
        const double m = coefficient(p, head, i, b);
        reference::add_scaled(&prefix[i * D * E], &keys.S[b * D * E], m, D * E);
        reference::add_scaled(&z_prefix[i * D], &keys.z[b * D], m, D);
      }
      const double diagonal = coefficient(p, head, i, i);
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        for (std::int64_t s = at.begin[i]; s <= t; ++s) {
          reference::add_scaled(&intra[t * E], &keys.v[s * E], reference::dot(&q[t * D], &keys.k[s * D], D), E);
        }
        reference::add_vector_matrix(&out[t * E], &q[t * D], D, &prefix[i * D * E], E);
        reference::add_scaled(&out[t * E], &intra[t * E], diagonal, E);
        if (p.normalized()) {
          den[t] = p.eps + reference::dot(&q_den[t * D], &z_prefix[i * D], D) +
                   diagonal * reference::dot(&q_den[t * D], &keys.z_open[t * D], D);
        }
        for (std::int64_t e = 0; e < E; ++e) out[t * E + e] = p.scale * out[t * E + e] / den[t];
      }
    }
  }

  static double coefficient(const Problem& p, std::int64_t head, std::int64_t i, std::int64_t b) {
    const MixIndex at = mix_index(i, b, p.L);
    return reference::mix_at(p, head, at.row, at.column);
  }
};

// Gradients that query heads of one kv head add up, before the feature map.
struct KeyGradients {
  Array dk, dk_den;  // [n, D]
  Array dv;          // [n, E]
};

// dmix of one head, found through mix_index; does nothing where dmix is not wanted.
struct MixPart {
  Array& sum;         // [rows, rows] or empty
  std::int64_t rows;  // min(L, M)
  std::int64_t L;
  void add(std::int64_t i, std::int64_t b, double value) {
    const MixIndex at = mix_index(i, b, L);
    if (!sum.empty()) sum[at.row * rows + at.column] += value;
  }
};

// Inside chunk i (eq. 8 to 10): the masked products, in both directions.
void chunk_backward(const Problem& p, const Positions& at, std::int64_t i, double diagonal, const Keys& keys,
                    const Queries& queries, const Array& dnum, const Array& dden, Array& dq, Array& dq_den,
                    KeyGradients& grads, MixPart& dmix) {
  const std::int64_t D = p.D, E = p.E;
  double d_diagonal = 0;
  for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
    const double *q = &queries.q[t * D], *g = &dnum[t * E];
    for (std::int64_t s = at.begin[i]; s <= t; ++s) {
      const double a = reference::dot(q, &keys.k[s * D], D);
      const double da = reference::dot(g, &keys.v[s * E], E);
      reference::add_scaled(&dq[t * D], &keys.k[s * D], diagonal * da, D);
      reference::add_scaled(&grads.dk[s * D], q, diagonal * da, D);
      reference::add_scaled(&grads.dv[s * E], g, diagonal * a, E);
      if (p.normalized()) reference::add_scaled(&grads.dk_den[s * D], &queries.q_den[t * D], diagonal * dden[t], D);
    }
    d_diagonal += reference::dot(g, &queries.intra[t * E], E);
    if (p.normalized()) {
      reference::add_scaled(&dq_den[t * D], &keys.z_open[t * D], diagonal * dden[t], D);
      d_diagonal += dden[t] * reference::dot(&queries.q_den[t * D], &keys.z_open[t * D], D);
    }
  }
  dmix.add(i, i, d_diagonal);
}

void backward_head(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t head, const Keys& keys,
                   KeyGradients& grads, MixPart dmix) {
  const std::int64_t M = at.blocks(), n = at.tokens(), D = p.D, E = p.E;
  const Queries queries(p, sequence, at, head, keys);
  Array dnum = reference::gather(p.dout, sequence, at, head);  // [n, E]  eq. 5: becomes scale * dout / den
  Array dden = zeros(n);                                       // [n]     eq. 5
  Array dq = zeros(n * D), dq_den = zeros(n * D);
  Array dS = zeros(M * D * E);  // [M, D, E]  eq. 7
  Array dz = zeros(M * D);      // [M, D]
  for (std::int64_t i = 0; i < M; ++i) {
    Array d_prefix = zeros(D * E), dz_prefix = zeros(D);  // eq. 6
    for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
      double* const g = &dnum[t * E];
      if (p.normalized()) {
        dden[t] = -reference::dot(g, &queries.out[t * E], E) / queries.den[t];
        reference::add_scaled(&dq_den[t * D], &queries.z_prefix[i * D], dden[t], D);
        reference::add_scaled(dz_prefix.data(), &queries.q_den[t * D], dden[t], D);
      }
      for (std::int64_t e = 0; e < E; ++e) g[e] = p.scale * g[e] / queries.den[t];
      reference::add_matrix_vector(&dq[t * D], &queries.prefix[i * D * E], D, g, E);
      reference::add_outer(d_prefix.data(), &queries.q[t * D], D, g, E);
    }
    for (std::int64_t b = 0; b < i; ++b) {
      const double m = Queries::coefficient(p, head, i, b);
      reference::add_scaled(&dS[b * D * E], d_prefix.data(), m, D * E);
      double dm = reference::dot(d_prefix.data(), &keys.S[b * D * E], D * E);
      if (p.normalized()) {
        reference::add_scaled(&dz[b * D], dz_prefix.data(), m, D);
        dm += reference::dot(dz_prefix.data(), &keys.z[b * D], D);
      }
      dmix.add(i, b, dm);
    }
    chunk_backward(p, at, i, Queries::coefficient(p, head, i, i), keys, queries, dnum, dden, dq, dq_den, grads, dmix);
  }
  for (std::int64_t b = 0; b < M; ++b) {
    for (std::int64_t s = at.begin[b]; s < at.begin[b + 1]; ++s) {
      reference::add_matrix_vector(&grads.dk[s * D], &dS[b * D * E], D, &keys.v[s * E], E);
      reference::add_vector_matrix(&grads.dv[s * E], &keys.k[s * D], D, &dS[b * D * E], E);
      if (p.normalized()) reference::add_scaled(&grads.dk_den[s * D], &dz[b * D], 1.0, D);
    }
  }
  reference::scatter_features(p, p.dq, p.maybe_dq_den, sequence, at, head, queries.q_raw, queries.q_den_raw, dq,
                              dq_den);
}

}  // namespace

void chunkwise_forward_ref(const Problem& p, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;  // uses vectors of its own
  reference::for_each_head(p, executor,
                           [&](std::int64_t, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
                             const Keys keys(p, sequence, at, kv_head);
                             for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
                               reference::scatter(p.out, sequence, at, head, Queries(p, sequence, at, head, keys).out);
                             }
                           });
}

void chunkwise_backward_ref(const Problem& p, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;
  reference::MixGradient mix_gradient(p);
  reference::for_each_head(
      p, executor, [&](std::int64_t s, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
        const Keys keys(p, sequence, at, kv_head);
        KeyGradients grads{zeros(at.tokens() * p.D), zeros(at.tokens() * p.D), zeros(at.tokens() * p.E)};
        for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
          backward_head(p, sequence, at, head, keys, grads, {mix_gradient.part(s, head), mix_gradient.rows(s), p.L});
        }
        reference::scatter_features(p, p.dk, p.maybe_dk_den, sequence, at, kv_head, keys.k_raw, keys.k_den_raw,
                                    grads.dk, grads.dk_den);
        if (p.dv.given()) reference::scatter(p.dv, sequence, at, kv_head, grads.dv);
      });
  mix_gradient.store();
}

}  // namespace mhla
