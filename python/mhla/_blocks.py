"""Tokens put into blocks of equal room: ``[B, N, ...]`` to ``[B, M, C, ...]`` and back, by padding and views alone.

Blocks are boxes of a grid of one to three axes; the last of an axis may be smaller and is filled up with zeros. Tokens
that are not on the grid (``extra``: class token, registers) come first, and have block 0 for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


class Blocks(NamedTuple):
    """How N tokens fall into M blocks."""

    grid: tuple[int, ...]  # tokens per axis
    blocks: tuple[int, ...]  # blocks per axis
    step: tuple[int, ...]  # tokens of a block per axis
    extra: int = 0  # tokens before the grid

    @classmethod
    def line(cls, tokens: int, block_size: int, extra: int = 0) -> Blocks:
        """Blocks of consecutive tokens; ``tokens`` are those after the extra ones."""
        return cls((tokens,), (ceil_div(tokens, block_size),), (block_size,), extra)

    @classmethod
    def raster(cls, grid: Sequence[int], blocks: Sequence[int], extra: int = 0) -> Blocks:
        """Boxes of a 2D or 3D grid."""
        step = tuple(max(1, ceil_div(length, count)) for length, count in zip(grid, blocks))
        return cls(tuple(grid), tuple(blocks), step, extra)

    @property
    def tokens(self) -> int:
        """N."""
        return self.extra + _product(self.grid)

    @property
    def number(self) -> int:
        """M, with the block of the extra tokens."""
        return _product(self.blocks) + (1 if self.extra else 0)

    @property
    def room(self) -> int:
        """C: places of every block."""
        return max(_product(self.step), self.extra)

    @property
    def equal(self) -> bool:
        """Whether no block has places left over."""
        return self.number * self.room == self.tokens

    def split(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """x ``[B, N, ...]`` to ``[B, M, C, ...]``; places left over are ``fill``."""
        rest = x[:, self.extra :] if self.extra else x
        tail = tuple(x.shape[2:])
        rest = rest.reshape(x.shape[0], *self.grid, *tail)
        short = [count * step - length for length, count, step in zip(self.grid, self.blocks, self.step)]
        if any(short):
            rest = F.pad(rest, [0, 0] * len(tail) + [n for s in reversed(short) for n in (0, s)], value=fill)
        cut = [size for pair in zip(self.blocks, self.step) for size in pair]
        axes = len(self.grid)
        order = [1 + 2 * axis for axis in range(axes)] + [2 + 2 * axis for axis in range(axes)]
        rest = rest.reshape(x.shape[0], *cut, *tail)
        rest = rest.permute(0, *order, *range(1 + 2 * axes, rest.dim()))
        rest = rest.reshape(x.shape[0], _product(self.blocks), _product(self.step), *tail)
        if not self.extra:
            return rest
        rest, own = (
            F.pad(part, [0, 0] * len(tail) + [0, self.room - part.shape[-1 - len(tail)]], value=fill)
            for part in (rest, x[:, : self.extra])
        )
        return torch.cat([own.unsqueeze(1), rest], 1)

    def join(self, x: Tensor) -> Tensor:
        """x ``[B, M, C, ...]`` back to ``[B, N, ...]``."""
        tail = tuple(x.shape[3:])
        rest = x[:, 1:] if self.extra else x
        axes = len(self.grid)
        rest = rest[:, :, : _product(self.step)].reshape(x.shape[0], *self.blocks, *self.step, *tail)
        order = [axis for pair in zip(range(1, 1 + axes), range(1 + axes, 1 + 2 * axes)) for axis in pair]
        rest = rest.permute(0, *order, *range(1 + 2 * axes, rest.dim()))
        rest = rest.reshape(x.shape[0], *(count * step for count, step in zip(self.blocks, self.step)), *tail)
        for axis, length in enumerate(self.grid):
            if length != self.blocks[axis] * self.step[axis]:
                rest = rest.narrow(1 + axis, 0, length)
        rest = rest.reshape(x.shape[0], _product(self.grid), *tail)
        return torch.cat([x[:, 0, : self.extra], rest], 1) if self.extra else rest


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total = total * size
    return total
