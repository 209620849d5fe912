"""Attention processors for diffusers: ``DiTTransformer2DModel``, ``SanaTransformer2DModel`` and ``WanTransformer3DModel``.

The layers of the model stay as they are, with their projections and norms: LoRA, offloading and pipelines see nothing new
but the processors, which own the mixing matrices.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..feature_maps import FUSED
from .core import Grid, GridAttention, Settings, turn
from .vision import device_of


class Layer:
    """The attention layer that a processor is called for. Hooks that move the arguments of a module to a device
    (offloading of accelerate) must not move a layer, whose weights may be nowhere yet."""

    def __init__(self, attn: Any) -> None:
        self.attn = attn


class Processor(GridAttention):
    """An attention processor, called with the layer that it belongs to."""

    def __init__(self, attn: Any, grid: Grid, settings: Settings, extra: int) -> None:
        super().__init__(grid, settings, extra, device_of(attn))
        self.keep(attn.processor)

    def __call__(self, attn: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(Layer(attn), *args, **kwargs)

    @staticmethod
    def refuse(encoder_hidden_states: Tensor | None, attention_mask: Tensor | None) -> None:
        """Self-attention alone."""
        for name, value in (("encoder_hidden_states", encoder_hidden_states), ("attention_mask", attention_mask)):
            if value is not None:
                raise RuntimeError(f"mhla: {name} is given to a replaced attention layer, expected None")

    @staticmethod
    def finish(attn: Any, out: Tensor) -> Tensor:
        """The heads' output ``[B, N, H, E]`` through the output projection."""
        return attn.to_out[1](attn.to_out[0](out.flatten(-2)))


class DiTProcessor(Processor):
    """Norms of q and k over each head."""

    def forward(
        self,
        layer: Layer,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        """``[B, N, dim]`` to ``[B, N, dim]``."""
        self.refuse(encoder_hidden_states, attention_mask)
        attn = layer.attn
        q, k, v = (part(hidden_states).unflatten(-1, (attn.heads, -1)) for part in (attn.to_q, attn.to_k, attn.to_v))
        q = q if attn.norm_q is None else attn.norm_q(q)
        k = k if attn.norm_k is None else attn.norm_k(k)
        out = self.finish(attn, self.attend(q, k, v))
        if attn.residual_connection:
            out = out + hidden_states
        return out / attn.rescale_output_factor


class SanaProcessor(Processor):
    """Norms of q and k over their full width."""

    def forward(
        self,
        layer: Layer,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """``[B, N, dim]`` to ``[B, N, dim]``."""
        self.refuse(encoder_hidden_states, attention_mask)
        attn = layer.attn
        q, k, v = (part(hidden_states) for part in (attn.to_q, attn.to_k, attn.to_v))
        q = q if attn.norm_q is None else attn.norm_q(q)
        k = k if attn.norm_k is None else attn.norm_k(k)
        return self.finish(attn, self.attend(*(part.unflatten(-1, (attn.heads, -1)) for part in (q, k, v))))


class WanProcessor(Processor):
    """Norms over the full width, rotary positions in three dimensions, which the normaliser does not see."""

    def forward(
        self,
        layer: Layer,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        """``[B, N, dim]`` to ``[B, N, dim]``; cos and sin ``[1, N, 1, D]``, each value twice."""
        self.refuse(encoder_hidden_states, attention_mask)
        attn = layer.attn
        if getattr(attn, "fused_projections", False):
            q, k, v = attn.to_qkv(hidden_states).chunk(3, -1)
        else:
            q, k, v = (part(hidden_states) for part in (attn.to_q, attn.to_k, attn.to_v))
        q, k, v = (part.unflatten(-1, (attn.heads, -1)) for part in (attn.norm_q(q), attn.norm_k(k), v))
        if rotary_emb is None:
            return self.finish(attn, self.attend(q, k, v))
        phi = FUSED[self.settings.feature_map]
        q, k = phi(q), phi(k)
        cos, sin = rotary_emb[0][0, :, 0, 0::2], rotary_emb[1][0, :, 0, 1::2]
        turned = turn(q, k, cos, sin, False, self.settings.backend)
        return self.finish(attn, self.attend(*turned, v, q, k))
