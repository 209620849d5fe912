"""Mixing matrices of a whole model, held in their range after optimiser steps."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


class Constrained:
    """A module with a mixing matrix and the range that it must stay in."""

    def constrain_(self) -> None:
        """Holds the mixing matrix in its range: call it after every optimiser step."""
        raise NotImplementedError


def constrain_(model: nn.Module) -> int:
    """Holds the mixing matrices of all MHLA layers of ``model`` in their ranges, in place. Returns how many layers there are.

    Call it after every optimiser step, or once :func:`constrain_after_step` instead.
    """
    layers = [module for module in model.modules() if isinstance(module, Constrained)]
    for layer in layers:
        layer.constrain_()
    return len(layers)


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
