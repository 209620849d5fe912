"""One sequence over several processes: every rank holds the tokens of some blocks.

Two ways to compute the operator, both exact:

- ``"summaries"``: ranks exchange the summaries of their blocks, ``(1 - 1/P) B M Hkv (D E + D)`` values per rank, once forward
  and once backward, however many tokens a block has. Any number of ranks up to the number of blocks, blocks ragged or not.
- ``"heads"``: ranks exchange heads for tokens (all-to-all), compute whole sequences of their heads, and exchange them back. P
  must divide the heads.

Gradients of ``mix`` are the part of this rank, as those of every weight that all ranks use: add them up over the group.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _backend, functional
from ._blocks import Blocks
from ._types import FeatureMap, Normalizer

Method = Literal["auto", "summaries", "heads"]
_log = logging.getLogger("mhla")
_told: set[tuple[str, str]] = set()


class Plan(NamedTuple):
    """How a call is computed, and what a rank receives for it."""

    method: str  # "summaries" or "heads"
    reason: str
    values: int  # that a rank receives forward, where the ranks differ the most of them
    values_backward: int
    bytes: int  # forward and backward


class Layout(NamedTuple):
    """How the whole sequence is cut."""

    tokens: int
    block_size: int  # 0 on a grid
    grid: tuple[int, ...]
    blocks: tuple[int, ...]
    causal: bool

    def cut(self) -> Blocks:
        """Its blocks."""
        return Blocks.raster(self.grid, self.blocks) if self.grid else Blocks.line(self.tokens, self.block_size)


def _fail(text: str) -> None:
    raise RuntimeError(f"mhla.distributed: {text}")


def _layout(
    tokens: int | None,
    block_size: int | None,
    grid: Sequence[int] | None,
    blocks: Sequence[int] | None,
    causal: bool,
    chunk: int | None,
) -> Layout:
    if chunk is not None and not causal:
        _fail(f"chunk is {chunk} without causal=True, expected block_size, or grid and blocks")
    if causal and (block_size is not None or grid is not None or blocks is not None):
        _fail("causal=True beside block_size, grid or blocks, expected chunk")
    if (grid is None) != (blocks is None):
        _fail("only one of grid and blocks is given, expected both")
    size = (64 if chunk is None else chunk) if causal else block_size
    if (size is None) == (grid is None):
        _fail("the layout is not given or given twice, expected one of block_size, grid and blocks, causal=True")
    if size is not None and size < 1:
        _fail(f"{'chunk' if causal else 'block_size'} is {size}, expected at least 1")
    if grid is not None and blocks is not None:
        if len(grid) != len(blocks) or len(grid) not in (2, 3):
            _fail(f"grid is {tuple(grid)} and blocks is {tuple(blocks)}, expected 2 or 3 axes of each")
        total = 1
        for length in grid:
            total *= length
        if tokens is not None and tokens != total:
            _fail(f"tokens is {tokens}, expected {total}, those of grid {tuple(grid)}")
        return Layout(total, 0, tuple(grid), tuple(blocks), False)
    if tokens is None or tokens < 1:
        _fail(f"tokens is {tokens}, expected the number of tokens of the whole sequence")
    return Layout(cast(int, tokens), cast(int, size), (), (), causal)


def _range(layout: Layout, world: int, rank: int) -> tuple[int, int]:
    """First block and number of blocks of a rank, by the rule of the library."""
    number = layout.cut().number
    if not 1 <= world <= number:
        _fail(f"{world} ranks for {number} blocks, expected 1 to {number}")
    slices = layout.blocks[0] if layout.grid else number
    units = slices if world <= slices else number
    first, end = units * rank // world, units * (rank + 1) // world
    each = number // units
    return first * each, (end - first) * each


def _tokens_of(layout: Layout, first: int, count: int) -> Tensor:
    """Raster numbers of the tokens of blocks, ascending."""
    if not layout.grid:
        return torch.arange(first * layout.block_size, min((first + count) * layout.block_size, layout.tokens))
    cut = layout.cut()
    number = torch.arange(layout.tokens)
    block = torch.zeros_like(number)
    left = number
    for length, step, of in reversed(list(zip(cut.grid, cut.step, _strides(cut.blocks)))):
        block += torch.div(left % length, step, rounding_mode="floor") * of
        left = torch.div(left, length, rounding_mode="floor")
    return number[(block >= first) & (block < first + count)]


def _strides(sizes: Sequence[int]) -> list[int]:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def local_tokens(
    rank: int,
    world: int,
    *,
    tokens: int | None = None,
    block_size: int | None = None,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    causal: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Which tokens of the whole sequence a rank holds, in the order in which :func:`attention` expects them: ascending
    numbers in raster order. Ranks get equal numbers of blocks, or of slices of the first axis of a grid where there are
    enough; then their tokens are consecutive.

    Example::

        mine = mhla.distributed.local_tokens(rank, world, grid=(21, 30, 50), blocks=(7, 3, 5))
        x = x[:, mine]
    """
    layout = _layout(tokens, block_size, grid, blocks, causal, chunk)
    if not 0 <= rank < world:
        _fail(f"rank is {rank}, expected 0 to {world - 1}")
    return _tokens_of(layout, *_range(layout, world, rank))


def plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    *,
    world: int,
    tokens: int | None = None,
    block_size: int | None = None,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    causal: bool = False,
    chunk: int | None = None,
    normalizer: Normalizer | None = None,
    den: bool = False,
    method: Method = "auto",
) -> Plan:
    """What :func:`attention` does on ``world`` ranks for tensors of these shapes, dtypes and device (the number of tokens in
    them does not matter). ``den``: with q_den and k_den."""
    layout = _layout(tokens, block_size, grid, blocks, causal, chunk)
    ranges = [_range(layout, world, rank) for rank in range(world)]
    return _plan(q, k, v, mix, layout, ranges, normalizer or ("none" if causal else "paper"), den, method)


def _plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    layout: Layout,
    ranges: Sequence[tuple[int, int]],
    normalizer: str,
    den: bool,
    method: Method,
) -> Plan:
    (B, _, H, D), Hkv, E, world = q.shape, k.shape[2], v.shape[3], len(ranges)
    others = layout.cut().number - min(count for _, count in ranges)  # blocks that the rank with the fewest receives
    row = B * (D * E + (0 if normalizer == "none" else D))
    rows, gradients = (others * heads * row for heads in (Hkv, H if mix.dim() == 3 and mix.shape[0] > 1 else Hkv))
    to_heads, to_tokens = B * ((H + Hkv) * D * (2 if den else 1) + Hkv * E) // world, B * H * E // world
    tokens = [_tokens_of(layout, *part) for part in ranges]
    held = [mine.numel() for mine in tokens]
    there = [(layout.tokens - n) * to_heads + (world - 1) * n * to_tokens for n in held]
    back = [(layout.tokens - n) * to_tokens + (world - 1) * n * to_heads for n in held]
    forward, backward, both = max(there), max(back), max(map(sum, zip(there, back)))
    wide = 8 if q.dtype == torch.float64 else 4
    by_summaries, by_heads = (rows + gradients) * wide, both * q.element_size()
    no_heads = "" if H % world == 0 and Hkv % world == 0 else f"{world} ranks do not divide {H} and {Hkv} heads"
    no_summaries = ""
    if normalizer == "official":
        no_summaries = "the official normaliser reads queries of every block"
    elif not _backend.available():
        no_summaries = "the compiled library is not there"
    elif q.device.type != "cpu" and q.dtype == torch.float64:
        no_summaries = f"the phases take float64 on the CPU only, q is on {q.device}"
    elif q.device.type != "cpu" and any(int(mine[-1] - mine[0]) + 1 != mine.numel() for mine in tokens):
        no_summaries = f"on {q.device} ranks hold whole slices of the first axis, and there are fewer than {world}"
    reasons = {"heads": no_heads, "summaries": no_summaries}
    if method not in ("auto", *reasons):
        _fail(f"method is {method!r}, expected auto, summaries or heads")
    if method != "auto" and reasons[method]:
        _fail(f"method {method}: {reasons[method]}")
    if no_heads and no_summaries:
        _fail(f"no method fits. summaries: {no_summaries} | heads: {no_heads}")
    if method != "auto":
        chosen, reason = str(method), "asked for"
    elif no_heads or no_summaries:
        chosen, reason = ("summaries", no_heads) if no_heads else ("heads", no_summaries)
    elif q.device.type != "cpu":
        chosen, reason = "heads", "on a GPU whole sequences of a few heads run through faster kernels"
    else:
        chosen = "summaries" if by_summaries <= by_heads else "heads"
        reason = f"{by_summaries} bytes by summaries, {by_heads} by heads"
    if chosen == "summaries":
        return Plan(chosen, reason, rows, gradients, by_summaries)
    return Plan(chosen, reason, forward, backward, by_heads)


def _gather(own: Tensor, counts: Sequence[int], group: Any) -> Tensor:
    """Rows of all ranks, one after the other; ``counts`` rows each."""
    world = len(counts)
    if world == 1:
        return own
    everything = own.new_empty((sum(counts), *own.shape[1:]))
    if len(set(counts)) == 1:
        dist.all_gather(list(everything.chunk(world)), own, group=group)
        return everything
    # Gathers want equal pieces. An all-to-all of the same rows to everybody moves what the formula says, without padding.
    flat, row = everything.flatten(), own[0].numel()
    dist.all_to_all_single(
        flat, own.flatten().repeat(world), [n * row for n in counts], [own.numel()] * world, group=group
    )
    return everything


class _Options(NamedTuple):
    layout: Layout
    ranges: list[tuple[int, int]]
    rank: int
    feature_map: str
    normalizer: str
    eps: float
    scale: float | None
    group: Any

    @property
    def counts(self) -> list[int]:
        return [count for _, count in self.ranges]

    def arguments(self) -> tuple[Any, ...]:
        """As the operators take them, after the tensors."""
        layout, (first, count) = self.layout, self.ranges[self.rank]
        return (layout.tokens, first, count, layout.causal, layout.block_size, layout.grid, layout.blocks, self.feature_map,
                self.normalizer, self.eps, self.scale)  # fmt: skip


class _BySummaries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mix: Tensor, q_den: Any, k_den: Any, options: _Options) -> Tensor:
        tensors, arguments = (q, k, v, mix, q_den, k_den), options.arguments()
        own = torch.ops.mhla.phase_summaries(*tensors, *arguments)
        summaries = _gather(own, options.counts, options.group)
        out: Tensor = torch.ops.mhla.phase_output(summaries, *tensors, *arguments)
        ctx.options = options
        ctx.save_for_backward(*tensors, summaries)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, misc, unused-ignore]
    def backward(ctx: Any, dout: Tensor) -> Any:
        *tensors, summaries = ctx.saved_tensors
        options: _Options = ctx.options
        arguments = options.arguments()
        q, k, v, mix, q_den, k_den, _ = ctx.needs_input_grad
        dP, terms, *rest = torch.ops.mhla.phase_queries(dout, summaries, *tensors, *arguments, (q, mix, q_den))
        given = iter(rest)
        dq, dmix, dq_den = (next(given) if wanted else None for wanted in (q, mix, q_den))
        if not (k or v or k_den):  # the same on every rank
            return dq, None, None, dmix, dq_den, None, None
        everything = _gather(dP, options.counts, options.group)
        given = iter(torch.ops.mhla.phase_keys(dout, everything, terms, *tensors, *arguments, (k, v, k_den)))
        dk, dv, dk_den = (next(given) if wanted else None for wanted in (k, v, k_den))
        return dq, dk, dv, dmix, dq_den, dk_den, None


class _Exchange(torch.autograd.Function):
    """Rows for columns: ``[B, n, H, D]`` with the tokens of a rank to ``[B, N, H / P, D]`` with its heads, and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int], rank: int, group: Any, to_heads: bool) -> Tensor:
        ctx.rest = (counts, rank, group, to_heads)
        return _to_heads(x, counts, group) if to_heads else _to_tokens(x, counts, rank, group)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Any:
        counts, rank, group, to_heads = ctx.rest
        return _Exchange.apply(dx, counts, rank, group, not to_heads), None, None, None, None


def _all_to_all(send: Sequence[Tensor], receive: Sequence[Sequence[int]], group: Any) -> list[Tensor]:
    """One piece to every rank. As bytes: Gloo of torch 1.13 knows no bf16."""
    like = send[0]
    packed = torch.cat([x.reshape(-1) for x in send]).contiguous().view(torch.uint8)
    size = like.element_size()
    numbers = [torch.Size(shape).numel() for shape in receive]
    got = torch.empty(sum(numbers) * size, dtype=torch.uint8, device=like.device)
    dist.all_to_all_single(got, packed, [n * size for n in numbers], [x.numel() * size for x in send], group=group)
    pieces = got.view(like.dtype).split(numbers)
    return [piece.view(tuple(shape)) for piece, shape in zip(pieces, receive)]


def _to_heads(x: Tensor, counts: list[int], group: Any) -> Tensor:
    world = len(counts)
    B, _, H, D = x.shape
    pieces = _all_to_all([part.contiguous() for part in x.chunk(world, 2)], [(B, n, H // world, D) for n in counts], group)
    return torch.cat(pieces, 1)


def _to_tokens(x: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:
    B, _, H, D = x.shape
    pieces = _all_to_all([part.contiguous() for part in x.split(counts, 1)], [(B, counts[rank], H, D)] * len(counts), group)
    return torch.cat(pieces, 2)


def _by_heads(tensors: Sequence[Tensor | None], mix: Tensor, options: _Options) -> Tensor:
    layout, world, rank = options.layout, len(options.ranges), options.rank
    held = [_tokens_of(layout, *part) for part in options.ranges]
    counts = [x.numel() for x in held]
    order = torch.cat(held)  # raster number of every token as it arrives
    shuffled = bool((order[1:] < order[:-1]).any())
    back = torch.argsort(order).to(mix.device)
    order = order.to(mix.device)
    exchange: Any = _Exchange.apply
    whole = []
    for x in tensors:
        if x is not None:
            x = exchange(x, counts, rank, options.group, True)
            x = x.index_select(1, back) if shuffled else x
        whole.append(x)
    q, k, v, q_den, k_den = whole
    if mix.dim() == 3 and mix.shape[0] > 1:
        mix = mix.chunk(world, 0)[rank]
    out = functional.attend(
        cast(Tensor, q), cast(Tensor, k), cast(Tensor, v), mix, block_size=layout.block_size or None,
        grid=layout.grid or None, blocks=layout.blocks or None, causal=layout.causal, normalizer=options.normalizer,
        feature_map=options.feature_map, q_den=q_den, k_den=k_den, eps=options.eps, scale=options.scale,
    )  # fmt: skip
    out = out.index_select(1, order) if shuffled else out
    return cast(Tensor, exchange(out, counts, rank, options.group, False))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    *,
    group: Any = None,
    tokens: int | None = None,
    block_size: int | None = None,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    causal: bool = False,
    chunk: int | None = None,
    normalizer: Normalizer | None = None,
    feature_map: FeatureMap = "relu_eps",
    q_den: Tensor | None = None,
    k_den: Tensor | None = None,
    eps: float = 1e-6,
    scale: float | None = None,
    method: Method = "auto",
) -> Tensor:
    """:func:`mhla.attention` of a sequence whose blocks are spread over the ranks of a ``torch.distributed`` group. Every rank
    calls it with its own tokens (:func:`local_tokens`) and gets their outputs; gradients flow back to the ranks that the
    keys and values came from. Every rank must ask for the same gradients.

    Args:
        q: ``[B, n, H, D]``, the n tokens of this rank.
        k: ``[B, n, Hkv, D]``.
        v: ``[B, n, Hkv, E]``.
        mix: the matrix of the whole sequence, the same on every rank. Its gradient is the part of this rank: add it up over
            the group, like that of every weight that all ranks use.
        group: of ``torch.distributed``; None: all processes.
        tokens: N of the whole sequence. None: asked from the ranks, at the price of a small exchange; not needed on a grid.
        method: ``"summaries"``, ``"heads"``, or ``"auto"``: the one that sends fewer bytes of those that are possible, on a GPU
            heads. The choice goes to the log ``mhla`` at level INFO; :func:`plan` tells it beforehand.

    The other arguments are those of :func:`mhla.attention` and describe the whole sequence. Packed sequences, extra tokens,
    ``beyond_mix="extend"`` and, by summaries, the ``"official"`` normaliser have no meaning across a cut and are not taken.

    Returns:
        ``[B, n, H, E]``. By summaries, out and the gradients of q, k and v have the bits of one process that calls
        :func:`mhla.attention` on the whole sequence, where that goes by summaries too (docs/numerics.md).

    Example::

        torch.distributed.init_process_group("gloo")
        mine = mhla.distributed.local_tokens(rank, world, tokens=65536, causal=True, chunk=256)
        out = mhla.distributed.attention(q[:, mine], k[:, mine], v[:, mine], mix, tokens=65536, causal=True, chunk=256)
    """
    functional._check_types(q, k, v, mix, grid, blocks)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            _fail(f"{name} has shape {list(x.shape)}, expected 4 axes: [B, n, H, D]")
    if not (dist.is_available() and dist.is_initialized()):
        _fail("torch.distributed has no process group, expected init_process_group() first")
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        _fail("this process is not in the group")
    if tokens is None and grid is None:
        total = torch.tensor([q.shape[1]], device=q.device)
        dist.all_reduce(total, group=group)
        tokens = int(total)
    layout = _layout(tokens, block_size, grid, blocks, causal, chunk)
    ranges = [_range(layout, world, r) for r in range(world)]
    expected = _tokens_of(layout, *ranges[rank]).numel()
    if q.shape[1] != expected:
        first, count = ranges[rank]
        _fail(f"q of rank {rank} has {q.shape[1]} tokens, expected {expected}, those of blocks {first} to {first + count} of "
              f"{layout.cut().number}")  # fmt: skip
    if mix.dtype in (torch.float16, torch.bfloat16):
        mix = mix.float()
    normalizer = normalizer or ("none" if causal else "paper")
    how = _plan(q, k, v, mix, layout, ranges, normalizer, q_den is not None, method)
    if (how.method, how.reason) not in _told:
        _told.add((how.method, how.reason))
        _log.info("mhla.distributed: by %s over %d ranks (%s)", how.method, world, how.reason)
    options = _Options(layout, ranges, rank, feature_map, normalizer, eps, scale, group)
    if how.method == "heads":
        return _by_heads((q, k, v, q_den, k_den), mix, options)
    _backend.kernels()
    apply: Any = _BySummaries.apply
    return cast(Tensor, apply(q, k, v, mix, q_den, k_den, options))
