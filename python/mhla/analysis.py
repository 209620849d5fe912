"""How focused and how rich the attention of a model is: ``mhla.analyze(model, images)``.

The figures are those of ``mhla analyze`` (mhla/analysis/attention_stats.h). The output of attention is linear in v, so v = I
gives the matrix A ``[N, N]`` of every head as the layer computes it: with its blocks, normaliser, masks and extra tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import functional
from ._report import page

COLUMNS = ("layer", "attention", "tokens", "heads", "rank", "rank_1pc", "effective_rank", "stable_rank", "entropy",
           "entropy_of_log_n")  # fmt: skip


@dataclass
class Analysis:
    """One row per attention layer, in the order of their calls; figures are means over heads and samples."""

    rows: list[dict[str, Any]]
    mixes: dict[str, Tensor]  # by layer: [M, M] or [H, M, M]

    def table(self) -> dict[str, list[Any]]:
        """Columns by name: ``pandas.DataFrame(analysis.table())``."""
        return {name: [row[name] for row in self.rows] for name in COLUMNS}

    def save(self, path: str | Path) -> Path:
        """Writes an HTML page with the table and a picture of every mixing matrix."""
        file = Path(path)
        file.write_text(page("attention", COLUMNS, self.rows, self.mixes))
        return file

    def __str__(self) -> str:
        lines = [[_shown(row[name]) for name in COLUMNS] for row in self.rows]
        widths = [max(len(line[i]) for line in [list(COLUMNS), *lines]) for i in range(len(COLUMNS))]

        def pad(line: list[str]) -> str:
            return "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()

        return "\n".join([pad(list(COLUMNS)), *map(pad, lines)])


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def statistics(A: Tensor, largest: int = 1024) -> dict[str, float | None]:
    """Ranks and entropy of matrices A ``[..., N, N]``, means over the leading axes. Ranks are None where N is above
    ``largest``, because they need singular values.

    ``rank``: singular values above N eps of the largest, eps of float32, in which features are made; ``rank_1pc``: above 1 % of
    it; ``effective_rank``: exp of the entropy of sigma / sum(sigma); ``stable_rank``: sum(sigma^2) / sigma_max^2; ``entropy``: of
    the rows' magnitudes, in nats.
    """
    A = A.double()
    N = A.shape[-1]
    if not bool(torch.isfinite(A).all()):
        raise RuntimeError("mhla.analyze: an attention matrix has NaN or infinity, expected finite numbers")
    found: dict[str, float | None] = dict.fromkeys(("rank", "rank_1pc", "effective_rank", "stable_rank"))
    if N <= largest:
        sigma = torch.linalg.svdvals(A)
        top = sigma[..., :1].clamp(min=torch.finfo(torch.float64).tiny)
        share = sigma / sigma.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        found["rank"] = (sigma > N * torch.finfo(torch.float32).eps * top).sum(-1).double().mean().item()
        found["rank_1pc"] = (sigma > 0.01 * top).sum(-1).double().mean().item()
        found["effective_rank"] = torch.special.entr(share).sum(-1).exp().mean().item()
        found["stable_rank"] = (sigma.square().sum(-1) / top[..., 0].square()).mean().item()
    weights = A.abs().sum(-1, keepdim=True)
    has = weights[..., 0] > 0  # rows without weight are left out
    rows = torch.special.entr(A.abs() / weights.clamp(min=torch.finfo(torch.float64).tiny)).sum(-1)
    entropy = (rows * has).sum(-1) / has.sum(-1).clamp(min=1)
    found["entropy"] = entropy.mean().item()
    found["entropy_of_log_n"] = entropy.mean().item() / math.log(N) if N > 1 else 0.0
    return found


class _Softmax(TorchFunctionMode):
    """Sees every call of torch's own softmax attention."""

    def __init__(self, seen: Callable[[Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            self.seen(args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def _named_layers(model: nn.Module, running: list[str]) -> Iterator[None]:
    """``running``: the names of the modules that are in their forward, outermost first."""
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        hooks.append(module.register_forward_hook(lambda *_: running.pop() and None))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _matrix_of_mhla(q: Tensor, k: Tensor, v: Tensor, mix: Tensor, **options: Any) -> Tensor:
    """``[B, H, N, N]`` in float64."""
    B, S = k.shape[:2]
    ones = torch.eye(S, dtype=torch.float64, device=q.device)[None, :, None].expand(B, -1, k.shape[2], -1)
    den = {name: None if options.get(name) is None else options[name].double() for name in ("q_den", "k_den")}
    options = {**options, **den, "backend": "torch"}
    return functional.attend(q.double(), k.double(), ones, mix.double(), **options).transpose(1, 2)


def _matrix_of_softmax(args: Any, kwargs: Any) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args)), **kwargs, "dropout_p": 0.0}
    q, k = given["query"].double(), given["key"].double()
    ones = torch.eye(k.shape[-2], dtype=torch.float64, device=q.device).expand(*k.shape[:-2], -1, -1)
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        given["attn_mask"] = mask.double()
    attention: Any = getattr(torch.nn.functional, "scaled_dot_product_attention")  # noqa: B009
    return attention(**{**given, "query": q, "key": k, "value": ones})


@torch.no_grad()
def analyze(model: nn.Module, images: Any, *, largest: int = 1024) -> Analysis:
    """Rank and entropy of every attention layer of a model on a batch.

    Sees layers of mhla (:class:`mhla.nn.MHLA`, what :func:`mhla.replace_attention` made, models of :mod:`mhla.hf`) and
    softmax layers that call ``torch.nn.functional.scaled_dot_product_attention``.

    Args:
        model: any module; it runs in evaluation mode.
        images: its input: a tensor, or a dict of keyword arguments. Tokens of a language model serve as well.
        largest: singular values are computed up to so many tokens; 1024 takes about a second a head.

    Returns:
        an :class:`Analysis`: ``rows``, ``mixes``, ``table()`` for pandas, ``save("page.html")``, and text by ``print``.
    """
    running: list[str] = []
    rows: list[dict[str, Any]] = []
    mixes: dict[str, Tensor] = {}
    busy = False

    def note(kind: str, matrix: Callable[[], Tensor]) -> None:
        nonlocal busy
        if busy:  # our own calls
            return
        busy = True
        try:
            A = matrix()
        finally:
            busy = False
        name = running[-1] if running else ""
        if A.shape[-2] == A.shape[-1]:  # not cross-attention
            rows.append(dict(layer=name, attention=kind, tokens=A.shape[-1], heads=A.shape[1], **statistics(A, largest)))

    def of_mhla(q: Tensor, k: Tensor, v: Tensor, mix: Tensor, **options: Any) -> None:
        note("mhla", lambda: _matrix_of_mhla(q, k, v, mix, **options))
        if not busy:
            mixes[running[-1] if running else ""] = mix.detach().float().cpu()

    def of_softmax(args: Any, kwargs: Any) -> None:
        note("softmax", lambda: _matrix_of_softmax(args, kwargs))

    before, was_training = functional._watch, model.training
    model.eval()
    functional._watch = of_mhla
    try:
        with _named_layers(model, running), _Softmax(of_softmax):
            model(**images) if isinstance(images, dict) else model(images)
    finally:
        functional._watch = before
        model.train(was_training)
    if not rows:
        raise RuntimeError("mhla.analyze: the model called no attention that is known here, expected layers of mhla, or softmax "
                           "by torch.nn.functional.scaled_dot_product_attention")  # fmt: skip
    return Analysis(rows, mixes)
