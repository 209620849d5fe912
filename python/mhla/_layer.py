"""What :class:`mhla.nn.MHLA` is made of: its parameters, and the steps from x to q, k, v and from the heads to the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _backend, feature_maps, torch_backend
from . import rope as rotary
from ._options import check_options
from ._parts import RMSNorm, ShortConv
from ._types import Backend, BeyondMix, Gate, LayerFeatureMap, Normalizer
from .mixing import constrain_mix_, init_causal_mix, init_mix, with_extra


class AttentionLayer(nn.Module):
    """The parameters of the layer and its steps; :class:`mhla.nn.MHLA` says what they mean."""

    # Modules, or None where the layer does not have the part: _inner_norm, _qk_norm and the like say which.
    norm: Any
    q_norm: Any
    k_norm: Any
    q_conv: Any
    k_conv: Any
    v_conv: Any
    feature_map_q: Any
    feature_map_k: Any
    lepe: Any
    gate: Any
    head_norm: Any

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        block_size: int | None = None,
        grid: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
        causal: bool = False,
        chunk: int = 64,
        max_tokens: int = 2048,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        qkv_bias: bool = False,
        out_bias: bool = True,
        inner_norm: bool = False,
        qk_norm: bool = False,
        qk_norm_eps: float | None = None,
        short_conv: int = 0,
        feature_map: LayerFeatureMap = "relu_eps",
        rope: bool = False,
        rope_base: float = 10000.0,
        normalizer: Normalizer | None = None,
        eps: float = 1e-6,
        scale: float | None = None,
        head_norm: bool = False,
        norm_eps: float = 1e-6,
        gate: Gate | None = None,
        gate_bias: bool = False,
        lepe: int = 0,
        lepe_inside_gate: bool = False,
        mix: str | None = None,
        mix_official: bool = False,
        mix_exp_sigma: float = 3.0,
        mix_local_threshold: float = 1.5,
        mix_per_head: bool = False,
        learn_mix: bool = True,
        mix_range: tuple[float, float] | None = (0.0, 1.0),
        official_causal_clamp: bool = False,
        beyond_mix: BeyondMix = "error",
        extra_tokens: int = 0,
        backend: Backend | None = None,
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not _backend.plain(backend, "MHLA: backend"):
            _backend.kernels()  # here, not in the first forward: ImportError where there is no library
        self.backend, self.extra_tokens, self.max_tokens = backend, extra_tokens, max_tokens
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_options(
            dim=dim, num_heads=num_heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim, block_size=block_size,
            grid=grid, blocks=blocks, causal=causal, chunk=chunk, max_tokens=max_tokens, short_conv=short_conv,
            feature_map=feature_map, gate=gate, lepe=lepe, lepe_inside_gate=lepe_inside_gate, mix_official=mix_official,
            mix_range=mix_range, official_causal_clamp=official_causal_clamp, beyond_mix=beyond_mix,
            extra_tokens=extra_tokens, normalizer=normalizer,
        )  # fmt: skip
        self.dim, self.num_heads, self.num_kv_heads = dim, num_heads, kv_heads
        self.head_dim = dim // num_heads if head_dim is None else head_dim
        self.value_dim = dim // num_heads if value_dim is None else value_dim
        self.block_size, self.causal, self.chunk = block_size, causal, chunk
        self.grid = None if grid is None else tuple(grid)
        self.blocks = None if blocks is None else tuple(blocks)
        self.feature_map, self.rope, self.rope_base = feature_map, rope, rope_base
        self.normalizer = normalizer or ("none" if causal else "paper")
        self.eps, self.scale, self.beyond_mix = eps, scale, beyond_mix
        self.lepe_inside_gate, self.mix_range, self.official_causal_clamp = (
            lepe_inside_gate,
            mix_range,
            official_causal_clamp,
        )

        like = {"device": device, "dtype": dtype}
        widths = (num_heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.value_dim)
        self.widths = widths
        # q, k and v are heads of one size, and nothing stands between them and their projection.
        same_heads = num_heads == self.num_kv_heads and self.head_dim == self.value_dim
        self._alike = same_heads and not (qk_norm or short_conv)
        value_width = num_heads * self.value_dim
        # Asking a module for a part that it does not have is slow: these say what there is.
        self._inner_norm, self._qk_norm = inner_norm, qk_norm
        self._bare_output = not (gate or head_norm or lepe)
        self._maps_outside = rope or feature_map not in feature_maps.FUSED  # whether features are made here
        self.norm = nn.LayerNorm(dim, **like) if inner_norm else None
        self.qkv = nn.Linear(dim, sum(widths), bias=qkv_bias, **like)
        self.q_norm = RMSNorm(widths[0], qk_norm_eps, backend, **like) if qk_norm else None
        self.k_norm = RMSNorm(widths[1], qk_norm_eps, backend, **like) if qk_norm else None
        self.short_conv = short_conv
        convolutions = [ShortConv(width, short_conv, **like) if short_conv else None for width in widths]
        self.q_conv, self.k_conv, self.v_conv = convolutions
        self.feature_map_q = self.feature_map_k = None
        if feature_map in feature_maps.LEARNABLE:
            make = feature_maps.LEARNABLE[feature_map]
            self.feature_map_q, self.feature_map_k = make(self.head_dim, **like), make(self.head_dim, **like)
        self.lepe = self._make_lepe(lepe, widths[2], like)
        self.gate_activation = gate
        self.gate = nn.Linear(dim, value_width, bias=gate_bias, **like) if gate else None
        self.head_norm = RMSNorm(self.value_dim, norm_eps, backend, **like) if head_norm else None
        self.out = nn.Linear(value_width, dim, bias=out_bias, **like)
        self.dropout = nn.Dropout(dropout)

        if causal:
            init: Any = mix or "prefix"
            values = init_causal_mix(math.ceil(max_tokens / chunk), init, exp_sigma=mix_exp_sigma)
        else:
            counts = [math.ceil(max_tokens / block_size)] if block_size is not None else blocks
            transform: Any = mix or "linear"
            values = init_mix(counts or (), transform, official=mix_official, exp_sigma=mix_exp_sigma,
                              local_threshold=mix_local_threshold)  # fmt: skip
        if extra_tokens:
            values = with_extra(values)
        if mix_per_head:
            values = values.expand(num_heads, -1, -1).clone()
        # float32 whatever the layer's dtype: the kernels mix in it.
        wide = (torch.get_default_dtype() if dtype is None else dtype) == torch.float64
        place = torch.empty(0).device if device is None else device  # that of a context, where there is one
        self.mix = nn.Parameter(
            values.to(device=place, dtype=torch.float64 if wide else torch.float32), requires_grad=learn_mix
        )
        self._tables: rotary.Tables = {}  # of rotary positions, by device and dtype; made where they are needed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}  # a copy may go to another device

    def _expect(self, x: Tensor, batch: int | None = None, packed: bool = False) -> None:
        if not isinstance(x, Tensor):
            raise RuntimeError(f"MHLA: x is a {type(x).__module__}.{type(x).__name__}, expected a torch.Tensor")
        if x.dim() != 3 or x.shape[2] != self.dim or batch not in (None, x.shape[0]):
            raise RuntimeError(
                f"MHLA: x has shape {list(x.shape)}, expected [{'B' if batch is None else batch}, N, {self.dim}]"
            )
        tokens = x.shape[1] - self.extra_tokens
        extra = f" after {self.extra_tokens} extra tokens" if self.extra_tokens else ""
        if self.grid is not None and tokens != math.prod(self.grid):
            raise RuntimeError(
                f"MHLA: x has {tokens} tokens{extra}, expected {math.prod(self.grid)} of grid {self.grid}; "
                "for another size use layer.resize(grid)"
            )
        if self.grid is None and batch is None and not packed and self.beyond_mix == "error" and tokens > self._most_tokens:
            raise RuntimeError(f"MHLA: x has {tokens} tokens{extra}, expected at most max_tokens = {self.max_tokens}")

    def _expect_context(self, context: Tensor, batch: int, cu_seqlens: Tensor | None) -> None:
        """Keys and values of other tokens, whose places are not those of x."""
        has = [name for name, there in (("a grid", self.grid is not None), ("causal=True", self.causal), ("rope", self.rope),
               ("extra_tokens", bool(self.extra_tokens)), ("cu_seqlens", cu_seqlens is not None)) if there]  # fmt: skip
        if has:
            raise RuntimeError(f"MHLA: context with {', '.join(has)}, expected a 1D layer (block_size) without")
        self._expect(context, batch, packed=True)
        if context.shape[1] > self._most_tokens:
            raise RuntimeError(f"MHLA: context has {context.shape[1]} tokens, expected at most max_tokens = {self.max_tokens}")

    def _refuse(self, others: dict[str, Any]) -> None:
        """Keyword arguments of other attention layers are nothing to us, unless they would change the result."""
        for name, value in others.items():
            if value is None or value is False or (name == "is_causal" and self.causal):
                continue
            hint = "key_padding_mask hides padding, causal=True later tokens" if "mask" in name else "MHLA does not know it"
            raise RuntimeError(f"MHLA: {name} is given, expected None ({hint})")

    def _clamp(self) -> None:
        if self.official_causal_clamp:  # through .data: a backward pass that is still to come saw the same numbers
            constrain_mix_(self.mix.data, 1e-5, 1.0)

    def _make_lepe(self, kernel: int, channels: int, like: dict[str, Any]) -> nn.Module | None:
        if self.grid is None or not kernel:
            return None
        conv = nn.Conv2d if len(self.grid) == 2 else nn.Conv3d
        return conv(channels, channels, kernel, padding=kernel // 2, groups=channels, **like)

    @property
    def _most_tokens(self) -> int:
        """Tokens that mix has rows for: max_tokens, rounded up to whole blocks."""
        return (self.mix.shape[-1] - (1 if self.extra_tokens else 0)) * (self.chunk if self.causal else self.block_size or 1)

    @property
    def _feature_size(self) -> int:
        return self.head_dim if self.feature_map_q is None else self.feature_map_q.growth * self.head_dim

    def _project(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        tails: Sequence[Tensor] = (),
        both: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the gate sees, and q, k, v by heads: slices of one product where nothing stands between. ``tails``: tokens
        that short convolutions have seen; ``both`` gets them with those of x."""
        y = self.norm(x) if self._inner_norm else x
        qkv = self.qkv(y)
        if self._alike:  # one view instead of four
            q, k, v = qkv.view(x.shape[0], x.shape[1], 3, self.num_heads, self.head_dim).unbind(2)
            return y, q, k, v
        q, k, v = qkv.split(self.widths, -1)
        if self.short_conv:
            parts: tuple[Tensor, ...] = (q, k, v)
            count = x.shape[1]
            if tails and both is not None:
                both.extend(torch.cat(pair, 1) for pair in zip(tails, parts))
                parts = tuple(tokens[:, max(0, tokens.shape[1] - count - self.short_conv + 1) :] for tokens in both)
            convolutions = zip((self.q_conv, self.k_conv, self.v_conv), parts)
            q, k, v = (conv(part, positions)[:, part.shape[1] - count :].contiguous() for conv, part in convolutions)
        if self._qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        heads = ((q, self.num_heads), (k, self.num_kv_heads), (v, self.num_kv_heads))
        return (y, *(part.unflatten(-1, (count, -1)) for part, count in heads))

    def _features(self, q: Tensor, k: Tensor, positions: Tensor | None, count: int | None = None) -> dict[str, Any]:
        """``positions`` are all below ``count``; None: 0, 1, 2, ... of all tokens."""
        if not self._maps_outside:
            return {"q": q, "k": k, "feature_map": self.feature_map}
        feature_map = self.feature_map if self.feature_map_q is None else "identity"
        if self.feature_map_q is not None:
            q, k = self.feature_map_q(q), self.feature_map_k(k)
        if not self.rope:
            return {"q": q, "k": k, "feature_map": "identity"}
        den = {}
        if self.normalizer != "none":  # which sees the features unrotated
            phi, feature_map = feature_maps.FUSED[feature_map], "identity"
            q, k = phi(q), phi(k)
            den = {"q_den": q, "k_den": k}
        tokens = q.shape[1] if count is None else count
        cos, sin = rotary.table(self._tables, self.grid, self._feature_size, self.rope_base, positions, tokens, q)
        if self.extra_tokens:  # which have no place on the grid, and do not turn
            cos, sin = (F.pad(x[: tokens - self.extra_tokens], (0, 0, self.extra_tokens, 0), value=at)
                        for x, at in ((cos, 1.0), (sin, 0.0)))  # fmt: skip
        turn = torch_backend.rope if _backend.plain(self.backend) else _backend.kernels().rope
        q, k = turn(q, k, cos, sin, self.grid is None, feature_map)
        return {"q": q, "k": k, "feature_map": "identity", **den}

    def _finish(self, y: Tensor, v: Tensor, out: Tensor) -> Tensor:
        out = self.out(out.flatten(-2) if self._bare_output else self._gated(y, v, out))
        return self.dropout(out) if self.training and self.dropout.p > 0 else out

    def _gated(self, y: Tensor, v: Tensor, out: Tensor) -> Tensor:
        """Norm, gate and LePE of the heads' output, ``[B, N, H * E]``."""
        lepe_inside = self.lepe is not None and self.lepe_inside_gate
        gate = None if self.gate is None else self.gate(y)
        in_norm = gate is not None and self.head_norm is not None and self.gate_activation == "silu" and not lepe_inside
        if self.head_norm is not None:
            out = self.head_norm(out, gate.view_as(out) if gate is not None and in_norm else None)
        out = out.flatten(-2)
        if lepe_inside:
            out = out + self._lepe_of(v)
        if gate is not None and not in_norm:
            out = out * (F.silu(gate) if self.gate_activation == "silu" else gate)
        if self.lepe is not None and not self.lepe_inside_gate:
            out = out + self._lepe_of(v)
        return out

    def _lepe_of(self, v: Tensor) -> Tensor:
        """The convolution of v over the grid, ``[B, N, H * E]``: query heads that share a value head share it too."""
        raster = v[:, self.extra_tokens :].flatten(-2).transpose(1, 2).unflatten(-1, self.grid)
        local = self.lepe(raster).flatten(2).transpose(1, 2)
        if self.extra_tokens:
            local = F.pad(local, (0, 0, self.extra_tokens, 0))
        if self.num_kv_heads == self.num_heads:
            return local
        shared = local.unflatten(-1, (self.num_kv_heads, self.value_dim))
        return shared.repeat_interleave(self.num_heads // self.num_kv_heads, 2).flatten(-2)
