"""``mhla.bench()``: the operator beside softmax attention and plain torch code, verified first, then timed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _backend, flop_counter
from .functional import attend
from .mixing import init_mix

COLUMNS = ("name", "ms", "spread", "gflops", "of_softmax", "error")


class Times(list[dict[str, Any]]):
    """Rows of a benchmark; printed, a table."""

    def __str__(self) -> str:
        shown = [[_text(row[name]) for name in COLUMNS] for row in self]
        widths = [max(len(line[i]) for line in [list(COLUMNS), *shown]) for i in range(len(COLUMNS))]
        lines = [list(COLUMNS), *shown]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _clock(call: Callable[[], Any], device: torch.device, seconds: float) -> tuple[float, float]:
    """Median of the calls in milliseconds, and the distance of their quartiles over it."""

    def once() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1e3 * (time.perf_counter() - begin)

    once()
    count = max(5, min(200, int(1e3 * seconds / max(once(), 1e-3))))
    times = sorted(once() for _ in range(count))
    median = statistics.median(times)
    return median, (times[3 * count // 4] - times[count // 4]) / median


def bench(
    *,
    batch: int = 8,
    heads: int = 6,
    head_dim: int = 64,
    grid: Sequence[int] = (32, 32),
    blocks: Sequence[int] = (4, 4),
    backward: bool = False,
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    seconds: float = 1.0,
) -> Times:
    """Times attention over a grid: the kernels, the same in plain torch, and softmax attention of torch.

    Results are compared with float64 first: a wrong one raises RuntimeError and is not timed. ``print(mhla.bench())`` shows a
    table. ``mhla bench op`` of the program measures more: floors, limits of the machine, other attentions.

    Args:
        batch, heads, head_dim: B, H and D.
        grid, blocks: tokens and blocks per axis.
        backward: forward and backward instead of forward.
        dtype: of q, k and v.
        device: where they are.
        seconds: to time each for.

    Returns:
        rows with ``name``, ``ms`` (median), ``spread`` (quartiles over median), ``gflops`` (by the formula of MHLA),
        ``of_softmax`` (times as fast as softmax) and ``error`` (largest difference from float64 over its largest value).
    """
    place, tokens = torch.device(device), math.prod(grid)
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, tokens, heads, head_dim, generator=make).to(place, dtype) for _ in range(3))
    mix = init_mix(tuple(blocks)).to(place)
    shape = q.shape
    options: dict[str, Any] = dict(block_size=None, grid=tuple(grid), blocks=tuple(blocks), causal=False, normalizer="paper",
                                   feature_map="relu_eps")  # fmt: skip
    dout = torch.randn(shape, generator=make).to(place, dtype)

    def mhla_call(backend: Any) -> Callable[..., Tensor]:
        return lambda q, k, v: attend(q, k, v, mix.double() if q.dtype == torch.float64 else mix, **options, backend=backend)

    softmax: Any = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    calls: dict[str, Callable[..., Tensor]] = {}
    if _backend.available():
        calls["kernels"] = mhla_call("kernels")
    calls["plain torch"] = mhla_call("torch")
    if softmax is not None:
        calls["softmax"] = lambda q, k, v: softmax(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    want = mhla_call("torch")(*(x.double() for x in (q, k, v)))
    flops = flop_counter.bidirectional(shape, shape, shape, mix.shape, 0, tuple(grid), tuple(blocks))
    if backward:
        flops += flop_counter.bidirectional(shape, shape, shape, mix.shape, 0, tuple(grid), tuple(blocks), backward=True)
    allowed = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 0.05)
    rows = Times()
    for name, call in calls.items():
        error = None
        if name != "softmax":
            error = ((call(q, k, v).double() - want).abs().max() / want.abs().max()).item()
            if not error <= allowed:
                raise RuntimeError(f"mhla.bench: {name} is {error:.1e} off float64, expected at most {allowed:.0e}")
        inputs = [x.clone().requires_grad_(backward) for x in (q, k, v)]

        def step(call: Callable[..., Tensor] = call, inputs: list[Tensor] = inputs) -> None:
            out = call(*inputs)
            if backward:
                torch.autograd.grad(out, inputs, dout)

        with torch.set_grad_enabled(backward):
            ms, spread = _clock(step, place, seconds)
        rate = None if name == "softmax" else flops / ms / 1e6
        rows.append(dict(name=name, ms=ms, spread=spread, gflops=rate, of_softmax=None, error=error))
    if "softmax" in calls:
        for row in rows:
            row["of_softmax"] = rows[-1]["ms"] / row["ms"]
    return rows
