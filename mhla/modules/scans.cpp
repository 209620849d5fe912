#include "mhla/modules/scans.h"

namespace mhla {
namespace {

// Products stay in f32 where autocast would round them: states are sums over a whole sequence.
struct InFull {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

torch::Tensor wide(const torch::Tensor& x) { return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat); }

// Tokens of a chunk: a power of two, no more than hold all tokens.
std::int64_t chunk_for(std::int64_t N, std::int64_t most) {
  std::int64_t C = 1;
  while (C < N && C < most) C *= 2;
  return C;
}

// [B, N, H, ...] to [B, H, chunks, C, ...], zeros behind the last token: a zero key adds nothing, a zero logarithm
// forgets nothing.
torch::Tensor in_chunks(const torch::Tensor& x, std::int64_t C) {
  const std::int64_t N = x.size(1), chunks = (N + C - 1) / C;
  std::vector<std::int64_t> padding(static_cast<std::size_t>(2 * (x.dim() - 1)), 0);
  padding.back() = chunks * C - N;
  return torch::constant_pad_nd(wide(x), padding).unflatten(1, {chunks, C}).movedim(3, 1);
}

// [B, H, chunks, C, E] to [B, N, H, E].
torch::Tensor in_tokens(const torch::Tensor& x, std::int64_t N, torch::ScalarType dtype) {
  return x.flatten(2, 3).transpose(1, 2).narrow(1, 0, N).to(dtype);
}

torch::Tensor state_before(const torch::Tensor* state, const torch::Tensor& K, const torch::Tensor& V) {
  return state != nullptr ? *state : torch::zeros({K.size(0), K.size(1), K.size(-1), V.size(-1)}, K.options());
}

// Logarithms of [B, N, H, ...] with nothing remembered before a first token.
torch::Tensor with_starts(const torch::Tensor& log_decay, const torch::Tensor& first) {
  if (!first.defined()) return log_decay;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(log_decay.dim()), 1);
  shape[1] = first.size(0);
  return log_decay.masked_fill(first.view(shape), -std::numeric_limits<double>::infinity());
}

// Sums along `axis` of what comes after each place; 0 at the last.
torch::Tensor sum_after(const torch::Tensor& x, std::int64_t axis) {
  const std::int64_t size = x.size(axis);
  const torch::Tensor later = torch::cat({x.narrow(axis, 1, size - 1), torch::zeros_like(x.narrow(axis, 0, 1))}, axis);
  return later.flip(axis).cumsum(axis).flip(axis);
}

// exp(sum of logarithms after s up to t) for s <= t, 0 above the diagonal: [..., C, C] from [..., C]. Summed from s on,
// not as a difference of sums: a strong decay elsewhere costs no digits, and infinity stays what it is.
torch::Tensor decays_between(const torch::Tensor& log_decay) {
  const std::int64_t C = log_decay.size(-1);
  const torch::Tensor all = log_decay.unsqueeze(-1).expand({-1, -1, -1, -1, C});  // [t, s] is the logarithm of t
  const torch::Tensor ones = torch::ones({C, C}, log_decay.options().dtype(torch::kBool));
  return all.masked_fill(ones.triu(), 0.0)
      .cumsum(-2)
      .masked_fill(ones.triu(1), -std::numeric_limits<double>::infinity())
      .exp();
}

// What a chunk gives by itself plus what its queries read of the state, which every chunk multiplies by `keep` and adds
// its keys and values to.
torch::Tensor over_chunks(const torch::Tensor& from_inside, const torch::Tensor& Q_start, const torch::Tensor& K_end,
                          const torch::Tensor& keep, const torch::Tensor& V, torch::Tensor* state) {
  torch::Tensor S = state_before(state, K_end.transpose(-1, -2), V);
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < V.size(2); ++chunk) {
    out.push_back(from_inside.select(2, chunk) + torch::matmul(Q_start.select(2, chunk), S));
    S = keep.select(2, chunk) * S + torch::matmul(K_end.select(2, chunk), V.select(2, chunk));
  }
  if (state != nullptr) *state = S;
  return torch::stack(out, 2);
}

}  // namespace

// Inside a chunk by halves: the second half of every stretch of 2, 4, ..., C tokens reads its first half, both decays
// counted from the middle; a token reads itself undecayed.
torch::Tensor gated_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& log_decay, double scale, const torch::Tensor& first,
                         torch::Tensor* state) {
  const InFull in_full;
  const std::int64_t N = q.size(1), C = chunk_for(N, kGatedChunk);
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor g = in_chunks(with_starts(log_decay, first), C);  // [B, H, chunks, C, D]
  torch::Tensor from_inside = (Q * K).sum(-1, /*keepdim=*/true) * V;
  for (std::int64_t size = 2; size <= C; size *= 2) {
    const auto half = [&](const torch::Tensor& x, std::int64_t which) {  // [B, H, chunks, C / size, size / 2, ...]
      return x.unflatten(3, {C / size, 2, size / 2}).select(4, which);
    };
    const torch::Tensor since_middle = half(g, 1).cumsum(-2).exp(), to_middle = sum_after(half(g, 0), 4).exp();
    const torch::Tensor scores = torch::matmul(half(Q, 1) * since_middle, (half(K, 0) * to_middle).transpose(-1, -2));
    const torch::Tensor read = torch::matmul(scores, half(V, 0));
    from_inside = from_inside + torch::stack({torch::zeros_like(read), read}, 4).flatten(3, 5);
  }
  const torch::Tensor Q_start = Q * g.cumsum(-2).exp(), K_end = (K * sum_after(g, 3).exp()).transpose(-1, -2);
  const torch::Tensor keep = g.sum(-2).exp().unsqueeze(-1);  // [B, H, chunks, D, 1]
  return in_tokens(over_chunks(from_inside, Q_start, K_end, keep, V, state), N, v.scalar_type());
}

torch::Tensor decayed_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                           const torch::Tensor& log_decay, double scale, const torch::Tensor& first,
                           torch::Tensor* state) {
  const InFull in_full;
  const std::int64_t N = q.size(1), C = chunk_for(N, kDecayedChunk);
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor g = in_chunks(with_starts(log_decay, first), C);  // [B, H, chunks, C]
  const torch::Tensor from_inside = torch::matmul(torch::matmul(Q, K.transpose(-1, -2)) * decays_between(g), V);
  const torch::Tensor Q_start = Q * g.cumsum(-1).exp().unsqueeze(-1);
  const torch::Tensor K_end = (K * sum_after(g, 3).exp().unsqueeze(-1)).transpose(-1, -2);
  const torch::Tensor keep = g.sum(-1, /*keepdim=*/true).exp().unsqueeze(-1);  // [B, H, chunks, 1, 1]
  return in_tokens(over_chunks(from_inside, Q_start, K_end, keep, V, state), N, v.scalar_type());
}

// With u_t = b_t (v_t - a_t S_{t-1}^T k_t) the state is S_t = a_t S_{t-1} + k_t u_t^T, and inside a chunk u solves
//   (I + L) U = diag(b) (V - diag(g) K S_0),   L[t,s] = b_t (k_t . k_s) exp(c_t - c_s) below the diagonal, g = exp(c),
// c the running sum of the logarithms. The two right-hand sides are solved for all chunks at once.
torch::Tensor delta_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& beta, const torch::Tensor& log_decay, double scale,
                         const torch::Tensor& first, torch::Tensor* state) {
  const InFull in_full;
  const std::int64_t N = q.size(1), C = chunk_for(N, kDecayedChunk);
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor b = in_chunks(beta, C).unsqueeze(-1), logs = in_chunks(with_starts(log_decay, first), C);
  const torch::Tensor between = decays_between(logs), g = logs.cumsum(-1).exp().unsqueeze(-1);
  const torch::Tensor L = (b * torch::matmul(K, K.transpose(-1, -2)) * between).tril(-1);
  const torch::Tensor system = L + torch::eye(C, L.options());
  const torch::Tensor right = torch::cat({b * V, b * g * K}, -1);
  const torch::Tensor solved = torch::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true,
                                                              /*unitriangular=*/true);
  const torch::Tensor from_values = solved.narrow(-1, 0, V.size(-1)),
                      from_state = solved.narrow(-1, V.size(-1), K.size(-1));
  const torch::Tensor inside = torch::matmul(Q, K.transpose(-1, -2)) * between;
  const torch::Tensor Q_start = Q * g, K_end = (K * sum_after(logs, 3).exp().unsqueeze(-1)).transpose(-1, -2);
  const torch::Tensor keep = logs.sum(-1, /*keepdim=*/true).exp().unsqueeze(-1);
  torch::Tensor S = state_before(state, K, V);
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < Q.size(2); ++chunk) {
    const torch::Tensor U = from_values.select(2, chunk) - torch::matmul(from_state.select(2, chunk), S);
    out.push_back(torch::matmul(Q_start.select(2, chunk), S) + torch::matmul(inside.select(2, chunk), U));
    S = keep.select(2, chunk) * S + torch::matmul(K_end.select(2, chunk), U);
  }
  if (state != nullptr) *state = S;
  return in_tokens(torch::stack(out, 2), N, v.scalar_type());
}

// Inside a chunk pairs (decay, value) are combined over distances 1, 2, 4, 8: (a, h) after (a', h') is (a a', a h' +
// h).
torch::Tensor selective_scan(const torch::Tensor& x, const torch::Tensor& dt, const torch::Tensor& A,
                             const torch::Tensor& B, const torch::Tensor& C, const torch::Tensor& first,
                             torch::Tensor* state) {
  const InFull in_full;
  const std::int64_t N = x.size(1), size = chunk_for(N, kSelectiveChunk), chunks = (N + size - 1) / size;
  if (N == 0) return x;
  const auto cut = [&](const torch::Tensor& y) {  // [B, chunks, size, ...]
    return torch::constant_pad_nd(wide(y), {0, 0, 0, chunks * size - N}).unflatten(1, {chunks, size});
  };
  const torch::Tensor step = cut(dt).unsqueeze(-1);  // [B, chunks, size, channels, 1]
  torch::Tensor decay = (step * wide(A)).exp();      // [B, chunks, size, channels, states]
  if (first.defined()) {
    const torch::Tensor starts = torch::constant_pad_nd(first, {0, chunks * size - N}).view({1, chunks, size, 1, 1});
    decay = decay.masked_fill(starts, 0.0);
  }
  torch::Tensor h = step * cut(x).unsqueeze(-1) * cut(B).unsqueeze(-2);
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    const auto earlier = [&](const torch::Tensor& y, double before) {  // y shifted by `distance` tokens
      return torch::constant_pad_nd(y.narrow(2, 0, size - distance), {0, 0, 0, 0, distance, 0}, before);
    };
    h = decay * earlier(h, 0.0) + h;
    decay = decay * earlier(decay, 1.0);
  }
  torch::Tensor before = state != nullptr ? *state : torch::zeros_like(h.select(1, 0).select(1, 0));
  const torch::Tensor read = cut(C).unsqueeze(-2);  // [B, chunks, size, 1, states]
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const torch::Tensor all = decay.select(1, chunk) * before.unsqueeze(1) + h.select(1, chunk);
    out.push_back((all * read.select(1, chunk)).sum(-1));
    before = all.select(1, size - 1);
  }
  if (state != nullptr) *state = before.clone();
  return torch::cat(out, 1).narrow(1, 0, N).to(x.scalar_type());
}

}  // namespace mhla
