"""The mixing matrix: initial values, constraint, resampling to another block grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def init_mix(
    blocks: Sequence[int],
    transform: str = "linear",
    *,
    official: bool = False,
    exp_sigma: float = 3.0,
    local_threshold: float = 1.5,
) -> Tensor:
    """Initial values by distance between blocks: ``[M, M]`` float32, M the product of ``blocks`` (1 to 3 axes).

    ``transform`` is ``linear``, ``cos``, ``exp``, ``gaussian``, ``local`` or ``uniform``. Rows sum to 1; with ``official``
    columns do, as in the published code, but for ``gaussian``, which it leaves as it is.
    """
    return torch.ops.mhla.init_mix(list(blocks), transform, official, exp_sigma, local_threshold)


def init_causal_mix(rows: int, init: str = "prefix", *, exp_sigma: float = 3.0) -> Tensor:
    """Initial values of the causal form: ``[rows, rows]`` float32, 0 above the diagonal, rows sum to 1.

    ``init`` is ``prefix`` (uniform over the chunks so far, the published language model), ``linear`` or ``exp``.
    """
    return torch.ops.mhla.init_causal_mix(rows, init, exp_sigma)


def resample_mix(mix: Tensor, source: Sequence[int], target: Sequence[int], *, causal: bool = False) -> Tensor:
    """A trained ``[M, M]`` or ``[H, M, M]`` matrix for another grid of blocks, interpolated between block centres."""
    return torch.ops.mhla.resample_mix(mix, list(source), list(target), causal)


@torch.no_grad()
def constrain_mix_(
    mix: Tensor, lo: float = 0.0, hi: float = 1.0, *, renormalize_rows: bool = False, causal: bool = False
) -> Tensor:
    """Clips ``mix`` in place after an optimiser step; with ``causal`` entries above the diagonal are held at 0.

    ``renormalize_rows`` scales every row to sum 1 afterwards. NaN and infinity stay as they are.
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
