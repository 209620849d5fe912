"""What torch.compile asks of the operators: shapes without numbers, also where cu_seqlens is in host memory and q is not.

The library has shape-only kernels of its own, but PyTorch lets no such kernel see tensors of two devices.
"""

from __future__ import annotations

from typing import Any

import torch

GRADIENTS = ("q", "k", "v", "mix", "q_den", "k_den")


def _check(shape_of: Any, given: dict[str, Any]) -> None:
    """Asks the library, which checks them too, where all sizes are numbers."""
    device = given["q"].device
    for name in GRADIENTS:
        if given[name] is not None and given[name].device != device:
            raise RuntimeError(f"mhla.attention: {name} is on {given[name].device}, expected {device} like q")
    bounds = given["cu_seqlens"]
    if bounds is not None and bounds.device != device and bounds.device.type != "cpu":
        raise RuntimeError(f"mhla.attention: cu_seqlens is on {bounds.device}, expected host memory, or {device} like q")
    tensors = [x for x in given.values() if isinstance(x, torch.Tensor)]
    if any(not isinstance(size, int) for x in tensors for size in (*x.shape, *x.stride())):
        return
    from torch._subclasses import fake_tensor  # of PyTorch 2, as register_fake: older stubs do not know them

    with fake_tensor.unset_fake_temporarily():  # type: ignore[attr-defined, unused-ignore]
        shapes = {
            name: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x
            for name, x in given.items()
        }
        shape_of(**shapes)


def _register(op: Any, maybe_shape_of: Any = None) -> None:
    """``maybe_shape_of`` is the library's answer; None for a backward."""
    names = [argument.name for argument in op._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in op._schema.arguments if argument.has_default_value()}

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args)), **kwargs}
        if maybe_shape_of is None:
            wanted = (given[name] for name, asked in zip(GRADIENTS, given["wanted"]) if asked)
            return [x.new_empty(x.shape) for x in wanted]
        _check(maybe_shape_of, given)
        q, v = given["q"], given["v"]
        return q.new_empty((*q.shape[:3], v.shape[3]))

    register_fake: Any = getattr(torch.library, "register_fake")  # noqa: B009
    register_fake(op._schema.name, fake, allow_override=True)


def possible() -> bool:
    """Whether this PyTorch lets such a function replace one of C++. 2.5 does not, 2.11 does."""
    return "allow_override" in (getattr(getattr(torch.library, "register_fake", None), "__kwdefaults__", None) or {})


def register() -> None:
    """Where it is possible; otherwise the library's own kernels answer."""
    if not possible():
        return
    for name in ("bidirectional", "chunkwise"):
        _register(getattr(torch.ops.mhla, name).default, getattr(torch.ops.mhla, f"{name}_shape"))
        _register(getattr(torch.ops.mhla, f"{name}_backward").default)
