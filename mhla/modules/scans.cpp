#include "mhla/modules/scans.h"

namespace mhla {
namespace {

torch::Tensor wide(const torch::Tensor& x) { return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat); }

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

torch::Tensor zero_state(const torch::Tensor& k, const torch::Tensor& v) {
  return torch::zeros({k.size(0), k.size(1), k.size(-1), v.size(-1)}, k.options());
}

// exp(sum of logarithms after s up to t) for s <= t, 0 above the diagonal: [..., C, C] from their running sum [..., C].
torch::Tensor decays_between(const torch::Tensor& sum) {
  const torch::Tensor difference = sum.unsqueeze(-1) - sum.unsqueeze(-2);
  const torch::Tensor future = torch::ones_like(difference, torch::kBool).triu(1);
  return difference.masked_fill(future, -std::numeric_limits<double>::infinity()).exp();
}

// What a chunk gives by itself plus what its queries read of the state, which every chunk multiplies by `keep` and adds
// its keys and values to.
torch::Tensor over_chunks(const torch::Tensor& from_inside, const torch::Tensor& Q_start, const torch::Tensor& K_end,
                          const torch::Tensor& keep, const torch::Tensor& V) {
  torch::Tensor S = zero_state(K_end.select(2, 0).transpose(-1, -2), V);
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < V.size(2); ++chunk) {
    out.push_back(from_inside.select(2, chunk) + torch::matmul(Q_start.select(2, chunk), S));
    S = keep.select(2, chunk) * S + torch::matmul(K_end.select(2, chunk), V.select(2, chunk));
  }
  return torch::stack(out, 2);
}

}  // namespace

torch::Tensor gated_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& log_decay, double scale) {
  const std::int64_t N = q.size(1), C = kGatedChunk;
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor sum = in_chunks(log_decay, C).cumsum(-2);  // [B, H, chunks, C, D]
  const torch::Tensor middle = sum.narrow(-2, C / 2 - 1, 1), last = sum.narrow(-2, C - 1, 1);
  const torch::Tensor inside =
      torch::matmul(Q * (sum - middle).exp(), (K * (middle - sum).exp()).transpose(-1, -2)).tril();
  const torch::Tensor from_inside = torch::matmul(inside, V);
  const torch::Tensor Q_start = Q * sum.exp(), K_end = (K * (last - sum).exp()).transpose(-1, -2);
  const torch::Tensor keep = last.exp().transpose(-1, -2);  // [B, H, chunks, D, 1]
  return in_tokens(over_chunks(from_inside, Q_start, K_end, keep, V), N, v.scalar_type());
}

torch::Tensor decayed_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                           const torch::Tensor& log_decay, double scale) {
  const std::int64_t N = q.size(1), C = kDecayedChunk;
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor sum = in_chunks(log_decay, C).cumsum(-1);  // [B, H, chunks, C]
  const torch::Tensor from_inside = torch::matmul(torch::matmul(Q, K.transpose(-1, -2)) * decays_between(sum), V);
  const torch::Tensor last = sum.narrow(-1, C - 1, 1);
  const torch::Tensor Q_start = Q * sum.exp().unsqueeze(-1);
  const torch::Tensor K_end = (K * (last - sum).exp().unsqueeze(-1)).transpose(-1, -2);
  const torch::Tensor keep = last.exp().unsqueeze(-1);  // [B, H, chunks, 1, 1]
  return in_tokens(over_chunks(from_inside, Q_start, K_end, keep, V), N, v.scalar_type());
}

// With u_t = b_t (v_t - a_t S_{t-1}^T k_t) the state is S_t = a_t S_{t-1} + k_t u_t^T, and inside a chunk u solves
//   (I + L) U = diag(b) (V - diag(g) K S_0),   L[t,s] = b_t (k_t . k_s) exp(c_t - c_s) below the diagonal, g = exp(c),
// c the running sum of the logarithms. The two right-hand sides are solved for all chunks at once.
torch::Tensor delta_scan(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                         const torch::Tensor& beta, const torch::Tensor& log_decay, double scale) {
  const std::int64_t N = q.size(1), C = kDecayedChunk;
  if (N == 0) return v.new_empty({v.size(0), 0, v.size(2), v.size(3)});
  const torch::Tensor Q = in_chunks(q, C) * scale, K = in_chunks(k, C), V = in_chunks(v, C);
  const torch::Tensor b = in_chunks(beta, C).unsqueeze(-1), sum = in_chunks(log_decay, C).cumsum(-1);
  const torch::Tensor between = decays_between(sum), g = sum.exp().unsqueeze(-1);
  const torch::Tensor L = (b * torch::matmul(K, K.transpose(-1, -2)) * between).tril(-1);
  const torch::Tensor system = L + torch::eye(C, L.options());
  const torch::Tensor right = torch::cat({b * V, b * g * K}, -1);
  const torch::Tensor solved = torch::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true,
                                                              /*unitriangular=*/true);
  const torch::Tensor from_values = solved.narrow(-1, 0, V.size(-1)),
                      from_state = solved.narrow(-1, V.size(-1), K.size(-1));
  const torch::Tensor inside = torch::matmul(Q, K.transpose(-1, -2)) * between;
  const torch::Tensor last = sum.narrow(-1, C - 1, 1);
  const torch::Tensor Q_start = Q * g, K_end = (K * (last - sum).exp().unsqueeze(-1)).transpose(-1, -2);
  const torch::Tensor keep = last.exp().unsqueeze(-1);
  torch::Tensor S = zero_state(K, V);
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < Q.size(2); ++chunk) {
    const torch::Tensor U = from_values.select(2, chunk) - torch::matmul(from_state.select(2, chunk), S);
    out.push_back(torch::matmul(Q_start.select(2, chunk), S) + torch::matmul(inside.select(2, chunk), U));
    S = keep.select(2, chunk) * S + torch::matmul(K_end.select(2, chunk), U);
  }
  return in_tokens(torch::stack(out, 2), N, v.scalar_type());
}

// Inside a chunk pairs (decay, value) are combined over distances 1, 2, 4, 8: (a, h) after (a', h') is (a a', a h' +
// h).
torch::Tensor selective_scan(const torch::Tensor& x, const torch::Tensor& dt, const torch::Tensor& A,
                             const torch::Tensor& B, const torch::Tensor& C) {
  const std::int64_t N = x.size(1), size = kSelectiveChunk, chunks = (N + size - 1) / size;
  if (N == 0) return x;
  const auto cut = [&](const torch::Tensor& y) {  // [B, chunks, size, ...]
    return torch::constant_pad_nd(wide(y), {0, 0, 0, chunks * size - N}).unflatten(1, {chunks, size});
  };
  const torch::Tensor step = cut(dt).unsqueeze(-1);  // [B, chunks, size, channels, 1]
  torch::Tensor decay = (step * wide(A)).exp();      // [B, chunks, size, channels, states]
  torch::Tensor h = step * cut(x).unsqueeze(-1) * cut(B).unsqueeze(-2);
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    const auto earlier = [&](const torch::Tensor& y, double before) {  // y shifted by `distance` tokens
      return torch::constant_pad_nd(y.narrow(2, 0, size - distance), {0, 0, 0, 0, distance, 0}, before);
    };
    h = decay * earlier(h, 0.0) + h;
    decay = decay * earlier(decay, 1.0);
  }
  torch::Tensor state = torch::zeros_like(h.select(1, 0).select(1, 0));  // [B, channels, states]
  const torch::Tensor read = cut(C).unsqueeze(-2);                       // [B, chunks, size, 1, states]
  std::vector<torch::Tensor> out;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const torch::Tensor all = decay.select(1, chunk) * state.unsqueeze(1) + h.select(1, chunk);
    out.push_back((all * read.select(1, chunk)).sum(-1));
    state = all.select(1, size - 1);
  }
  return torch::cat(out, 1).narrow(1, 0, N).to(x.scalar_type());
}

}  // namespace mhla
