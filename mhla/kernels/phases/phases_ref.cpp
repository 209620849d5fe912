// The phases of both forms in plain loops and f64 (README.md): what the CPU vectors are checked against, and what runs
// f64. Only what leaves a phase is rounded.
#include <algorithm>

#include "mhla/kernels/common/reference.h"
#include "mhla/kernels/phases/phases_candidates.h"

namespace mhla {
namespace {

using reference::Array;
using reference::Positions;
using reference::zeros;

// Rows [blocks, B, heads, X] of another process or for it.
template <class V>
std::int64_t row_place(const Problem& p, const V& rows, std::int64_t block, std::int64_t batch, std::int64_t head) {
  return ((block * p.B + batch) * rows.shape[2] + head) * p.summary_size();
}
Array load_row(const Problem& p, const ConstView& rows, std::int64_t block, std::int64_t batch, std::int64_t head) {
  Array row = zeros(p.summary_size());
  const std::int64_t at = row_place(p, rows, block, batch, head);
  for (std::size_t x = 0; x < row.size(); ++x)
    row[x] = load_f64(rows.data, rows.dtype, at + static_cast<std::int64_t>(x));
  return row;
}
void store_row(const Problem& p, const View& rows, std::int64_t block, std::int64_t batch, std::int64_t head,
               const Array& row) {
  const std::int64_t at = row_place(p, rows, block, batch, head);
  for (std::size_t x = 0; x < row.size(); ++x)
    store_f64(rows.data, rows.dtype, at + static_cast<std::int64_t>(x), row[x]);
}

// Query block i sees the summary of block b.
bool sees(const Problem& p, std::int64_t i, std::int64_t b) { return !p.causal || b < i; }

// The local keys of one kv head.
struct Keys {
  Array raw, den_raw, k, k_den, v;

  Keys(const Problem& p, const Sequence& s, const Positions& at, std::int64_t head) {
    raw = reference::gather(p.k, s, at, head);
    den_raw = p.has_den() ? reference::gather(p.maybe_k_den, s, at, head) : raw;
    k = reference::map_features(p.feature_map, raw), k_den = reference::map_features(p.feature_map, den_raw);
    v = reference::gather(p.v, s, at, head);
  }
};

struct Queries {
  Array raw, den_raw, q, q_den;

  Queries(const Problem& p, const Sequence& s, const Positions& at, std::int64_t head) {
    raw = reference::gather(p.q, s, at, head);
    den_raw = p.has_den() ? reference::gather(p.maybe_q_den, s, at, head) : raw;
    q = reference::map_features(p.feature_map, raw), q_den = reference::map_features(p.feature_map, den_raw);
  }
};

void summaries(const Problem& p, const Sequence& s, const Positions& at, std::int64_t kv_head) {
  const Keys keys(p, s, at, kv_head);
  for (std::int64_t b = 0; b < at.blocks(); ++b) {
    Array row = zeros(p.summary_size());
    for (std::int64_t t = at.begin[b]; t < at.begin[b + 1]; ++t) {
      reference::add_outer(row.data(), &keys.k[t * p.D], p.D, &keys.v[t * p.E], p.E);
      if (p.normalized()) reference::add_scaled(&row[p.D * p.E], &keys.k_den[t * p.D], 1.0, p.D);
    }
    store_row(p, p.part.own, b, s.batch, kv_head, row);
  }
}

// Mixed summary of query block i, global number.
Array mixed(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t i) {
  Array row = zeros(p.summary_size());
  for (std::int64_t b = 0; b < p.M; ++b) {
    if (!sees(p, i, b)) continue;
    reference::add_scaled(row.data(), load_row(p, p.part.gathered, b, s.batch, head / p.group()).data(),
                          reference::mix_at(p, head, i, b), p.summary_size());
  }
  return row;
}

// One token of block i: numerator before the scale, denominator, and what its own chunk gave (causal).
struct Token {
  Array num, intra, z_open;
  double den = 1;

  Token(const Problem& p, const Positions& at, const Keys& keys, const Queries& queries, const Array& row,
        std::int64_t i, std::int64_t t, double diagonal)
      : num(zeros(p.E)), intra(zeros(p.E)), z_open(zeros(p.D)) {
    const double *q = &queries.q[t * p.D], *q_den = &queries.q_den[t * p.D];
    reference::add_vector_matrix(num.data(), q, p.D, row.data(), p.E);
    if (p.normalized()) den = p.eps + reference::dot(q_den, &row[p.D * p.E], p.D);
    if (!p.causal) return;
    for (std::int64_t u = at.begin[i]; u <= t; ++u) {
      reference::add_scaled(intra.data(), &keys.v[u * p.E], reference::dot(q, &keys.k[u * p.D], p.D), p.E);
      reference::add_scaled(z_open.data(), &keys.k_den[u * p.D], 1.0, p.D);
    }
    reference::add_scaled(num.data(), intra.data(), diagonal, p.E);
    if (p.normalized()) den += diagonal * reference::dot(q_den, z_open.data(), p.D);
  }
};

double diagonal_of(const Problem& p, std::int64_t head, std::int64_t i) {
  return p.causal ? reference::mix_at(p, head, i, i) : 0.0;
}

void output(const Problem& p, const Sequence& s, const Positions& at, std::int64_t kv_head) {
  const Keys keys(p, s, at, kv_head);
  for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
    const Queries queries(p, s, at, head);
    Array out = zeros(at.tokens() * p.E);
    for (std::int64_t i = 0; i < at.blocks(); ++i) {
      const Array row = mixed(p, s, head, p.part.first + i);
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        const Token token(p, at, keys, queries, row, i, t, diagonal_of(p, head, p.part.first + i));
        for (std::int64_t e = 0; e < p.E; ++e) out[t * p.E + e] = p.scale * token.num[e] / token.den;
      }
    }
    reference::scatter(p.out, s, at, head, out);
  }
}

void query_gradients(const Problem& p, const Sequence& s, const Positions& at, std::int64_t kv_head,
                     reference::MixGradient& mix_gradient, std::int64_t sequence) {
  const std::int64_t D = p.D, E = p.E, M = p.M;
  const Keys keys(p, s, at, kv_head);
  std::vector<Array> shared;  // dP of query heads that share it
  for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
    const Queries queries(p, s, at, head);
    const Array dout = reference::gather(p.dout, s, at, head);
    Array dq = zeros(at.tokens() * D), dq_den = zeros(at.tokens() * D);
    Array& dmix = mix_gradient.part(sequence, head);
    for (std::int64_t i = 0; i < at.blocks(); ++i) {
      const std::int64_t block = p.part.first + i;
      const Array row = mixed(p, s, head, block);
      const double diagonal = diagonal_of(p, head, block);
      Array dP = zeros(p.summary_size());
      double d_diagonal = 0;
      for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
        const Token token(p, at, keys, queries, row, i, t, diagonal);
        Array g = zeros(E);
        reference::add_scaled(g.data(), &dout[t * E], p.scale / token.den, E);
        const double dden = p.normalized() ? -reference::dot(g.data(), token.num.data(), E) / token.den : 0.0;
        reference::add_matrix_vector(&dq[t * D], row.data(), D, g.data(), E);
        reference::add_outer(dP.data(), &queries.q[t * D], D, g.data(), E);
        if (p.normalized()) {
          reference::add_scaled(&dq_den[t * D], &row[D * E], dden, D);
          reference::add_scaled(&dP[D * E], &queries.q_den[t * D], dden, D);
        }
        if (!p.causal) continue;
        for (std::int64_t u = at.begin[i]; u <= t; ++u)
          reference::add_scaled(&dq[t * D], &keys.k[u * D], diagonal * reference::dot(g.data(), &keys.v[u * E], E), D);
        d_diagonal += reference::dot(g.data(), token.intra.data(), E);
        if (!p.normalized()) continue;
        reference::add_scaled(&dq_den[t * D], token.z_open.data(), diagonal * dden, D);
        d_diagonal += dden * reference::dot(&queries.q_den[t * D], token.z_open.data(), D);
        const View& terms = p.part.own_terms;
        const std::int64_t place = ((s.batch * p.N + at.token[t]) * p.H + head) * 2;
        store_f64(terms.data, terms.dtype, place, p.scale / token.den);
        store_f64(terms.data, terms.dtype, place + 1, dden);
      }
      for (std::int64_t b = 0; b < M && !dmix.empty(); ++b) {
        if (!sees(p, block, b)) continue;
        const Array S = load_row(p, p.part.gathered, b, s.batch, kv_head);
        dmix[block * M + b] += reference::dot(dP.data(), S.data(), p.summary_size());
      }
      if (p.causal && !dmix.empty()) dmix[block * M + block] += d_diagonal;
      if (p.causal && block == 0) dP = zeros(p.summary_size());  // no prefix
      if (p.gradient_heads() == p.H) {
        store_row(p, p.part.own, i, s.batch, head, dP);
      } else if (head % p.group() == 0) {
        shared.push_back(dP);
      } else {
        reference::add_scaled(shared[static_cast<std::size_t>(i)].data(), dP.data(), 1.0, p.summary_size());
      }
    }
    reference::scatter_features(p, p.dq, p.maybe_dq_den, s, at, head, queries.raw, queries.den_raw, dq, dq_den);
  }
  for (std::size_t i = 0; i < shared.size(); ++i)
    store_row(p, p.part.own, static_cast<std::int64_t>(i), s.batch, kv_head, shared[i]);
}

// What the tokens of a chunk give each other (causal).
void chunk_keys(const Problem& p, const Sequence& s, const Positions& at, std::int64_t head, const Keys& keys,
                Array& dk, Array& dk_den, Array& dv) {
  const Queries queries(p, s, at, head);
  const Array dout = reference::gather(p.dout, s, at, head);
  for (std::int64_t i = 0; i < at.blocks(); ++i) {
    const double diagonal = diagonal_of(p, head, p.part.first + i);
    for (std::int64_t t = at.begin[i]; t < at.begin[i + 1]; ++t) {
      const std::int64_t place = ((s.batch * p.N + at.token[t]) * p.H + head) * 2;
      const ConstView& terms = p.part.terms;
      const double factor = p.normalized() ? load_f64(terms.data, terms.dtype, place) : p.scale;
      const double dden = p.normalized() ? load_f64(terms.data, terms.dtype, place + 1) : 0.0;
      Array g = zeros(p.E);
      reference::add_scaled(g.data(), &dout[t * p.E], factor, p.E);
      const double* q = &queries.q[t * p.D];
      for (std::int64_t u = at.begin[i]; u <= t; ++u) {
        const double a = reference::dot(q, &keys.k[u * p.D], p.D);
        const double da = reference::dot(g.data(), &keys.v[u * p.E], p.E);
        reference::add_scaled(&dk[u * p.D], q, diagonal * da, p.D);
        reference::add_scaled(&dv[u * p.E], g.data(), diagonal * a, p.E);
        if (p.normalized()) reference::add_scaled(&dk_den[u * p.D], &queries.q_den[t * p.D], diagonal * dden, p.D);
      }
    }
  }
}

void key_gradients(const Problem& p, const Sequence& s, const Positions& at, std::int64_t kv_head) {
  const std::int64_t D = p.D, E = p.E, heads = p.gradient_heads(), own = heads == p.H ? p.group() : 1;
  const Keys keys(p, s, at, kv_head);
  Array dk = zeros(at.tokens() * D), dk_den = zeros(at.tokens() * D), dv = zeros(at.tokens() * E);
  for (std::int64_t b = 0; b < at.blocks(); ++b) {
    Array dS = zeros(p.summary_size());
    for (std::int64_t j = 0; j < own; ++j) {
      const std::int64_t head = heads == p.H ? kv_head * p.group() + j : kv_head;
      for (std::int64_t i = 0; i < p.M; ++i) {
        if (!sees(p, i, p.part.first + b)) continue;
        reference::add_scaled(dS.data(), load_row(p, p.part.gathered, i, s.batch, head).data(),
                              reference::mix_at(p, head, i, p.part.first + b), p.summary_size());
      }
    }
    for (std::int64_t t = at.begin[b]; t < at.begin[b + 1]; ++t) {
      reference::add_matrix_vector(&dk[t * D], dS.data(), D, &keys.v[t * E], E);
      reference::add_vector_matrix(&dv[t * E], &keys.k[t * D], D, dS.data(), E);
      if (p.normalized()) reference::add_scaled(&dk_den[t * D], &dS[D * E], 1.0, D);
    }
  }
  for (std::int64_t head = kv_head * p.group(); p.causal && head < (kv_head + 1) * p.group(); ++head)
    chunk_keys(p, s, at, head, keys, dk, dk_den, dv);
  reference::scatter_features(p, p.dk, p.maybe_dk_den, s, at, kv_head, keys.raw, keys.den_raw, dk, dk_den);
  if (p.dv.given()) reference::scatter(p.dv, s, at, kv_head, dv);
}

}  // namespace

void phases_ref(const Problem& p, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;  // uses vectors of its own
  const Positions at(p.layout, p.part);
  reference::MixGradient mix_gradient(p);
  executor.run(static_cast<std::int64_t>(p.sequences.size()) * p.Hkv, [&](std::int64_t task, int) {
    const std::int64_t index = task / p.Hkv, head = task % p.Hkv;
    const Sequence& s = p.sequences[static_cast<std::size_t>(index)];
    switch (p.part.phase) {
      case Phase::kSummaries: return summaries(p, s, at, head);
      case Phase::kOutput: return output(p, s, at, head);
      case Phase::kQueries: return query_gradients(p, s, at, head, mix_gradient, index);
      default: return key_gradients(p, s, at, head);
    }
  });
  mix_gradient.store();
}

}  // namespace mhla
