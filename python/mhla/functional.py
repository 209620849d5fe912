"""The operator as a function of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _backend
from ._blocks import Blocks
from ._packed import crossed, over_grids
from ._types import Backend, BeyondMix, FeatureMap, Normalizer
from .feature_maps import FUSED
from .rope import is_compiling
from .torch_backend import attention as plain
from .torch_backend.checks import check_layout

_ENTRIES = ("bidirectional_forward", "chunkwise_forward", "bidirectional", "chunkwise")  # of the library


_watch: Any = None  # mhla.analyze sees every call


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    *,
    block_size: int | None = None,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    grids: Sequence[Sequence[int]] | None = None,
    causal: bool = False,
    chunk: int | None = None,
    normalizer: Normalizer | None = None,
    feature_map: FeatureMap = "relu_eps",
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    eps: float = 1e-6,
    scale: float | None = None,
    beyond_mix: BeyondMix = "error",
    extra_tokens: int = 0,
    key_padding_mask: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Multi-head linear attention of q, k, v ``[B, N, H, D]`` (tokens before heads): every block of queries weighs the
    summaries of all blocks of keys.

    The layout is one of

    - ``block_size``: blocks of consecutive tokens, M = ceil(N / block_size);
    - ``grid`` and ``blocks``: tokens and blocks per axis of a 2D or 3D raster, M the product of ``blocks``;
    - ``grids`` and ``blocks``: images of different grids in one row (B = 1), which do not see each other;
    - ``causal=True`` and ``chunk`` (64): no token sees a later one.

    Args:
        q: ``[B, N, H, D]``, before the feature map. Tokens in raster order; the last axis must be dense, other strides
            are free, so slices of a fused projection are not copied.
        k: ``[B, N, Hkv, D]``, Hkv divides H: query head h reads head h // (H // Hkv). With ``block_size`` it may have another
            length than q (cross-attention): ``[B, S, Hkv, D]``, cut into blocks of the same size.
        v: ``[B, N, Hkv, E]``, as long as k.
        mix: ``[M, M]`` or ``[H, M, M]``, float32 (float64 for float64; 16-bit floats are widened). Row i: how query block i
            weighs every key block; in cross-attention ``[ceil(N / block_size), ceil(S / block_size)]``. In 1D and causal
            layouts it may be larger: its leading part is used.
        normalizer: ``"paper"`` (default), ``"none"`` (default of the causal form) or ``"official"``, the published code's,
            for blocks of equal size.
        feature_map: a key of ``mhla.feature_maps.FUSED``, applied to q, k, q_den and k_den.
        q_den: like q, with ``k_den`` like k: features for the normaliser alone, where the numerator's are rotated.
        cu_seqlens: ``[S + 1]`` int32 or int64: B = 1 holds S packed sequences that do not see each other. On the CPU
            also for CUDA tensors, or at the price of waiting for the device.
        eps: added to the denominator.
        scale: of the numerator. 1, but D**-0.5 for the causal form without a normaliser.
        beyond_mix: what happens in the causal form to chunks beyond the rows of mix: ``"error"`` or ``"extend"``.
        extra_tokens: the first so many tokens (class token, registers) are not on the grid and form block 0 of their own:
            mix is ``[M + 1, M + 1]``. Not for the causal form, packed sequences and ``"official"``.
        key_padding_mask: ``[B, N]`` bool (``[B, S]`` in cross-attention), True where a token is padding that no query may
            see, as in ``torch.nn.MultiheadAttention``. Zero-padded keys without a mask are not invisible: ``"relu_eps"``
            gives them features of 1e-6.
        backend: ``"kernels"``, the compiled library, or ``"torch"``, plain torch code: slower, but twice differentiable, for
            ``torch.func``, ``torch.jit``, ONNX, any device and any D. None: :func:`mhla.get_backend`.

    Returns:
        ``[B, N, H, E]`` in the dtype of q.

    Raises:
        RuntimeError: with the argument, what came and what was expected.
        ImportError: the library is missing or does not fit this torch, and ``backend="torch"`` was not asked for.

    Example::

        q = k = v = torch.randn(2, 256, 6, 64)           # 16 x 16 tokens, 6 heads
        mix = mhla.init_mix([4, 4])                      # 4 x 4 blocks
        out = mhla.attention(q, k, v, mix, grid=(16, 16), blocks=(4, 4))
    """
    _check_types(q, k, v, mix, grid, blocks)
    if causal:
        if block_size is not None or grid is not None or blocks is not None or grids is not None:
            raise RuntimeError("mhla.attention: causal=True with block_size, grid, grids or blocks, expected chunk")
        block_size = 64 if chunk is None else chunk
    elif chunk is not None or beyond_mix != "error":
        raise RuntimeError(
            "mhla.attention: chunk and beyond_mix belong to causal=True, expected block_size, or grid and blocks"
        )
    if grid is None and grids is None and q.dim() == 4 and not is_compiling() and 1 < q.shape[1] < q.shape[2]:
        warnings.warn(
            f"mhla.attention: q has {q.shape[1]} tokens and {q.shape[2]} heads: the order is [B, N, H, D], tokens before heads; "
            "transpose(1, 2) if yours is [B, H, N, D]", stacklevel=2)  # fmt: skip
    return attend(
        q, k, v, mix, block_size=block_size, grid=grid, blocks=blocks, causal=causal, normalizer=normalizer,
        feature_map=feature_map, q_den=q_den, k_den=k_den, cu_seqlens=cu_seqlens, eps=eps, scale=scale,
        beyond_mix=beyond_mix, extra_tokens=extra_tokens, key_padding_mask=key_padding_mask, grids=grids, backend=backend,
    )  # fmt: skip


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    *,
    block_size: int | None,
    grid: Sequence[int] | None,
    blocks: Sequence[int] | None,
    causal: bool,
    normalizer: str | None,
    feature_map: str,
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    eps: float = 1e-6,
    scale: float | None = None,
    beyond_mix: str = "error",
    extra_tokens: int = 0,
    key_padding_mask: Tensor | None = None,
    grids: Sequence[Sequence[int]] | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """:func:`attention` for layers, which know what they pass. In the causal form ``block_size`` is the chunk."""
    normalizer = normalizer or ("none" if causal else "paper")
    if grids is not None:
        if cu_seqlens is not None or block_size is not None or grid is not None:
            raise RuntimeError("mhla.attention: grids beside cu_seqlens, block_size or grid, expected blocks alone")
        how: dict[str, Any] = dict(block_size=None, blocks=blocks, causal=False, normalizer=normalizer, feature_map=feature_map,
                                   eps=eps, scale=scale, extra_tokens=extra_tokens, backend=backend)  # fmt: skip
        row = dict(q=q, k=k, v=v, q_den=q_den, k_den=k_den, key_padding_mask=key_padding_mask)

        def run(own: tuple[int, ...], batch: list[Any]) -> Tensor:
            return attend(mix=mix, grid=own, **dict(zip(row, batch)), **how)

        return over_grids("mhla.attention", grids, extra_tokens, list(row.values()), run)
    if _watch is not None:
        _watch(q, k, v, mix, block_size=block_size, grid=grid, blocks=blocks, causal=causal, normalizer=normalizer,
               feature_map=feature_map, q_den=q_den, k_den=k_den, cu_seqlens=cu_seqlens, eps=eps, scale=scale,
               beyond_mix=beyond_mix, extra_tokens=extra_tokens, key_padding_mask=key_padding_mask)  # fmt: skip
    cross = not causal and block_size is not None and q.dim() == k.dim() == 4 and q.shape[1] != k.shape[1]
    if not extra_tokens and key_padding_mask is None and not cross:
        return _run(q, k, v, mix, block_size, grid, blocks, causal, normalizer, feature_map, q_den, k_den, cu_seqlens, eps, scale,
                    beyond_mix, backend)  # fmt: skip
    if feature_map not in FUSED:
        raise RuntimeError(f"mhla.attention: feature_map is '{feature_map}', expected one of {', '.join(FUSED)}")
    phi = FUSED[feature_map]  # here: padding must have no features at all
    q, k = phi(q), phi(k)
    if q_den is not None and k_den is not None:
        q_den, k_den = phi(q_den), phi(k_den)
    if key_padding_mask is not None:
        hidden = _padding(key_padding_mask, k)
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        k_den = None if k_den is None else k_den.masked_fill(hidden, 0.0)
    tokens = q.shape[1]
    if cross:
        if extra_tokens or cu_seqlens is not None or normalizer == "official":
            what = "extra_tokens" if extra_tokens else "cu_seqlens" if cu_seqlens is not None else "normalizer official"
            raise RuntimeError(f"mhla.attention: {what} with {tokens} queries and {k.shape[1]} keys, expected as many of both")
        assert block_size is not None
        q, k, v, mix, q_den, k_den = crossed(q, k, v, mix, block_size, q_den, k_den)
    if not extra_tokens:
        out = _run(q, k, v, mix, block_size, grid, blocks, causal, normalizer, "identity", q_den, k_den, cu_seqlens, eps, scale,
                   beyond_mix, backend)  # fmt: skip
        return out[:, :tokens] if cross else out
    if causal or cu_seqlens is not None or normalizer == "official":
        what = "causal=True" if causal else "cu_seqlens" if cu_seqlens is not None else "normalizer official"
        raise RuntimeError(f"mhla.attention: extra_tokens with {what}, expected block_size, or grid and blocks")
    layout = _with_extra(block_size, grid, blocks, extra_tokens, q.shape[1])
    # Places that blocks have left over: keys of 0, which nobody sees, and queries of 1, whose output nobody reads.
    q, k, v = _line(layout, q, 1.0), _line(layout, k, 0.0), _line(layout, v, 0.0)
    q_den = None if q_den is None else _line(layout, q_den, 1.0)
    k_den = None if k_den is None else _line(layout, k_den, 0.0)
    out = _run(q, k, v, mix, layout.room, None, None, False, normalizer, "identity", q_den, k_den, None, eps, scale, "error",
               backend)  # fmt: skip
    return layout.join(out.unflatten(1, (layout.number, layout.room)))


def _line(layout: Blocks, x: Tensor, fill: float) -> Tensor:
    """One block after the other, all as long."""
    return layout.split(x, fill).flatten(1, 2)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    block_size: int | None,
    grid: Sequence[int] | None,
    blocks: Sequence[int] | None,
    causal: bool,
    normalizer: str,
    feature_map: str,
    q_den: Tensor | None,
    k_den: Tensor | None,
    cu_seqlens: Tensor | None,
    eps: float,
    scale: float | None,
    beyond_mix: str,
    backend: Backend | None,
) -> Tensor:
    if _backend.plain(backend):
        options = plain.Options(block_size, grid, blocks, causal, feature_map, normalizer, eps, scale, beyond_mix)
        return plain.attend(q, k, v, mix, options, q_den, k_den, cu_seqlens)
    kernels, arguments = _backend.kernels(), (q_den, k_den, cu_seqlens, feature_map, normalizer, eps)
    if is_compiling():  # a graph has no exceptions to rewrite
        if causal:
            return kernels.chunkwise(q, k, v, mix, block_size, *arguments, scale, beyond_mix)
        return kernels.bidirectional(
            q, k, v, mix, block_size or 0, grid or (), blocks or (), *arguments, 1.0 if scale is None else scale
        )
    try:
        if causal:
            return kernels.chunkwise(q, k, v, mix, block_size, *arguments, scale, beyond_mix)
        return kernels.bidirectional(
            q, k, v, mix, block_size or 0, grid or (), blocks or (), *arguments, 1.0 if scale is None else scale
        )
    except RuntimeError as error:
        text = str(error)
        entry = next((name for name in _ENTRIES if text.startswith(f"{name}: ")), None)
        if entry is None:
            raise
        raise RuntimeError(f"mhla.attention{text[len(entry) :]}") from None


def _padding(mask: Tensor, k: Tensor) -> Tensor:
    """``[B, N, 1, 1]``."""
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(k.shape[:2]):
        raise RuntimeError(f"mhla.attention: key_padding_mask has dtype {mask.dtype} and shape {list(mask.shape)}, "
                           f"expected bool and {list(k.shape[:2])}, True for padding")  # fmt: skip
    return mask[:, :, None, None]


def _with_extra(
    block_size: int | None, grid: Sequence[int] | None, blocks: Sequence[int] | None, extra: int, tokens: int
) -> Blocks:
    """The layout of tokens of which the first are not on the grid."""
    if extra < 0 or extra > tokens:
        raise RuntimeError(f"mhla.attention: extra_tokens is {extra}, expected 0 to N = {tokens}")
    return check_layout(block_size, grid, blocks, tokens - extra, False)._replace(extra=extra)


def _check_types(q: Any, k: Any, v: Any, mix: Any, grid: Any, blocks: Any) -> None:
    """One line instead of the whole schema of an operator."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor) and isinstance(mix, Tensor)):
        name, x = next(pair for pair in zip(("q", "k", "v", "mix"), (q, k, v, mix)) if not isinstance(pair[1], Tensor))
        raise RuntimeError(f"mhla.attention: {name} is a {type(x).__module__}.{type(x).__name__}, expected a torch.Tensor")
    for name, sizes in () if grid is None and blocks is None else (("grid", grid), ("blocks", blocks)):
        if isinstance(sizes, (int, float, str)):
            raise RuntimeError(f"mhla.attention: {name} is {sizes!r}, expected sizes per axis, such as (16, 16)")


def set_num_threads(threads: int) -> None:
    """Threads of the kernels, of torch and of OpenBLAS: at most as many as there are cores, 0 for all of them.

    The kernels start with OMP_NUM_THREADS, or with all cores.
    """
    _backend.kernels()
    torch.ops.mhla.set_num_threads(threads)


def get_num_threads() -> int:
    """Threads that the kernels run on."""
    _backend.kernels()
    return torch.ops.mhla.num_threads()
