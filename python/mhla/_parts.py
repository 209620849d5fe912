"""What :class:`mhla.nn.MHLA` is made of besides torch's own modules. Public as ``mhla.nn.RMSNorm`` and
``mhla.nn.ShortConv``."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _backend, torch_backend
from ._types import Backend


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, statistics in float32. eps None: that of the dtype.
    Under autocast the result has its 16-bit dtype."""

    def __init__(
        self, size: int, eps: float | None = None, backend: Backend | None = None, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.eps, self.backend = eps, backend
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """x ``[..., size]``; with ``gate``, as large, times silu(gate)."""
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        if _backend.plain(self.backend):
            return torch_backend.norm(x, self.weight, gate, eps)
        return _backend.kernels().norm(x, self.weight, None, gate, eps)


class ShortConv(nn.Module):
    """SiLU of a causal depth-wise convolution along the tokens, weight ``[C, 1, taps]``."""

    def __init__(self, channels: int, taps: int = 4, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps, device=device, dtype=dtype))
        nn.init.uniform_(self.weight, -1 / math.sqrt(taps), 1 / math.sqrt(taps))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x ``[B, N, C]``. ``positions`` ``[N]``: places of the tokens in packed sequences, none of which reads another."""
        channels, _, taps = self.weight.shape
        if x.shape[1] == 0:  # which conv1d refuses
            return x
        if positions is None:
            padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
            return F.silu(F.conv1d(padded, self.weight, groups=channels)).transpose(1, 2)
        padded, total = F.pad(x, (0, 0, taps - 1, 0)), torch.zeros_like(x)
        for j in range(taps):
            before = (positions < taps - 1 - j).unsqueeze(-1)
            total = total + padded[:, j : j + x.shape[1]].masked_fill(before, 0.0) * self.weight[:, 0, j]
        return F.silu(total)
