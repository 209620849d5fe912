"""What torch.utils.flop_counter.FlopCounterMode counts for the compiled operators: two for each multiplication with its sum.

bidirectional:  summaries 2 N D E, mixing 2 M^2 D E, read-out 2 N D E for each head
chunkwise:      the same with half of the mixing, and N C (D + E) within chunks
backward:       the summaries and their mixing again; twice the read-out, the mixing and the summaries
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ._blocks import ceil_div

Shape = Sequence[int]


def _parts(q: Shape, k: Shape, v: Shape, mix: Shape, count: int) -> tuple[int, int, int]:
    """Summaries, mixing and read-out of M blocks."""
    (B, N, H, D), Hkv, E = q, k[2], v[3]
    mixed = H if len(mix) == 3 else Hkv  # heads with a mixed summary of their own
    return 2 * B * Hkv * N * D * E, 2 * B * mixed * count * count * D * E, 2 * B * H * N * D * E


def _sequences(N: int, size: int, cu_seqlens: Shape | None) -> tuple[int, int]:
    """Sequences, and blocks of one; packed ones count as equally long: their bounds are not known here."""
    sequences = 1 if cu_seqlens is None else max(1, cu_seqlens[0] - 1)
    return sequences, ceil_div(ceil_div(N, sequences), size)


def bidirectional(
    q: Shape,
    k: Shape,
    v: Shape,
    mix: Shape,
    block_size: int = 0,
    grid: Shape = (),
    blocks: Shape = (),
    q_den: Shape | None = None,
    k_den: Shape | None = None,
    cu_seqlens: Shape | None = None,
    *_: Any,
    backward: bool = False,
    **__: Any,
) -> int:
    """Floating-point operations of one call."""
    sequences, count = (1, math.prod(blocks)) if blocks else _sequences(q[1], block_size, cu_seqlens)
    summaries, mixing, read = _parts(q, k, v, mix, count)
    mixing *= sequences
    return 3 * summaries + 3 * mixing + 2 * read if backward else summaries + mixing + read


def chunkwise(
    q: Shape,
    k: Shape,
    v: Shape,
    mix: Shape,
    chunk: int = 64,
    q_den: Shape | None = None,
    k_den: Shape | None = None,
    cu_seqlens: Shape | None = None,
    *_: Any,
    backward: bool = False,
    **__: Any,
) -> int:
    """Floating-point operations of one call."""
    sequences, count = _sequences(q[1], chunk, cu_seqlens)
    summaries, mixing, read = _parts(q, k, v, mix, count)
    mixing = mixing * sequences // 2
    within = q[0] * q[2] * q[1] * min(chunk, q[1]) * (q[3] + v[3])
    return 3 * (summaries + mixing) + 2 * read + 3 * within if backward else summaries + mixing + read + within


COUNTER = "torch.utils.flop_counter"


class _WithCounter:
    """An importer that registers the formulas when PyTorch's counter is imported: the counter imports triton, which would
    double the time of `import mhla`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != COUNTER:
            return None
        sys.meta_path.remove(_WithCounter)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def run_and_register(module: Any) -> None:
            run(module)
            _register(module)

        loader.exec_module = run_and_register
        return spec


def register() -> None:
    """For PyTorch versions that have such a counter: now, or when it is imported."""
    if COUNTER in sys.modules:
        _register(sys.modules[COUNTER])
    elif _WithCounter not in sys.meta_path:
        sys.meta_path.insert(0, _WithCounter)


def _register(flop_counter: Any) -> None:
    count: Any = getattr(flop_counter, "register_flop_formula", None)
    registry = getattr(flop_counter, "flop_registry", {})
    if count is None:
        return
    for formula in (bidirectional, chunkwise):
        forward, backward = (getattr(torch.ops.mhla, formula.__name__ + end) for end in ("", "_backward"))
        if forward not in registry:
            for operator, counted in ((forward, count(forward)(formula)), (backward, count(backward)(_backward_of(formula)))):
                registry.setdefault(operator, counted)  # PyTorch 2.2 registers overloads and looks up the operator


def _backward_of(formula: Any) -> Any:
    def backward(dout: Shape, *args: Any, **kwargs: Any) -> int:
        return formula(*args, **{**kwargs, "backward": True})

    return backward
