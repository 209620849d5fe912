"""The operator as plain torch code over token pairs: A[t, s] = mix[b(t), b(s)] * phi(q_t) . phi(k_s)."""

import torch

PHI = {
    "relu_eps": lambda x: x.relu() + 1e-6,
    "relu": torch.relu,
    "elu1": lambda x: torch.nn.functional.elu(x) + 1,
    "identity": lambda x: x,
}


def block_of(tokens, block_size=None, grid=None, blocks=None):
    """The block of every token."""
    if block_size is not None:
        return torch.arange(tokens) // block_size
    index = torch.zeros(1, dtype=torch.int64)
    for length, count in zip(grid, blocks):
        own = torch.arange(length) // -(-length // count)
        index = (index[:, None] * count + own[None, :]).reshape(-1)
    return index


def attention(q, k, v, mix, block, *, causal=False, feature_map="relu_eps", normalizer="paper", eps=1e-6, scale=1.0,
              q_den=None, k_den=None):  # fmt: skip
    group = q.shape[2] // k.shape[2]
    phi = PHI[feature_map]

    def pairs(a, b):
        dots = torch.einsum("bthd,bshd->bhts", phi(a), phi(b.repeat_interleave(group, 2)))
        weights = mix[..., block, :][..., block]
        dots = dots * (weights if mix.dim() == 3 else weights[None])
        return dots.tril() if causal else dots

    out = scale * torch.einsum("bhts,bshe->bthe", pairs(q, k), v.repeat_interleave(group, 2))
    if normalizer == "none":
        return out
    den = eps + pairs(q if q_den is None else q_den, k if k_den is None else k_den).sum(-1)
    return out / den.transpose(1, 2)[..., None]


def rope(x, cos, sin, halves, feature_map="identity"):
    """The pairs of phi(x) ``[B, N, H, D]``, turned; cos and sin ``[N, D / 2]`` or ``[B, N, D / 2]``."""
    x, cos, sin = PHI[feature_map](x), cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    first, second = a * cos - b * sin, a * sin + b * cos
    return torch.cat([first, second], -1) if halves else torch.stack([first, second], -1).flatten(-2)
