"""The causal attention of transformers' ``LlamaForCausalLM``.

In training, and for a prompt without padding, it is the chunkwise operator. With a cache of earlier keys, or with padding,
each new query weighs all keys: the cache of transformers holds features and values, so that greedy search, beams and
cropping work, at the memory that softmax attention takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..feature_maps import FUSED
from ..functional import attend
from ..mixing import init_causal_mix
from .core import Grid, Replaced, Settings, turn
from .rows import visible, weigh
from .vision import adopt, device_of


class LlamaAttention(Replaced):
    """``transformers.models.llama.LlamaAttention`` with its four projections kept. Rotary positions turn the features in the
    numerator; the normaliser sees them unturned."""

    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any

    def __init__(self, old: Any, grid: Grid, settings: Settings, extra: int) -> None:
        super().__init__()
        if settings.block_size is None or len(settings.block_size) != 1:
            raise RuntimeError("replace_attention: a causal model is cut into chunks, expected block_size=64 or another number")
        self.settings, self.chunk = settings, settings.block_size[0]
        self.layer_idx, self.head_dim = old.layer_idx, old.head_dim
        tokens = settings.max_tokens or min(old.config.max_position_embeddings, 4096)
        init: Any = settings.mix or "prefix"
        self.mix = nn.Parameter(init_causal_mix(-(-tokens // self.chunk), init).to(device_of(old)))
        adopt(self, old)
        self.keep(old)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """``[B, T, dim]`` to ``[B, T, dim]``, and no attention weights."""
        assert position_embeddings is not None
        phi, s = FUSED[self.settings.feature_map], self.settings
        q, k, v = (part(hidden_states).unflatten(-1, (-1, self.head_dim)) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k = phi(q), phi(k)
        cos, sin = (x[..., : self.head_dim // 2].expand(q.shape[0], -1, -1) for x in position_embeddings)
        q_turned, k_turned = turn(q, k, cos.float(), sin.float(), True, s.backend)
        if past_key_values is not None:
            held = torch.cat([k_turned, k], -1).transpose(1, 2)  # [B, Hkv, T, 2 D]
            held, values = past_key_values.update(held, v.transpose(1, 2), self.layer_idx)
            k_turned, k = held.transpose(1, 2).split(self.head_dim, -1)
            v = values.transpose(1, 2)
        if attention_mask is None and k.shape[1] == q.shape[1]:
            normalized = s.normalizer != "none"
            mix = self.mix.double() if q.dtype == torch.float64 else self.mix
            out = attend(
                q_turned, k_turned.contiguous(), v.contiguous(), mix, block_size=self.chunk, grid=None, blocks=None,
                causal=True, normalizer=s.normalizer, feature_map="identity", eps=s.eps, beyond_mix="extend",
                backend=s.backend, q_den=q if normalized else None, k_den=k.contiguous() if normalized else None,
            )  # fmt: skip
        else:
            none = s.normalizer == "none"
            out = weigh(
                q_turned, k_turned, v, self.mix, self.chunk, visible(attention_mask, q.shape[1], k.shape[1], q), eps=s.eps,
                scale=self.head_dim**-0.5 if none else 1.0, q_den=None if none else q, k_den=None if none else k,
            )  # fmt: skip
        return self.o_proj(out.flatten(-2)), None
