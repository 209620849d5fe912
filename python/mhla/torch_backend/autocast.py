"""Autocast, as the different versions of torch ask about it."""

from __future__ import annotations

from typing import Any

import torch

# torch 2.4 and later ask by the type of a device; older ones know the CPU and CUDA.
_BY_TYPE = hasattr(torch, "get_autocast_dtype")


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of autocast on the device, None where it is off."""
    kind = device.type
    if _BY_TYPE:
        if kind == "meta" or not torch.is_autocast_enabled(kind):  # type: ignore[call-arg, unused-ignore]
            return None
        by_type: Any = getattr(torch, "get_autocast_dtype")  # noqa: B009
        return by_type(kind)
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if kind == "cuda" and torch.is_autocast_enabled() else None


def without_autocast(device: torch.device) -> Any:
    """A context in which operators keep the dtypes they are given."""
    return torch.autocast(device.type, enabled=False)
