"""Angles of rotary positions, as the published models use them: 1D halves, 2D and 3D adjacent pairs. What turns by them
is ``torch.ops.mhla.rope``."""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor


def angles_1d(positions: Tensor, size: int, base: float = 10000.0) -> Tensor:
    """``[..., size / 2]`` float64: position times base**(-2 j / size); pair j is channels j and j + size / 2."""
    if size % 2:
        raise RuntimeError(f"rope: the head size is {size}, expected an even number in 1D")
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device=positions.device) / size)
    return positions.to(torch.float64)[..., None] * frequencies


def angles_2d(grid: Sequence[int], size: int, base: float = 10000.0) -> Tensor:
    """``[rows * columns, size / 2]``: the first half of the pairs turns with the row, the second with the column;
    frequencies 1 / base**linspace(0, 1, size / 4)."""
    if size % 4:
        raise RuntimeError(f"rope: the head size is {size}, expected a multiple of 4 in 2D")
    rows, columns = grid
    frequencies = base ** -torch.linspace(0, 1, size // 4, dtype=torch.float64)
    row, column = (torch.arange(n, dtype=torch.float64)[:, None] * frequencies for n in (rows, columns))
    return torch.cat([row[:, None].expand(rows, columns, -1), column[None].expand(rows, columns, -1)], -1).flatten(0, 1)


def angles_3d(grid: Sequence[int], size: int, base: float = 10000.0) -> Tensor:
    """``[frames * rows * columns, size / 2]``: pairs split between the axes, size - 4 * (size // 6) channels for the
    frame and 2 * (size // 6) for each of the others; frequencies base**(-2 j / width) in each part."""
    if size % 2:
        raise RuntimeError(f"rope: the head size is {size}, expected an even number in 3D")
    widths = (size - 4 * (size // 6), 2 * (size // 6), 2 * (size // 6))
    parts = []
    for axis, (tokens, width) in enumerate(zip(grid, widths)):
        turn = angles_1d(torch.arange(tokens), width, base) if width else torch.zeros(tokens, 0, dtype=torch.float64)
        shape = [1, 1, 1, turn.shape[-1]]
        shape[axis] = tokens
        parts.append(turn.view(shape).expand(*grid, -1))
    return torch.cat(parts, -1).flatten(0, 2)
