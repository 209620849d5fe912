"""Vision transformers: the attention of timm's ``VisionTransformer`` and of transformers' ``ViTModel``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .core import Grid, GridAttention, Settings


def adopt(new: nn.Module, old: nn.Module) -> None:
    """The parts of the old layer, under their names: projections, norms, dropout."""
    for name, child in old._modules.items():
        new._modules[name] = child
    new.train(old.training)


def device_of(module: nn.Module) -> Any:
    """Where its first parameter is."""
    return next(module.parameters()).device


class TimmAttention(GridAttention):
    """``timm.layers.Attention`` with qkv, norms, gate and proj kept."""

    qkv: Any
    q_norm: Any
    k_norm: Any
    norm: Any
    gate: Any
    proj: Any
    proj_drop: Any

    def __init__(self, old: Any, grid: Grid, settings: Settings, extra: int) -> None:
        super().__init__(grid, settings, extra, device_of(old))
        self.num_heads = old.num_heads
        adopt(self, old)
        self.keep(old)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x ``[B, N, dim]`` to ``[B, N, dim]``."""
        if attn_mask is not None or is_causal:
            raise RuntimeError("mhla: attn_mask or is_causal is given to a replaced attention layer, expected neither")
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        out = self.attend(self.q_norm(q), self.k_norm(k), v).flatten(-2)
        norm, gate = (self._modules.get(name) for name in ("norm", "gate"))
        if norm is not None:
            out = norm(out)
        if gate is not None:
            out = out * gate(x).sigmoid()
        return self.proj_drop(self.proj(out))


class ViTAttention(GridAttention):
    """``transformers.models.vit.ViTAttention`` with its four projections kept."""

    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any

    def __init__(self, old: Any, grid: Grid, settings: Settings, extra: int) -> None:
        super().__init__(grid, settings, extra, device_of(old))
        self.heads = old.num_attention_heads
        adopt(self, old)
        self.keep(old)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """``[B, N, dim]`` to ``[B, N, dim]``, and no attention weights."""
        if attention_mask is not None:
            raise RuntimeError("mhla: attention_mask is given to a replaced attention layer, expected None")
        q, k, v = (part(hidden_states).unflatten(-1, (self.heads, -1)) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.attend(q, k, v).flatten(-2)), None
