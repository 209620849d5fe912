"""Mixing matrices of a whole model, held in their range after optimiser steps."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .mixing import constrain_mix_


class Limits(NamedTuple):
    """Arguments of :func:`mhla.constrain_mix_`."""

    lo: float = 0.0
    hi: float = 1.0
    causal: bool = False


class Constrained:
    """A module with a mixing matrix and the range that it must stay in."""

    mix: nn.Parameter

    def limits(self) -> Limits | None:
        """The range of its mixing matrix; None leaves it free."""
        raise NotImplementedError

    def constrain_(self) -> None:
        """Holds the mixing matrix in its range: call it after every optimiser step."""
        limits = self.limits()
        if limits is not None:
            constrain_mix_(self.mix, limits.lo, limits.hi, causal=limits.causal)


def constrain_(model: nn.Module) -> int:
    """Holds the mixing matrices of all MHLA layers of ``model`` in their ranges, in place. Returns how many layers there are.

    Call it after every optimiser step, or once :func:`constrain_after_step` instead.
    """
    layers = [module for module in model.modules() if isinstance(module, Constrained)]
    alike: dict[Any, list[Tensor]] = {}
    for layer in layers:
        limits = layer.limits()
        if limits is None:
            continue
        mix = layer.mix
        whole = type(mix) in (Tensor, nn.Parameter) and mix.dim() > 1  # no shard of one
        single = None if whole else id(mix)
        alike.setdefault((limits, mix.shape, mix.dtype, mix.device, single), []).append(mix)
    for (limits, *_), matrices in alike.items():
        _constrain_all_(matrices, limits)
    return len(layers)


@torch.no_grad()
def _constrain_all_(matrices: list[Tensor], limits: Limits) -> None:
    """As one tensor: on a GPU each of the few operations is started once, not once per layer."""
    if len(matrices) == 1:
        constrain_mix_(matrices[0], limits.lo, limits.hi, causal=limits.causal)
        return
    held = constrain_mix_(torch.stack(matrices), limits.lo, limits.hi, causal=limits.causal).unbind()
    copy: Any = getattr(torch, "_foreach_copy_", None)  # torch 2.2 and later
    if copy is not None:
        copy(matrices, list(held))
        return
    for mix, value in zip(matrices, held):
        mix.copy_(value)


class _Step:
    """What optimisers of old versions have instead of a hook that stays: their ``step``, and the constraint."""

    def __init__(self, optimizer: Any, model: nn.Module) -> None:
        self._optimizer, self._step = optimizer, optimizer.step

        @functools.wraps(self._step)
        def step(*args: Any, **kwargs: Any) -> Any:
            result = self._step(*args, **kwargs)
            constrain_(model)
            return result

        optimizer.step = step

    def remove(self) -> None:
        self._optimizer.step = self._step


def constrain_after_step(optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
    """Calls :func:`constrain_` after every step of ``optimizer``. Returns a handle; ``handle.remove()`` ends it.

    Example::

        optimizer = torch.optim.AdamW(model.parameters())
        mhla.constrain_after_step(optimizer, model)
    """
    hook = getattr(optimizer, "register_step_post_hook", None)
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if hook is None or release < (2, 6):  # importing torch._dynamo of 2.2 takes the hooks of all optimisers away
        return _Step(optimizer, model)
    return hook(lambda *_: constrain_(model) and None)
