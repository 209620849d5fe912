"""The operator as a function of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The operators themselves: through torch.ops.mhla every call would look for the overload again.
_bidirectional, _chunkwise = torch.ops.mhla.bidirectional.default, torch.ops.mhla.chunkwise.default


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    *,
    block_size: int | None = None,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    causal: bool = False,
    chunk: int | None = None,
    normalizer: str | None = None,
    feature_map: str = "relu_eps",
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    eps: float = 1e-6,
    scale: float | None = None,
    beyond_mix: str = "error",
) -> Tensor:
    """Multi-head linear attention: every block of queries weighs the summaries of all blocks of keys.

    The layout is one of

    - ``block_size``: blocks of consecutive tokens, M = ceil(N / block_size);
    - ``grid`` and ``blocks``: tokens and blocks per axis of a 2D or 3D raster, M the product of ``blocks``;
    - ``causal=True`` and ``chunk`` (64): no token sees a later one.

    Args:
        q: ``[B, N, H, D]``, before the feature map. Tokens in raster order; the last axis must be dense, other strides
            are free, so slices of a fused projection are not copied.
        k: ``[B, N, Hkv, D]``, Hkv divides H: query head h reads head h // (H // Hkv).
        v: ``[B, N, Hkv, E]``.
        mix: ``[M, M]`` or ``[H, M, M]``, float32 (float64 for float64; 16-bit floats are widened). Row i: how query block i
            weighs every key block. In 1D and causal layouts it may be larger: its leading part is used.
        normalizer: ``"paper"`` (default), ``"none"`` (default of the causal form) or ``"official"``, the published code's,
            for blocks of equal size.
        feature_map: a key of ``mhla.feature_maps.FUSED``, applied to q, k, q_den and k_den.
        q_den: like q, with ``k_den`` like k: features for the normaliser alone, where the numerator's are rotated.
        cu_seqlens: ``[S + 1]`` int32 or int64: B = 1 holds S packed sequences that do not see each other. On the CPU
            also for CUDA tensors, or at the price of waiting for the device.
        eps: added to the denominator.
        scale: of the numerator. 1, but D**-0.5 for the causal form without a normaliser.
        beyond_mix: what happens in the causal form to chunks beyond the rows of mix: ``"error"`` or ``"extend"``.

    Returns:
        ``[B, N, H, E]`` in the dtype of q.

    Raises:
        RuntimeError: with the argument, what came and what was expected.
    """
    if causal:
        if block_size is not None or grid is not None or blocks is not None:
            raise RuntimeError("mhla.attention: causal=True with block_size, grid or blocks, expected chunk")
        return _chunkwise(
            q, k, v, mix, 64 if chunk is None else chunk, q_den, k_den, cu_seqlens, feature_map, normalizer or "none",
            eps, scale, beyond_mix,
        )  # fmt: skip
    if chunk is not None or beyond_mix != "error":
        raise RuntimeError(
            "mhla.attention: chunk and beyond_mix belong to causal=True, expected block_size, or grid and blocks"
        )
    return _bidirectional(
        q, k, v, mix, block_size or 0, grid or (), blocks or (), q_den, k_den, cu_seqlens, feature_map,
        normalizer or "paper", eps, 1.0 if scale is None else scale,
    )  # fmt: skip


def set_num_threads(threads: int) -> None:
    """Threads of the kernels, of torch and of OpenBLAS: at most as many as there are cores, 0 for all of them.

    The kernels start with OMP_NUM_THREADS, or with all cores.
    """
    torch.ops.mhla.set_num_threads(threads)


def get_num_threads() -> int:
    """Threads that the kernels run on."""
    return torch.ops.mhla.num_threads()
