"""Which implementation runs: the compiled kernels, or plain torch code.

The kernels are the default. Nothing falls back by itself: without the compiled library a call that wants it raises
ImportError, which names ``backend="torch"``.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

from . import _fake, _library, flop_counter
from ._types import Backend

NAMES: tuple[Backend, ...] = ("kernels", "torch")


class Kernels(NamedTuple):
    """The operators themselves: through torch.ops.mhla every call would look for the overload again."""

    bidirectional: Any
    chunkwise: Any
    norm: Any
    rope: Any


_plain_by_default: bool | None = None  # None: not asked yet
_loaded: Kernels | None = None
_reason = ""  # why there is no library


def load() -> None:
    """Loads the compiled library where it is there and fits; the reason where not is kept for :func:`kernels`."""
    global _loaded, _reason
    try:
        _library.load()
    except ImportError as error:
        _reason = str(error)
        return
    _fake.register()
    flop_counter.register()
    ops = torch.ops.mhla
    _loaded = Kernels(ops.bidirectional.default, ops.chunkwise.default, ops.norm.default, ops.rope.default)


def available() -> bool:
    """Whether there is a compiled library for this torch."""
    return _loaded is not None


def kernels() -> Kernels:
    """The compiled operators, or ImportError with the reason."""
    if _loaded is None:
        raise ImportError(
            f'{_reason}; or use the pure-torch implementation: backend="torch", or mhla.set_backend("torch") for all calls'
        )
    return _loaded


def check(name: object, what: str) -> None:
    if name is not None and name not in NAMES:
        raise RuntimeError(f"{what} is {name!r}, expected one of {', '.join(NAMES)}")


def set_backend(name: Backend | None) -> None:
    """What runs where no ``backend`` is given: ``"kernels"`` (compiled) or ``"torch"`` (plain torch code).

    None goes back to the environment variable ``MHLA_BACKEND``, and without it to ``"kernels"``.
    """
    global _plain_by_default
    check(name, "set_backend: name")
    _plain_by_default = None if name is None else name == "torch"


def get_backend() -> Backend:
    """What runs where no ``backend`` is given."""
    global _plain_by_default
    if _plain_by_default is None:
        named = os.environ.get("MHLA_BACKEND") or "kernels"
        check(named, "MHLA_BACKEND")
        _plain_by_default = named == "torch"
    return "torch" if _plain_by_default else "kernels"


def plain(backend: Backend | None, what: str = "mhla: backend") -> bool:
    """Whether the pure-torch implementation runs."""
    if backend is None:
        return get_backend() == "torch" if _plain_by_default is None else _plain_by_default
    check(backend, what)
    return backend == "torch"
