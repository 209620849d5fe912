"""What the pure-torch operator refuses, in the words of the kernels: the argument, what came and what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._blocks import Blocks, ceil_div
from ..feature_maps import FUSED

_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
          torch.int32: "i32"}  # fmt: skip


def fail(text: str) -> None:
    """The caller's mistake."""
    raise RuntimeError(f"mhla.attention: {text}")


def name_of(dtype: torch.dtype) -> str:
    """As the kernels write it: f32."""
    return _NAMES.get(dtype, str(dtype))


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, mix: Tensor, q_den: Tensor | None, k_den: Tensor | None, normalizer: str
) -> None:
    """Shapes, dtypes and devices."""
    for name, x, letters in (("q", q, "H, D"), ("v", v, "Hkv, E"), ("k", k, "Hkv, D")):
        if x.dim() != 4:
            fail(f"{name} has shape {list(x.shape)}, expected [B, N, {letters}]")
    if q.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        fail(f"q has dtype {name_of(q.dtype)}, expected f32, bf16, f16 or f64")
    (B, N, H, D), Hkv, E = q.shape, k.shape[2], v.shape[3]
    for letter, size in (("H", H), ("Hkv", Hkv), ("D", D), ("E", E)):
        if size < 1:
            fail(f"{letter} is {size}, expected at least 1")
    if H % Hkv:
        fail(f"k has {Hkv} heads, expected a divisor of H = {H}")
    if (q_den is None) != (k_den is None):
        fail(f"only {'k_den' if q_den is None else 'q_den'} is given, expected q_den and k_den together")
    if q_den is not None and normalizer == "none":
        fail("q_den and k_den are given with normalizer none, expected paper or official")
    keys = (B, N, Hkv, D)
    shapes = (("k", k, keys), ("v", v, (B, N, Hkv, E)), ("q_den", q_den, (B, N, H, D)), ("k_den", k_den, keys))
    for name, maybe, shape in shapes:
        if maybe is None:
            continue
        if tuple(maybe.shape) != shape:
            fail(f"{name} has shape {list(maybe.shape)}, expected {list(shape)}")
        if maybe.dtype != q.dtype:
            fail(f"{name} has dtype {name_of(maybe.dtype)}, expected {name_of(q.dtype)}")
    for name, maybe in (("k", k), ("v", v), ("mix", mix), ("q_den", q_den), ("k_den", k_den)):
        if maybe is not None and maybe.device != q.device:
            fail(f"{name} is on {maybe.device}, expected {q.device} like q")


def check_numbers(feature_map: str, normalizer: str, eps: float, scale: float | None, causal: bool) -> None:
    """Options that are not tensors."""
    if feature_map not in FUSED:
        fail(f"feature_map is '{feature_map}', expected one of {', '.join(FUSED)}")
    if normalizer not in ("paper", "none", "official"):
        fail(f"normalizer is '{normalizer}', expected one of paper, none, official")
    if causal and normalizer == "official":
        fail("normalizer is official, expected none or paper in the causal form")
    for name, value in (("eps", eps), ("scale", scale)):
        if value is not None and not math.isfinite(value):
            fail(f"{name} is {value}, expected a finite number")


def check_layout(
    block_size: int | None, grid: Sequence[int] | None, blocks: Sequence[int] | None, tokens: int, causal: bool
) -> Blocks:
    """The blocks of so many tokens."""
    if grid is None and blocks is None:
        if block_size is None:
            fail("no layout is given, expected block_size, or grid and blocks")
        if block_size < 1:  # type: ignore[operator]
            fail(f"{'chunk' if causal else 'layout block_size'} is {block_size}, expected at least 1")
        return Blocks.line(tokens, block_size)  # type: ignore[arg-type]
    if block_size is not None:
        fail(f"block_size is {block_size} beside grid and blocks, expected one of them")
    grid, blocks = tuple(grid or ()), tuple(blocks or ())
    if len(grid) != len(blocks) or len(grid) not in (2, 3):
        fail(f"grid has {len(grid)} axes and blocks has {len(blocks)}, expected 2 or 3 of each")
    total = math.prod(grid)
    if total != tokens:
        fail(f"layout grid {'x'.join(map(str, grid))} has {total} tokens, expected N = {tokens}")
    for axis, (length, count) in enumerate(zip(grid, blocks)):
        if count < 1:
            fail(f"layout blocks {'x'.join(map(str, blocks))} has a count below 1")
        if length and not fills(length, count):
            fail(f"layout axis {axis} cuts {length} tokens into {count} blocks, which leaves a block empty; "
                 f"the nearest count that works is {nearest_count(length, count)}")  # fmt: skip
    return Blocks.raster(grid, blocks)


def fills(length: int, count: int) -> bool:
    """Whether so many blocks of an axis leave none empty."""
    return count <= length and ceil_div(length, ceil_div(length, count)) == count


def nearest_count(length: int, count: int) -> int:
    """The count nearest to this one that leaves no block empty."""
    step = ceil_div(length, min(count, length))
    below = ceil_div(length, step)
    if step == 1:
        return below
    above = ceil_div(length, step - 1)
    return below if count - below <= above - count else above


def check_mix(mix: Tensor, layout: Blocks, heads: int, extend: bool, q: Tensor) -> Tensor:
    """The ``[M, M]`` or ``[H, M, M]`` part that so many blocks use; with ``extend`` the last row goes on by distance."""
    count, line = layout.number, len(layout.grid) == 1
    shape = list(mix.shape)
    if mix.dim() not in (2, 3):
        fail(f"mix has shape {shape}, expected [M, M] or [H, M, M]")
    rows = mix.shape[-1]
    large = (rows >= count or (extend and rows >= 1)) if line else rows == count
    if mix.shape[-2] != rows or not large or (mix.dim() == 3 and mix.shape[0] != heads):
        least = 1 if extend else count
        expected = [*([heads] if mix.dim() == 3 else []), least, least]
        fail(f"mix has shape {shape}, expected {'at least ' if line else ''}{expected} (N = {layout.tokens})")
    want = torch.float64 if q.dtype == torch.float64 else torch.float32
    if mix.dtype not in (want, torch.float16, torch.bfloat16):
        fail(f"mix has dtype {name_of(mix.dtype)}, expected {name_of(want)}")
    if count <= rows:
        return mix[..., :count, :count]
    row, column = extended_index(count, rows, mix.device)
    return mix[..., row, column]


def extended_index(count: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of mix for ``count`` chunks: row i beyond the last reuses it by the distance i - b."""
    i, b = torch.arange(count, device=device)[:, None], torch.arange(count, device=device)[None]
    column = torch.where(i < rows, b, (rows - 1 - (i - b)).clamp(min=0)).clamp(max=rows - 1)
    return i.clamp(max=rows - 1).expand(count, count), column


def check_bounds(cu_seqlens: Tensor, q: Tensor, grid: Sequence[int] | None) -> list[int]:
    """The bounds of packed sequences as numbers."""
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        fail(f"cu_seqlens has dtype {name_of(cu_seqlens.dtype)}, expected i32 or i64")
    if cu_seqlens.device.type == "meta" and q.device.type != "meta":
        fail("cu_seqlens is on meta, expected host memory")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        fail(f"cu_seqlens has shape {list(cu_seqlens.shape)}, expected [S + 1] with S >= 0")
    if q.shape[0] != 1:
        fail(f"B is {q.shape[0]}, expected 1 with cu_seqlens")
    if grid is not None:
        fail(f"cu_seqlens with a {len(grid)}D layout, expected a 1D layout")
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0:
        fail(f"cu_seqlens starts at {bounds[0]}, expected 0")
    for index, (begin, end) in enumerate(zip(bounds, bounds[1:])):
        if end < begin:
            fail(f"cu_seqlens decreases from {begin} to {end} at index {index + 1}")
    if bounds[-1] != q.shape[1]:
        fail(f"cu_seqlens ends at {bounds[-1]}, expected N = {q.shape[1]}")
    return bounds
