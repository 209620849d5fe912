// The definition of the bidirectional form (README.md, eq. 1 to 12): plain loops in f64 for every dtype,
// one (sequence, kv head) per task, only outputs rounded. The `official` denominator of position w in
// block i reads the queries at position w of every block, so blocks need equal sizes.
#include <algorithm>

#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

using reference::Array;
using reference::Positions;
using reference::zeros;

// What the query heads of one kv head share: features, values, block summaries (eq. 1).
struct Keys {
  Array k_raw, k_den_raw;  // [n, D]  before the feature map; k_den_raw is k_raw unless k_den is given
  Array k, k_den;          // [n, D]
  Array v;                 // [n, E]
  Array S;                 // [M, D, E]
  Array z;                 // [M, D]

  Keys(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
    k_raw = reference::gather(p.k, sequence, at, kv_head);
    k_den_raw = p.has_den() ? reference::gather(p.maybe_k_den, sequence, at, kv_head) : k_raw;
    k = reference::map_features(p.feature_map, k_raw);
    k_den = reference::map_features(p.feature_map, k_den_raw);
    v = reference::gather(p.v, sequence, at, kv_head);
    S = zeros(at.blocks() * p.D * p.E);
    z = zeros(at.blocks() * p.D);
    for (std::int64_t b = 0; b < at.blocks(); ++b) {
      for (std::int64_t s = at.begin[b]; s < at.begin[b + 1]; ++s) {
        reference::add_outer(&S[b * p.D * p.E], &k[s * p.D], p.D, &v[s * p.E], p.E);
        reference::add_scaled(&z[b * p.D], &k_den[s * p.D], 1.0, p.D);
      }
    }
  }
};

// One query head: features, mixed summaries (eq. 2), denominators (eq. 4 or 5).
struct Queries {
  Array q_raw, q_den_raw;  // [n, D]
  Array q, q_den;          // [n, D]
  Array mix;               // [M, M]
  Array S_mixed;           // [M, D, E]
  Array z_mixed;           // [M, D]
  Array den;               // [n]     1 without a normaliser

  Queries(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t head, const Keys& keys) {
    const std::int64_t M = at.blocks();
    q_raw = reference::gather(p.q, sequence, at, head);
    q_den_raw = p.has_den() ? reference::gather(p.maybe_q_den, sequence, at, head) : q_raw;
    q = reference::map_features(p.feature_map, q_raw);
    q_den = reference::map_features(p.feature_map, q_den_raw);
    mix = zeros(M * M);
    S_mixed = zeros(M * p.D * p.E);
    z_mixed = zeros(M * p.D);
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t b = 0; b < M; ++b) {
        const double m = mix[i * M + b] = reference::mix_at(p, head, i, b);
        reference::add_scaled(&S_mixed[i * p.D * p.E], &keys.S[b * p.D * p.E], m, p.D * p.E);
        reference::add_scaled(&z_mixed[i * p.D], &keys.z[b * p.D], m, p.D);
      }
    }
    den.assign(static_cast<std::size_t>(at.tokens()), 1.0);
    for (std::int64_t i = 0; i < M && p.normalized(); ++i) {
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        den[t] = p.eps;
        if (p.normalizer == Normalizer::kPaper) {
          den[t] += reference::dot(&q_den[t * p.D], &z_mixed[i * p.D], p.D);
        } else {
          const std::int64_t w = t - at.begin[i];
          for (std::int64_t b = 0; b < M; ++b) den[t] += mix[i * M + b] * r(p, at, keys, b, w);
        }
      }
    }
  }

  // r_{b,w} = q~_{b,w} . z_b (eq. 5)
  [[nodiscard]] double r(const Problem& p, const Positions& at, const Keys& keys, std::int64_t b,
                         std::int64_t w) const {
    return reference::dot(&q_den[(at.begin[b] + w) * p.D], &keys.z[b * p.D], p.D);
  }

  // scale * q~_t^T S~_i / den_t (eq. 3)
  void read_out(const Problem& p, std::int64_t i, std::int64_t t, double* out) const {
    std::fill(out, out + p.E, 0.0);
    reference::add_vector_matrix(out, &q[t * p.D], p.D, &S_mixed[i * p.D * p.E], p.E);
    for (std::int64_t e = 0; e < p.E; ++e) out[e] = p.scale * out[e] / den[t];
  }
};

void forward_head(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t head,
                  const Keys& keys) {
  const Queries queries(p, sequence, at, head, keys);
  Array out = zeros(at.tokens() * p.E);
  for (std::int64_t i = 0; i < at.blocks(); ++i) {
    for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) queries.read_out(p, i, t, &out[t * p.E]);
  }
  reference::scatter(p.out, sequence, at, head, out);
}

// Gradients that query heads of one kv head add up, before the feature map.
struct KeyGradients {
  Array dk, dk_den;  // [n, D]  dk_den stays apart until the end: it belongs to k_den where that is given
  Array dv;          // [n, E]
};

// Gradient of the denominators (eq. 9 to 12): adds to dq_den, dz and dmix.
void denominator_backward(const Problem& p, const Positions& at, const Keys& keys, const Queries& queries,
                          const Array& dden, Array& dq_den, Array& dz, Array& dmix) {
  const std::int64_t M = at.blocks(), D = p.D;
  if (p.normalizer == Normalizer::kPaper) {
    for (std::int64_t i = 0; i < M; ++i) {
      Array dz_mixed = zeros(D);
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        reference::add_scaled(&dq_den[t * D], &queries.z_mixed[i * D], dden[t], D);
        reference::add_scaled(dz_mixed.data(), &queries.q_den[t * D], dden[t], D);
      }
      for (std::int64_t b = 0; b < M; ++b) {
        reference::add_scaled(&dz[b * D], dz_mixed.data(), queries.mix[i * M + b], D);
        if (!dmix.empty()) dmix[i * M + b] += reference::dot(dz_mixed.data(), &keys.z[b * D], D);
      }
    }
    return;
  }
  for (std::int64_t b = 0; b < M; ++b) {
    for (std::int64_t w = 0; w < at.begin[b + 1] - at.begin[b]; ++w) {
      const std::int64_t t = at.begin[b] + w;
      const double r = queries.r(p, at, keys, b, w);
      double dr = 0;
      for (std::int64_t i = 0; i < M; ++i) {
        const double dden_i = dden[at.begin[i] + w];
        dr += queries.mix[i * M + b] * dden_i;
        if (!dmix.empty()) dmix[i * M + b] += dden_i * r;
      }
      reference::add_scaled(&dq_den[t * D], &keys.z[b * D], dr, D);
      reference::add_scaled(&dz[b * D], &queries.q_den[t * D], dr, D);
    }
  }
}

void backward_head(const Problem& p, const Sequence& sequence, const Positions& at, std::int64_t head, const Keys& keys,
                   KeyGradients& grads, Array& dmix) {
  const std::int64_t M = at.blocks(), n = at.tokens(), D = p.D, E = p.E;
  const Queries queries(p, sequence, at, head, keys);
  Array dnum = reference::gather(p.dout, sequence, at, head);  // [n, E]  eq. 6: becomes scale * dout / den
  Array dden = zeros(n);                                       // [n]     eq. 6
  Array dq = zeros(n * D), dq_den = zeros(n * D);
  Array dS = zeros(M * D * E);  // [M, D, E]  eq. 8
  Array dz = zeros(M * D);      // [M, D]
  Array out = zeros(E);
  for (std::int64_t i = 0; i < M; ++i) {
    Array dS_mixed = zeros(D * E);  // eq. 7
    for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
      double* const g = &dnum[t * E];
      if (p.normalized()) {
        queries.read_out(p, i, t, out.data());
        dden[t] = -reference::dot(g, out.data(), E) / queries.den[t];
      }
      for (std::int64_t e = 0; e < E; ++e) g[e] = p.scale * g[e] / queries.den[t];
      reference::add_matrix_vector(&dq[t * D], &queries.S_mixed[i * D * E], D, g, E);
      reference::add_outer(dS_mixed.data(), &queries.q[t * D], D, g, E);
    }
    for (std::int64_t b = 0; b < M; ++b) {
      reference::add_scaled(&dS[b * D * E], dS_mixed.data(), queries.mix[i * M + b], D * E);
      if (!dmix.empty()) dmix[i * M + b] += reference::dot(dS_mixed.data(), &keys.S[b * D * E], D * E);
    }
  }
  if (p.normalized()) denominator_backward(p, at, keys, queries, dden, dq_den, dz, dmix);
  for (std::int64_t b = 0; b < M; ++b) {
    for (std::int64_t s = at.begin[b]; s < at.begin[b + 1]; ++s) {
      reference::add_matrix_vector(&grads.dk[s * D], &dS[b * D * E], D, &keys.v[s * E], E);
      reference::add_vector_matrix(&grads.dv[s * E], &keys.k[s * D], D, &dS[b * D * E], E);
      reference::add_scaled(&grads.dk_den[s * D], &dz[b * D], 1.0, D);
    }
  }
  reference::scatter_features(p, p.dq, p.maybe_dq_den, sequence, at, head, queries.q_raw, queries.q_den_raw, dq,
                              dq_den);
}

}  // namespace

void bidirectional_forward_ref(const Problem& p, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;  // uses vectors of its own
  reference::for_each_head(p, executor,
                           [&](std::int64_t, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
                             const Keys keys(p, sequence, at, kv_head);
                             for (std::int64_t g = 0; g < p.group(); ++g)
                               forward_head(p, sequence, at, kv_head * p.group() + g, keys);
                           });
}

void bidirectional_backward_ref(const Problem& p, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;
  reference::MixGradient mix_gradient(p);
  reference::for_each_head(
      p, executor, [&](std::int64_t s, const Sequence& sequence, const Positions& at, std::int64_t kv_head) {
        const Keys keys(p, sequence, at, kv_head);
        KeyGradients grads{zeros(at.tokens() * p.D), zeros(at.tokens() * p.D), zeros(at.tokens() * p.E)};
        for (std::int64_t g = 0; g < p.group(); ++g) {
          const std::int64_t head = kv_head * p.group() + g;
          backward_head(p, sequence, at, head, keys, grads, mix_gradient.part(s, head));
        }
        reference::scatter_features(p, p.dk, p.maybe_dk_den, sequence, at, kv_head, keys.k_raw, keys.k_den_raw,
                                    grads.dk, grads.dk_den);
        if (p.dv.given()) reference::scatter(p.dv, sequence, at, kv_head, grads.dv);
      });
  mix_gradient.store();
}

}  // namespace mhla
