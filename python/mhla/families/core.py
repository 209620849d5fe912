"""What all replaced attention layers share: the grid of the input at hand, a mixing matrix, and the way back.

A hook on the convolution that makes the patches notes how many there are along each axis. Layers read it: another
resolution needs no argument. A matrix for other blocks is resampled from the one that learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import _backend, torch_backend
from .._blocks import ceil_div
from .._constrain import Constrained, Limits
from .._types import Backend
from ..functional import attend
from ..mixing import init_mix, resample_mix, with_extra
from ..torch_backend.checks import fills, nearest_count


class Grid:
    """The patches of the input at hand, per axis; None before the first forward."""

    def __init__(self, size: tuple[int, ...] | None) -> None:
        self.size = size


class NoteGrid:
    """A forward hook of the convolution that makes the patches: its output is ``[B, dim, *grid]``."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.grid.size = tuple(output.shape[2:])


class Settings(NamedTuple):
    """What :func:`mhla.replace_attention` was told."""

    blocks: tuple[int, ...] | None  # per axis
    block_size: tuple[int, ...] | None  # tokens of a block per axis; one number: the same for all axes, or the chunk
    feature_map: str
    normalizer: str
    eps: float
    mix: str | None
    max_tokens: int | None
    backend: Backend | None

    def blocks_of(self, grid: Sequence[int]) -> tuple[int, ...]:
        """Blocks per axis of such a grid."""
        if self.blocks is not None:
            if len(self.blocks) != len(grid):
                raise RuntimeError(f"replace_attention: blocks is {self.blocks}, expected {len(grid)} axes as {tuple(grid)} has")
            return tuple(n if fills(length, n) else nearest_count(length, n) for length, n in zip(grid, self.blocks))
        assert self.block_size is not None
        sizes = self.block_size * len(grid) if len(self.block_size) == 1 else self.block_size
        if len(sizes) != len(grid):
            raise RuntimeError(f"replace_attention: block_size is {sizes}, expected {len(grid)} axes as {tuple(grid)} has")
        return tuple(ceil_div(length, size) for length, size in zip(grid, sizes))


def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, halves: bool, backend: Backend | None) -> tuple[Tensor, Tensor]:
    """Features ``[B, N, H, D]``, turned; cos and sin ``[N, D / 2]`` or ``[B, N, D / 2]``."""
    if _backend.plain(backend):
        return torch_backend.rope(q, k, cos, sin, halves, "identity")
    return _backend.kernels().rope(q.contiguous(), k.contiguous(), cos.contiguous(), sin.contiguous(), halves, "identity")


class Replaced(nn.Module, Constrained):
    """A layer, or an attention processor, instead of another."""

    settings: Settings

    def keep(self, old: Any) -> None:
        """What :func:`mhla.restore_attention` puts back. In a tuple: its weights are not this module's."""
        self._old = (old,)

    @property
    def old(self) -> Any:
        return self._old[0]

    def limits(self) -> Limits:
        return Limits()


class GridAttention(Replaced):
    """Bidirectional attention over the grid of the input at hand. ``extra`` tokens come before it."""

    def __init__(self, grid: Grid, settings: Settings, extra: int, device: Any) -> None:
        super().__init__()
        self.grid, self.settings, self.extra = grid, settings, extra
        first = settings.blocks if grid.size is None else settings.blocks_of(grid.size)
        if first is None:
            raise RuntimeError("replace_attention: the model does not say its grid: expected blocks, or grid=... with block_size")
        self.blocks = first
        transform: Any = settings.mix or "linear"
        values = init_mix(first, transform)
        self.mix = nn.Parameter((with_extra(values) if extra else values).to(device))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, q_den: Tensor | None = None, k_den: Tensor | None = None) -> Tensor:
        """q, k, v ``[B, N, H, D]`` to ``[B, N, H, D]``. With q_den and k_den, features have been made already."""
        s, tokens, size = self.settings, q.shape[1] - self.extra, self.grid.size
        if size is None or math.prod(size) != tokens:
            raise RuntimeError(f"mhla: a replaced attention layer got {tokens} tokens, expected those of the grid {size}; "
                               "is a part of the model called by itself, or are tokens dropped?")  # fmt: skip
        blocks = s.blocks_of(size)
        mix: Tensor = self.mix
        if blocks != self.blocks:
            mix = resample_mix(mix, self.blocks, blocks, extra=bool(self.extra))
        mapped = q_den is not None
        return attend(
            q, k, v, mix.double() if q.dtype == torch.float64 else mix, block_size=None, grid=size, blocks=blocks,
            causal=False, normalizer=s.normalizer, feature_map="identity" if mapped else s.feature_map, eps=s.eps,
            q_den=None if s.normalizer == "none" else q_den, k_den=None if s.normalizer == "none" else k_den,
            extra_tokens=self.extra, backend=s.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"blocks={self.blocks}, extra_tokens={self.extra}, mix={tuple(self.mix.shape)}"
