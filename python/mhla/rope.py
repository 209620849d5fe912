"""Angles of rotary positions, as the published models use them: 1D halves, 2D and 3D adjacent pairs. What turns by them
is ``torch.ops.mhla.rope``. :func:`table` keeps their cosines and sines from call to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Cosines and sines by device and dtype.
Tables = dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]]

is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


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


def packed_positions(tokens: int, cu_seqlens: Tensor, device: torch.device) -> Tensor:
    """``[tokens]``: the place of each token in its packed sequence."""
    bounds = cu_seqlens.to(device=device, dtype=torch.int64).contiguous()
    places = torch.arange(tokens, device=device)
    if bounds.dim() != 1 or bounds.shape[0] < 2:
        return places
    # Invalid bounds make places that are wrong, but inside: the operator says what is wrong with them.
    sequences = (torch.searchsorted(bounds, places, right=True) - 1).clamp(0, bounds.shape[0] - 2)
    return (places - bounds[sequences]).clamp(0, max(0, tokens - 1))


def table(
    tables: Tables,
    grid: Sequence[int] | None,
    size: int,
    base: float,
    positions: Tensor | None,
    count: int,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """cos and sin for x ``like`` this: of the grid, or of places in a sequence, all below ``count``. ``tables`` is where
    they are kept."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    key = like.device, dtype
    if grid is not None:
        if key in tables:  # the tables of a grid never change
            return tables[key]
        make = angles_2d if len(grid) == 2 else angles_3d
        return _kept(tables, key, lambda: make(grid, size, base).to(like.device))
    if is_compiling():  # what a graph made must not be kept
        places = torch.arange(count, device=like.device) if positions is None else positions
        angles = angles_1d(places, size, base)
        return angles.cos().to(dtype), angles.sin().to(dtype)
    if key not in tables or tables[key][0].shape[0] < count:
        room = max(64, 1 << (count - 1).bit_length())
        cos, sin = _kept(tables, key, lambda: angles_1d(torch.arange(room, device=like.device), size, base))
    else:
        cos, sin = tables[key]
    return (cos[:count], sin[:count]) if positions is None else (cos[positions], sin[positions])


def _kept(tables: Tables, key: Any, make: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles that ``make`` makes, for the next calls too: ordinary tensors, also in inference mode."""
    with torch.inference_mode(False):
        angles = make()
        made = angles.cos().to(key[1]), angles.sin().to(key[1])
    if type(made[0]) is Tensor:  # not what a tracer made
        tables[key] = made
    return made
