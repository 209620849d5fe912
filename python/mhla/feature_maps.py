"""Feature maps of q and k: those the kernels fuse, and the learnable ones of the language models, which work on each
head's channels and may change their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_eps": lambda x: x.relu() + 1e-6,
    "relu": torch.relu,
    "elu1": lambda x: F.elu(x) + 1,
    "identity": lambda x: x,
}


class T2R(nn.Module):
    """relu(W x): D channels."""

    growth = 1

    def __init__(self, head_dim: int, **like: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(head_dim, head_dim, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


class Hedgehog(nn.Module):
    """softmax([2 y, -2 y]), y = W x + b with W = I and b = 0 at first: 2 D channels."""

    growth = 2

    def __init__(self, head_dim: int, **like: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(head_dim, head_dim, **like)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = 2 * self.layer(x)
        return torch.cat([y, -y], -1).softmax(-1)


class Hadamard(nn.Module):
    """(W1 x + b1) * (W2 x + b2): D channels."""

    growth = 1

    def __init__(self, head_dim: int, **like: Any) -> None:
        super().__init__()
        self.layer1 = nn.Linear(head_dim, head_dim, **like)
        self.layer2 = nn.Linear(head_dim, head_dim, **like)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(x) * self.layer2(x)


class DPFP(nn.Module):
    """[r r^(1), ..., r r^(4)], r = [relu(x), relu(-x)], r^(j) rolled by j; nothing to learn: 8 D channels."""

    growth = 8

    def __init__(self, head_dim: int, **like: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        r = torch.cat([x.relu(), (-x).relu()], -1)
        return torch.cat([r * r.roll(j, -1) for j in range(1, 5)], -1)


LEARNABLE = {"t2r": T2R, "hedgehog": Hedgehog, "hadamard": Hadamard, "dpfp": DPFP}
NAMES = (*FUSED, *LEARNABLE)
