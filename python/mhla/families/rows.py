"""A few queries against all keys, token by token: what the causal operator is where keys come from a cache, or with padding.

    out_t = scale * sum_s mix[c(t), c(s)] (q_t . k_s) v_s / (eps + sum_s mix[c(t), c(s)] (q_t . k_s)),   c the chunk of a token
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(mask: Tensor | None, queries: int, keys: int, like: Tensor) -> Tensor:
    """``[B, T, S]`` bool, of what transformers passes: nothing, ``[B, S]``, or ``[B, 1, T, S]`` of bools or of 0 and -inf."""
    if mask is not None and mask.dim() == 4:
        mask = mask[:, 0, :, :keys]
        return mask if mask.dtype == torch.bool else mask > -1
    causal = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril(keys - queries)
    seen = causal.expand(like.shape[0], -1, -1)
    return seen if mask is None else seen & mask[:, None, :keys].bool()


def weigh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    chunk: int,
    seen: Tensor,
    *,
    scale: float,
    eps: float,
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
) -> Tensor:
    """T queries and S keys, both as features. Padding does not count for positions, so a padded sequence is cut into the
    chunks that it has alone. Chunks beyond mix reuse its last row by distance.

    Args:
        q: ``[B, T, H, D]``; k ``[B, S, Hkv, D]``; v ``[B, S, Hkv, E]``.
        mix: ``[L, L]`` or ``[H, L, L]``.
        seen: ``[B, T, S]``: what each query may look at; what the last one sees is no padding.
        q_den: with ``k_den`` the features of the denominator; None: there is none.

    Returns:
        ``[B, T, H, E]`` in the dtype of v.
    """
    group, wide = q.shape[2] // k.shape[2], torch.promote_types(q.dtype, torch.float32)
    places = (seen[:, -1].long().cumsum(-1) - 1).clamp(min=0)  # [B, S]
    own = seen.long().sum(-1).clamp(min=1) - 1  # [B, T]
    i, b = (own // chunk)[:, :, None], (places // chunk)[:, None]
    last = mix.shape[-1] - 1
    column = torch.where(i <= last, b, last - (i - b)).clamp(0, last)
    chosen = mix[..., i.clamp(max=last), column].to(wide)  # [B, T, S] or [H, B, T, S]
    weights = (chosen.transpose(0, 1) if mix.dim() == 3 else chosen[:, None]) * seen[:, None]

    def pairs(a: Tensor, c: Tensor) -> Tensor:
        return torch.einsum("bthd,bshd->bhts", a.to(wide), c.to(wide).repeat_interleave(group, 2)) * weights

    out = torch.einsum("bhts,bshe->bthe", pairs(q, k), v.to(wide).repeat_interleave(group, 2)) * scale
    if q_den is not None and k_den is not None:
        out = out / (pairs(q_den, k_den).sum(-1).transpose(1, 2).unsqueeze(-1) + eps)
    return out.to(v.dtype)
