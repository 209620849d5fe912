"""The mixing matrix: initial values, constraint, resampling to another block grid.

Plain torch in float64: no compiled library is needed, and :func:`resample_mix` can be differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from ._types import CausalInit, MixTransform

# Below this share of sum |row| the row's own sum is what cancellation left: dividing by it would amplify noise.
_CANCELLED = 1e-3


def _axes(entry: str, name: str, sizes: Any) -> tuple[int, ...]:
    """Blocks per axis, as a tuple."""
    if isinstance(sizes, str) or not isinstance(sizes, (Sequence, torch.Size)):
        raise RuntimeError(f"{entry}: {name} is {sizes!r}, expected blocks per axis, such as [4, 4]")
    if not 1 <= len(sizes) <= 3:
        raise RuntimeError(f"{entry}: {name} has {len(sizes)} axes, expected 1, 2 or 3")
    if any(size < 1 for size in sizes):
        raise RuntimeError(f"{entry}: {name} is {list(sizes)}, expected at least one block per axis")
    return tuple(int(size) for size in sizes)


def _one_of(entry: str, name: str, value: object, known: Any) -> None:
    if value not in get_args(known):
        raise RuntimeError(f"{entry}: {name} '{value}' is unknown, expected one of {', '.join(get_args(known))}")


def _positive(entry: str, exp_sigma: float) -> None:
    if not (exp_sigma > 0 and math.isfinite(exp_sigma)):
        raise RuntimeError(f"{entry}: exp_sigma is {exp_sigma}, expected a finite number above 0")


def init_mix(
    blocks: Sequence[int],
    transform: MixTransform = "linear",
    *,
    official: bool = False,
    exp_sigma: float = 3.0,
    local_threshold: float = 1.5,
) -> Tensor:
    """Initial values by distance between blocks.

    Args:
        blocks: blocks per axis, 1 to 3 axes; M is their product.
        transform: how the weight falls with the distance: ``linear``, ``cos``, ``exp``, ``gaussian``, ``local`` or ``uniform``.
        official: normalise columns, as in the published code (``gaussian`` is left as it is), instead of rows.
        exp_sigma: distance at which ``exp`` has fallen to 1/e.
        local_threshold: distance up to which ``local`` is 1.

    Returns:
        ``[M, M]`` float32. Rows sum to 1 unless ``official``.
    """
    sizes = _axes("init_mix", "blocks", blocks)
    _one_of("init_mix", "mix transform", transform, MixTransform)
    _positive("init_mix", exp_sigma)
    if not local_threshold >= 0:
        raise RuntimeError(f"init_mix: local_threshold is {local_threshold}, expected a number of at least 0")
    if math.prod(sizes) == 1:
        return torch.ones(1, 1, dtype=torch.float32, device="cpu")
    axes = [torch.arange(size, dtype=torch.float64, device="cpu") for size in sizes]
    places = torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], -1)  # [M, axes]
    distance = (places[:, None] - places[None]).square().sum(-1).sqrt()
    last = torch.tensor(sizes, dtype=torch.float64, device="cpu") - 1
    farthest = torch.maximum(places, last - places).square().sum(-1, keepdim=True).sqrt()  # from each block
    diagonal = farthest[0]
    if transform == "linear":
        mix = 1 - distance / (diagonal if official else farthest)
    elif transform == "cos":
        mix = torch.cos(math.pi / 4 * distance / diagonal)
    elif transform == "exp":
        mix = torch.exp(-distance / exp_sigma)
    elif transform == "gaussian":
        mix = torch.exp(-0.5 * (3 * distance / diagonal).square())
    elif transform == "local":
        mix = (distance <= local_threshold).double()
    else:
        mix = torch.ones_like(distance)
    if not official:
        mix = mix / mix.sum(1, keepdim=True)
    elif transform != "gaussian":
        mix = mix / mix.sum(0, keepdim=True)
    return mix.float()


def init_causal_mix(rows: int, init: CausalInit = "prefix", *, exp_sigma: float = 3.0) -> Tensor:
    """Initial values of the causal form.

    Args:
        rows: chunks L that the matrix serves.
        init: ``prefix`` (uniform over the chunks so far, the published language model), ``linear`` or ``exp``.
        exp_sigma: distance in chunks at which ``exp`` has fallen to 1/e.

    Returns:
        ``[L, L]`` float32, 0 above the diagonal, rows sum to 1.
    """
    if rows < 1:
        raise RuntimeError(f"init_causal_mix: rows is {rows}, expected at least 1")
    _one_of("init_causal_mix", "causal mix init", init, CausalInit)
    _positive("init_causal_mix", exp_sigma)
    b = torch.arange(rows, dtype=torch.float64, device="cpu")
    if init == "prefix":
        mix = torch.ones(rows, rows, dtype=torch.float64, device="cpu")
    elif init == "linear":
        mix = (b + 1).expand(rows, rows)
    else:
        mix = torch.exp(-(b[:, None] - b[None]).abs() / exp_sigma)
    mix = mix.tril()
    return (mix / mix.sum(1, keepdim=True)).float()


def _taps(source: Sequence[int], target: Sequence[int], like: Tensor) -> Tensor:
    """``[M of target, M of source]``: linear interpolation between block centres, beyond the outer ones the edge."""
    total = torch.ones(1, 1, dtype=torch.float64, device=like.device)
    for before, after in zip(source, target):
        centre = (torch.arange(after, dtype=torch.float64, device=like.device) + 0.5) * before / after - 0.5
        x = centre.clamp(0, before - 1)
        own = (1 - (x[:, None] - torch.arange(before, dtype=torch.float64, device=like.device)).abs()).clamp(min=0)
        total = torch.kron(total, own)
    return total


def with_extra(mix: Tensor) -> Tensor:
    """``[M + 1, M + 1]``: a block of extra tokens before those of ``mix``, which sees all alike and is seen by all."""
    rows = mix.shape[-1]
    out = torch.full((rows + 1, rows + 1), 1 / (rows + 1), dtype=mix.dtype, device=mix.device)
    out[1:, 1:] = mix * (rows / (rows + 1))
    return out


def resample_mix(
    mix: Tensor, source: Sequence[int], target: Sequence[int], *, causal: bool = False, extra: bool = False
) -> Tensor:
    """A trained matrix for another grid of blocks, interpolated between block centres. Row sums are kept.

    Args:
        mix: ``[M, M]`` or ``[H, M, M]``.
        source: blocks per axis of ``mix``; M is their product.
        target: blocks per axis of the result, as many axes.
        causal: only entries on and below the diagonal count; 1D.
        extra: the first row and column of ``mix`` belong to a block of extra tokens, which is not on the grid.

    Returns:
        ``[M', M']`` or ``[H, M', M']`` in the dtype of ``mix``, with its gradient.
    """
    before, after = _axes("resample_mix", "source", source), _axes("resample_mix", "target", target)
    if len(before) != len(after):
        before, after = ((1,) * (3 - len(sizes)) + sizes for sizes in (before, after))
    rows, wanted = math.prod(before), math.prod(after)
    if extra:
        inner = resample_mix(mix[..., 1:, 1:], before, after)
        taps = _taps(before, after, mix).to(mix.dtype)
        column = taps @ mix[..., 1:, :1]
        row = mix[..., :1, 1:] @ taps.T
        row = row * (mix[..., :1, 1:].sum(-1, keepdim=True) / row.sum(-1, keepdim=True).clamp(min=1e-12))
        return torch.cat([torch.cat([mix[..., :1, :1], row], -1), torch.cat([column, inner], -1)], -2)
    if mix.dim() not in (2, 3) or mix.shape[-1] != mix.shape[-2]:
        raise RuntimeError(f"resample_mix: mix has shape {list(mix.shape)}, expected [M, M] or [H, M, M]")
    if mix.shape[-1] != rows:
        raise RuntimeError(f"resample_mix: mix has {mix.shape[-1]} rows, expected {rows} (blocks {'x'.join(map(str, before))})")
    if causal and math.prod(before[:-1]) * math.prod(after[:-1]) != 1:
        raise RuntimeError("resample_mix: causal with blocks of several axes, expected a 1D grid")
    if before == after:
        return mix.clone()
    taps, wide = _taps(before, after, mix), mix.double()
    if causal:
        wide = wide.tril()
        seen = taps @ torch.ones(rows, rows, dtype=torch.float64, device=mix.device).tril() @ taps.T
        values = (taps @ wide @ taps.T / torch.where(seen > 0, seen, torch.ones_like(seen))).tril()
    else:
        values = taps @ wide @ taps.T
    sums = taps @ wide.sum(-1, keepdim=True)  # [..., M', 1]
    counts = torch.arange(1, wanted + 1, dtype=torch.float64, device=mix.device)[:, None] if causal else float(wanted)
    return _with_sums(values, sums, counts, rows / wanted, causal).to(mix.dtype)


def _with_sums(values: Tensor, target: Tensor, counts: Tensor | float, area: float, causal: bool) -> Tensor:
    """Rows brought to sum ``target``: by one factor, unless the row's own sum is lost in cancellation or of the other
    sign; then by the area and a share of |entry|. A row of zeros gets the sum evenly."""
    own, magnitude = values.sum(-1, keepdim=True), values.abs().sum(-1, keepdim=True)
    one = torch.ones_like(own)
    plain = (own.abs() > _CANCELLED * magnitude) & (target * own > 0)
    factor = target / torch.where(plain, own, one)
    missing = (target - area * own) / torch.where(magnitude > 0, magnitude, one)
    spread = area * values + missing * values.abs()
    even = (target / counts).expand_as(values)
    return torch.where(plain, values * factor, torch.where(magnitude > 0, spread, even.tril() if causal else even))


@torch.no_grad()
def constrain_mix_(
    mix: Tensor, lo: float = 0.0, hi: float = 1.0, *, renormalize_rows: bool = False, causal: bool = False
) -> Tensor:
    """Clips ``mix``, ``[M, M]`` or ``[H, M, M]``, in place after an optimiser step; with ``causal`` entries above the
    diagonal are held at 0.

    ``renormalize_rows`` scales every row to sum 1 afterwards. NaN and infinity stay as they are. Returns ``mix``.
    """
    if not lo <= hi:
        raise RuntimeError(f"constrain_mix: lo is {lo} and hi is {hi}, expected lo <= hi")
    if renormalize_rows and lo < 0:
        raise RuntimeError(f"constrain_mix: lo is {lo}, expected at least 0 with renormalize_rows")
    finite = torch.isfinite(mix)
    mix.copy_(torch.where(finite, mix.clamp(lo, hi), mix))
    if causal:
        mix.tril_()
    if renormalize_rows:
        sums = mix.sum(-1, keepdim=True)
        if bool((sums == 0).any()):
            raise RuntimeError("constrain_mix: a row sums to 0 and cannot be scaled to 1, expected a lo above 0")
        mix.div_(sums)
    return mix
