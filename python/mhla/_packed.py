"""Images of different grids in one row, as packed sequences are, and queries and keys of different lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._blocks import ceil_div

Row = list["Tensor | None"]  # each [1, N, ...]


def over_grids(
    what: str, grids: Sequence[Sequence[int]], extra: int, row: Row, run: Callable[[tuple[int, ...], Row], Tensor]
) -> Tensor:
    """``run(grid, batch)`` for every grid that occurs, over all images that have it. Images lie one after the other along
    axis 1, each with its ``extra`` tokens first.

    Returns:
        the outputs ``[1, N, ...]`` in the order of the images.
    """
    x = row[0]
    assert x is not None
    if isinstance(grids, (int, str)) or not all(isinstance(grid, Sequence) for grid in grids):
        raise RuntimeError(f"{what}: grids is {grids!r}, expected one grid per image, such as [(16, 16), (8, 24)]")
    if x.shape[0] != 1:
        raise RuntimeError(f"{what}: B is {x.shape[0]}, expected 1 with grids")
    ends = [0]
    images: dict[tuple[int, ...], list[int]] = {}
    for i, grid in enumerate(map(tuple, grids)):
        images.setdefault(grid, []).append(i)
        ends.append(ends[-1] + extra + math.prod(grid))
    if ends[-1] != x.shape[1] or not images:
        raise RuntimeError(f"{what}: grids have {ends[-1]} tokens, expected N = {x.shape[1]}")
    outputs: list[Any] = [None] * len(grids)
    for grid, numbers in images.items():
        batch: Row = [None if x is None else torch.cat([x[:, ends[i] : ends[i + 1]] for i in numbers]) for x in row]
        for i, out in zip(numbers, run(grid, batch).split(1)):
            outputs[i] = out
    return torch.cat(outputs, 1)


def crossed(
    q: Tensor, k: Tensor, v: Tensor, mix: Tensor, block_size: int, q_den: Tensor | None, k_den: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """N queries and S keys as one sequence of the longer length, all of them features.

    Keys that are not there are zeros, which nobody sees. Queries that are not there are ones over rows of mix that are ones:
    their output is finite, and nobody reads it.
    """
    N, S = q.shape[1], k.shape[1]
    for name, x, length in (("v", v, S), ("q_den", q_den, N), ("k_den", k_den, S)):
        if x is not None and (x.dim() != 4 or x.shape[1] != length):
            raise RuntimeError(f"mhla.attention: {name} has shape {list(x.shape)}, expected {length} tokens as "
                               f"{'q' if name == 'q_den' else 'k'} has")  # fmt: skip
    rows, columns = ceil_div(N, block_size), ceil_div(S, block_size)
    if mix.dim() not in (2, 3) or mix.shape[-2] < rows or mix.shape[-1] < columns:
        heads = [q.shape[2]] if mix.dim() == 3 else []
        raise RuntimeError(f"mhla.attention: mix has shape {list(mix.shape)}, expected at least {[*heads, rows, columns]} "
                           f"(N = {N} queries, {S} keys)")  # fmt: skip
    count = max(rows, columns)
    mix = F.pad(mix[..., :rows, :columns], (0, count - columns))
    mix = F.pad(mix, (0, 0, 0, count - rows), value=1.0)

    def longer(x: Tensor | None, fill: float) -> Any:
        return None if x is None else F.pad(x, (0, 0, 0, 0, 0, max(N, S) - x.shape[1]), value=fill)

    return longer(q, 1.0), longer(k, 0.0), longer(v, 0.0), mix, longer(q_den, 1.0), longer(k_den, 0.0)
