"""Multi-head linear attention in plain torch, block by block:

    S_b = sum_{s in b} phi(k_s) v_s^T      z_b = sum_{s in b} phi(k_s)
    out_t = scale * phi(q_t)^T (sum_b mix[i,b] S_b) / (eps + phi(q_t) . sum_b mix[i,b] z_b),   i the block of t

16-bit inputs are computed in float32. Query heads that share a key head are a separate axis, G = H / Hkv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..feature_maps import FUSED
from . import checks
from .autocast import autocast_dtype, without_autocast


class Options(NamedTuple):
    """Arguments of :func:`attend` besides tensors."""

    block_size: int | None
    grid: Sequence[int] | None
    blocks: Sequence[int] | None
    causal: bool
    feature_map: str
    normalizer: str
    eps: float
    scale: float | None
    beyond_mix: str = "error"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    options: Options,
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """:func:`mhla.attention` in plain torch. In the causal form ``block_size`` is the chunk. Returns ``[B, N, H, E]``."""
    checks.check_tensors(q, k, v, mix, q_den, k_den, options.normalizer)
    checks.check_numbers(options.feature_map, options.normalizer, options.eps, options.scale, options.causal)
    narrow = autocast_dtype(q.device)
    if narrow is not None and q.dtype != torch.float64:
        with without_autocast(q.device):
            q, k, v, q_den, k_den = (x if x is None else x.to(narrow) for x in (q, k, v, q_den, k_den))  # type: ignore[assignment]
            return _sequences(q, k, v, mix, options, q_den, k_den, cu_seqlens)
    return _sequences(q, k, v, mix, options, q_den, k_den, cu_seqlens)


def _sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    options: Options,
    q_den: Tensor | None,
    k_den: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Packed sequences one after the other."""
    if cu_seqlens is None:
        return _one(q, k, v, mix, options, q_den, k_den)
    bounds = checks.check_bounds(cu_seqlens, q, options.grid)
    parts = [q.new_zeros(1, 0, q.shape[2], v.shape[3])]
    for begin, end in zip(bounds, bounds[1:]):
        if end > begin:
            cut = [None if x is None else x[:, begin:end] for x in (q, k, v, q_den, k_den)]
            parts.append(_one(cut[0], cut[1], cut[2], mix, options, cut[3], cut[4]))  # type: ignore[arg-type]
    return torch.cat(parts, 1)


def _one(
    q: Tensor, k: Tensor, v: Tensor, mix: Tensor, options: Options, q_den: Tensor | None, k_den: Tensor | None
) -> Tensor:
    layout = checks.check_layout(options.block_size, options.grid, options.blocks, q.shape[1], options.causal)
    if options.normalizer == "official" and not layout.equal:
        raise RuntimeError(f"mhla.attention: normalizer official needs blocks of equal size, got {q.shape[1]} tokens in blocks "
                           f"of {layout.room}")  # fmt: skip
    extend = options.causal and options.beyond_mix == "extend"
    mix = checks.check_mix(mix, layout, q.shape[2], extend, q)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    phi = FUSED[options.feature_map]
    group = q.shape[2] // k.shape[2]
    features = phi(q.to(wide)).unflatten(2, (k.shape[2], group)), phi(k.to(wide))
    den = features
    if q_den is not None and k_den is not None:
        den = phi(q_den.to(wide)).unflatten(2, (k.shape[2], group)), phi(k_den.to(wide))
    mix = _by_groups(mix.to(wide), k.shape[2], group)  # [1 or Hkv, 1 or G, M, M]
    read = _causal if options.causal else _bidirectional
    scale = options.scale
    if scale is None:
        scale = q.shape[3] ** -0.5 if options.causal and options.normalizer == "none" else 1.0
    blocks = [layout.split(x) for x in (*features, v.to(wide))]
    out = layout.join(read(blocks[0], blocks[1], blocks[2], mix)) * scale  # [B, N, Hkv, G, E]
    if options.normalizer != "none":
        queries, keys = (layout.split(x) for x in den)
        if options.normalizer == "official":
            total = _official(queries, keys, mix)
        else:
            total = read(queries, keys, keys.new_ones(()).expand(*keys.shape[:-1], 1), mix)
        out = out / (layout.join(total) + options.eps)
    return out.flatten(2, 3).to(q.dtype)


def _by_groups(mix: Tensor, kv_heads: int, group: int) -> Tensor:
    return mix[None, None] if mix.dim() == 2 else mix.unflatten(0, (kv_heads, group))


def _summaries(k: Tensor, v: Tensor) -> Tensor:
    """``[B, M, Hkv, D, E]``."""
    return torch.einsum("bmckd,bmcke->bmkde", k, v)


def _mixed(mix: Tensor, summaries: Tensor) -> Tensor:
    """``[B, M, Hkv or 1, G or 1, D, E]``."""
    if mix.shape[0] == 1 and mix.shape[1] == 1:
        return torch.einsum("ij,bjkde->bikde", mix[0, 0], summaries).unsqueeze(3)
    return torch.einsum("kgij,bjkde->bikgde", mix, summaries)


def _read(q: Tensor, mixed: Tensor) -> Tensor:
    """``[B, M, C, Hkv, G, E]``: the queries of a block, ``[B, M, C, Hkv, G, D]``, times its mixed summary."""
    if mixed.shape[3] == 1:
        return torch.einsum("bickgd,bikde->bickge", q, mixed.squeeze(3))
    return torch.einsum("bickgd,bikgde->bickge", q, mixed)


def _bidirectional(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    return _read(q, _mixed(mix, _summaries(k, v)))


def _causal(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    """Earlier chunks through their summaries, the own chunk token by token."""
    before = _read(q, _mixed(mix.tril(-1), _summaries(k, v)))
    pairs = torch.einsum("bickgd,biskd->bikgcs", q, k).tril()
    within = torch.einsum("bikgcs,biske->bickge", pairs, v)
    own = mix.diagonal(dim1=-2, dim2=-1).permute(2, 0, 1)[:, None, :, :, None]  # [M, 1, Hkv or 1, G or 1, 1]
    return before + own * within


def _official(q: Tensor, k: Tensor, mix: Tensor) -> Tensor:
    """The published denominator: that of a token holds the queries at the same place of every other block."""
    dots = torch.einsum("bmckgd,bmkd->bmckg", q, k.sum(2))
    if mix.shape[0] == 1 and mix.shape[1] == 1:
        return torch.einsum("ij,bjckg->bickg", mix[0, 0], dots).unsqueeze(-1)
    return torch.einsum("kgij,bjckg->bickg", mix, dots).unsqueeze(-1)
