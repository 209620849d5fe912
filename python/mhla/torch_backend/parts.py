"""Norm and rotary positions in plain torch, as the kernels compute them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..feature_maps import FUSED
from .autocast import autocast_dtype, without_autocast


def norm(x: Tensor, weight: Tensor, gate: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, with ``gate`` times silu(gate). Statistics in float32."""
    narrow = autocast_dtype(x.device)
    if narrow is not None and x.dtype != torch.float64:
        with without_autocast(x.device):
            return _norm(x, weight, gate, eps).to(narrow)
    return _norm(x, weight, gate, eps).to(x.dtype)


def _norm(x: Tensor, weight: Tensor, gate: Tensor | None, eps: float) -> Tensor:
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(wide.dtype)
    return out if gate is None else out * F.silu(gate.to(wide.dtype))


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, halves: bool, feature_map: str) -> tuple[Tensor, Tensor]:
    """The pairs of phi(q) and phi(k) ``[B, N, H, D]``, turned. cos and sin: ``[N, D / 2]`` or ``[B, N, D / 2]``. A pair is
    channels j and j + D / 2 (``halves``), or neighbours."""
    narrow = autocast_dtype(q.device)
    if narrow is not None and q.dtype != torch.float64:
        q, k = q.to(narrow), k.to(narrow)
    return _turned(q, cos, sin, halves, feature_map), _turned(k, cos, sin, halves, feature_map)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, halves: bool, feature_map: str) -> Tensor:
    wide = FUSED[feature_map](x.to(cos.dtype))
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if halves:
        a, b = wide.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)
    a, b = wide.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
