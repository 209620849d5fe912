"""``MHLA``: the attention layer, instead of softmax attention. The parameters have the names of the C++ module
``mhla::MhlaAttention``, so weights go both ways; :mod:`mhla.convert` knows the published names."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import rope as rotary
from ._constrain import Constrained, Limits
from ._layer import AttentionLayer
from ._packed import over_grids
from ._parts import RMSNorm, ShortConv
from .functional import attend
from .mixing import resample_mix
from .streaming import StreamingState
from .torch_backend.checks import check_layout

__all__ = ["MHLA", "RMSNorm", "ShortConv"]


class MHLA(AttentionLayer, Constrained):
    """Multi-head linear attention with its projections. Input and output are ``[B, N, dim]``, tokens in raster order.

    The layout is ``block_size`` (1D), ``grid`` and ``blocks`` (2D, 3D), or ``causal=True`` with ``chunk``. 1D and
    causal layers serve sequences of up to ``max_tokens``;
    a grid can be changed with :meth:`resize`. :meth:`image`, :meth:`dit`, :meth:`video` and :meth:`lm` are the
    published settings, with ``official=True`` to the last deviation of the published code.

    Args:
        dim: channels C.
        num_heads: H. ``num_kv_heads`` (H unless told) divides it.
        head_dim, value_dim: D and E per head; dim / H unless told.
        qkv_bias, out_bias, gate_bias: biases of the projections.
        inner_norm: a LayerNorm before the projections, as the published image code has.
        qk_norm: RMSNorm of q and of k over their full width; ``qk_norm_eps`` None is the dtype's epsilon.
        short_conv: taps of a causal convolution with SiLU on q, k and v (causal layers); 0: none.
        feature_map: one of ``mhla.feature_maps.NAMES``: fused with the operator, such as ``relu_eps``, or learned per
            head, such as ``hedgehog``.
        rope: rotates the features in the numerator; the normaliser, if any, sees them unrotated.
        normalizer, eps, scale: as in :func:`mhla.attention`.
        head_norm: RMSNorm over each head's output, ``norm_eps``.
        gate: ``silu`` or ``linear``: the output times act(x W_g). LePE is added after it, with ``lepe_inside_gate``
            before.
        lepe: kernel size of a depth-wise convolution of v over the grid (2D, 3D), added to the output; 0: none.
        mix: initial values: ``linear``, ``cos``, ``exp``, ``gaussian``, ``local``, ``uniform``; in a causal layer
            ``prefix``, ``linear``, ``exp``.
        mix_official: normalised as in the published code.
        mix_per_head: ``[H, M, M]``. learn_mix: whether it has a gradient.
        mix_range: what :meth:`constrain_` clips mix to after an optimiser step; None leaves it free.
        official_causal_clamp: clips mix to [1e-5, 1] before every forward, as the published language model does.
        extra_tokens: so many tokens before the grid (class token, registers): a block of their own, row and column 0 of mix.
            They are not rotated and have no LePE.
        backend: ``"kernels"`` or ``"torch"``, as in :func:`mhla.attention`.
        dropout: after the output projection, in training.
        dtype: of all parameters but mix, which is float32 for the kernels (float64 with float64).
            ``layer.to(torch.bfloat16)`` narrows mix as well; it works, but every pass widens it again.
    """

    # ---- The published settings

    @classmethod
    def image(
        cls,
        dim: int,
        num_heads: int,
        grid: Sequence[int],
        blocks: Sequence[int],
        *,
        official: bool = False,
        **options: Any,
    ) -> MHLA:
        """Image classification: qk-norm, LePE 5x5. official: inner LayerNorm, its normaliser and mix."""
        settings = dict(
            qk_norm=True,
            lepe=5,
            inner_norm=official,
            mix_official=official,
            normalizer="official" if official else "paper",
        )
        return cls(dim, num_heads, grid=grid, blocks=blocks, **{**settings, **options})

    @classmethod
    def dit(
        cls,
        dim: int,
        num_heads: int,
        grid: Sequence[int],
        blocks: Sequence[int],
        *,
        official: bool = False,
        **options: Any,
    ) -> MHLA:
        """DiT: biases, LePE 3x3. official: inner LayerNorm, its normaliser and mix, dropout 0.1."""
        settings = dict(qkv_bias=True, lepe=3, inner_norm=official, mix_official=official, dropout=0.1 if official else 0.0,
                        normalizer="official" if official else "paper")  # fmt: skip
        return cls(dim, num_heads, grid=grid, blocks=blocks, **{**settings, **options})

    @classmethod
    def video(
        cls,
        dim: int,
        num_heads: int,
        grid: Sequence[int],
        blocks: Sequence[int],
        *,
        official: bool = False,
        gated: bool = False,
        **options: Any,
    ) -> MHLA:
        """Wan: biases, qk-norm, 3D RoPE, no normaliser but an RMSNorm per head. official: its mix, unconstrained."""
        settings = dict(qkv_bias=True, qk_norm=True, qk_norm_eps=1e-6, rope=True, head_norm=True, normalizer="none",
                        gate="silu" if gated else None, gate_bias=True, mix_official=official,
                        mix_range=None if official else (0.0, 1.0))  # fmt: skip
        return cls(dim, num_heads, grid=grid, blocks=blocks, **{**settings, **options})

    @classmethod
    def lm(
        cls,
        dim: int,
        num_heads: int,
        *,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        gated: bool = True,
        official: bool = False,
        **options: Any,
    ) -> MHLA:
        """The language model's layer: causal, ReLU, RoPE behind it, RMSNorm per head times SiLU(gate), no biases."""
        settings = dict(causal=True, head_dim=int(dim * expand_k) // num_heads, value_dim=int(dim * expand_v) // num_heads,
                        out_bias=False, feature_map="relu", rope=True, head_norm=True, gate="silu" if gated else None,
                        official_causal_clamp=official)  # fmt: skip
        return cls(dim, num_heads, **{**settings, **options})

    # ---- Forward

    def forward(
        self,
        x: Tensor,
        cu_seqlens: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
        grids: Sequence[Sequence[int]] | None = None,
        **others: Any,
    ) -> Tensor:
        """x ``[B, N, dim]`` to ``[B, N, dim]``; N counts ``extra_tokens`` too, which come first.

        Args:
            x: the tokens, in raster order.
            cu_seqlens: ``[S + 1]``: B = 1 holds packed sequences (1D and causal).
            key_padding_mask: ``[B, N]`` bool, True for padding that no token may see; of ``context``, where it is given.
            context: ``[B, S, dim]``: keys and values come from these tokens (cross-attention; 1D layers without rope).
            grids: x ``[1, N, dim]`` holds an image of each of these grids, one after the other, instead of ``grid``. They do
                not see each other; all have ``blocks``.
            others: what blocks of timm, diffusers and transformers pass along (``attn_mask``, ``attention_mask``, ...),
                accepted where it is None.
        """
        self._refuse(others)
        if grids is not None:
            return self._packed(x, grids, cu_seqlens, key_padding_mask, context)
        self._expect(x, packed=cu_seqlens is not None)
        self._clamp()
        positions = None
        if cu_seqlens is not None and (self.rope or self.short_conv):
            positions = rotary.packed_positions(x.shape[1], cu_seqlens, x.device)
        y, q, k, v = self._project(x, positions)
        if context is not None:
            self._expect_context(context, x.shape[0], cu_seqlens)
            _, _, k, v = self._project(context)
        out = attend(
            v=v, mix=self.mix, block_size=self.chunk if self.causal else self.block_size, grid=self.grid, blocks=self.blocks,
            causal=self.causal, beyond_mix=self.beyond_mix, normalizer=self.normalizer, eps=self.eps, scale=self.scale,
            cu_seqlens=cu_seqlens, extra_tokens=self.extra_tokens, key_padding_mask=key_padding_mask, backend=self.backend,
            **self._features(q, k, positions),
        )  # fmt: skip
        return self._finish(y, v, out)

    def _packed(
        self,
        x: Tensor,
        grids: Sequence[Sequence[int]],
        cu_seqlens: Tensor | None,
        key_padding_mask: Tensor | None,
        context: Tensor | None,
    ) -> Tensor:
        """Images of one grid are a batch of a layer that has the same parameters and that grid."""
        if self.grid is None or cu_seqlens is not None or context is not None:
            raise RuntimeError("MHLA: grids is given, expected a layer with grid and blocks, and neither cu_seqlens nor context")

        def run(grid: tuple[int, ...], batch: list[Any]) -> Tensor:
            layer = copy.copy(self)
            layer.grid, layer._tables = grid, {}
            return layer.forward(batch[0], key_padding_mask=batch[1])

        return over_grids("MHLA", grids, self.extra_tokens, [x, key_padding_mask], run)

    def resize(self, grid: Sequence[int], blocks: Sequence[int] | None = None) -> MHLA:
        """Another grid of tokens, in place: a layer trained at one resolution for another. Returns the layer.

        Args:
            grid: tokens per axis, as many axes as before.
            blocks: blocks per axis; None keeps them, and with them mix. Other blocks resample mix, which becomes a new
                parameter: make the optimiser afterwards.
        """
        if self.grid is None or self.blocks is None:
            raise RuntimeError("MHLA.resize: the layer has no grid, expected grid and blocks (1D layers take any length)")
        target = self.blocks if blocks is None else tuple(blocks)
        if len(tuple(grid)) != len(self.grid) or len(target) != len(self.grid):
            raise RuntimeError(f"MHLA.resize: grid is {tuple(grid)} and blocks is {target}, expected {len(self.grid)} axes")
        check_layout(None, grid, target, math.prod(grid), False)
        if target != self.blocks:
            with torch.no_grad():
                values = resample_mix(self.mix, self.blocks, target, extra=bool(self.extra_tokens))
            self.mix = nn.Parameter(values, requires_grad=self.mix.requires_grad)
        self.grid, self.blocks, self._tables = tuple(grid), target, {}
        return self

    def streaming_state(self, batch: int = 1, rollback: int | None = None) -> StreamingState:
        """An empty state of this layer for B sequences; mix is copied as it is now."""
        if not self.causal:
            raise RuntimeError("MHLA.streaming_state: the layer is not causal, expected causal=True")
        self._clamp()
        fused: Any = "identity" if self._maps_outside else self.feature_map
        state = StreamingState(
            self.mix, heads=self.num_heads, kv_heads=self.num_kv_heads, key_size=self._feature_size, value_size=self.value_dim,
            batch=batch, chunk=self.chunk, dtype=self.qkv.weight.dtype, normalizer=self.normalizer, eps=self.eps,
            scale=self.scale, beyond_mix=self.beyond_mix, rollback=rollback, backend=self.backend,
            feature_map=fused, den_features=self.rope and self.normalizer != "none",
        )  # fmt: skip
        if self.short_conv:
            state._tails = tuple(self.qkv.weight.new_empty(batch, 0, width) for width in self.widths)
        return state

    @torch.no_grad()
    def stream(self, x: Tensor, state: StreamingState) -> Tensor:
        """T more tokens ``[B, T, dim]`` of the sequences in ``state``: what :meth:`forward` gives over all of them."""
        self._expect(x, state.batch)
        if bool(state._tails) != bool(self.short_conv):
            has = "has" if state._tails else "has no"
            raise RuntimeError(f"MHLA.stream: the state {has} tokens of short convolutions, expected one of this layer")
        both: list[Tensor] = []  # what short convolutions saw and see
        y, q, k, v = self._project(x, tails=state._tails, both=both)
        positions, count = None, x.shape[1]
        if self.rope:
            positions = (torch.tensor(state.positions)[:, None] + torch.arange(x.shape[1])).to(x.device)
            count += max(state.positions)
        arguments = self._features(q, k, positions, count)
        arguments.pop("feature_map")
        # A state has the dtype of the weights; autocast may have another.
        out = state.append(**{name: part.to(self.qkv.weight.dtype) for name, part in {**arguments, "v": v}.items()})
        room = self.short_conv - 1 + state.rollback_limit
        state._tails = tuple(tokens[:, max(0, tokens.shape[1] - room) :].clone() for tokens in both)
        return self._finish(y, v, out)

    def limits(self) -> Limits | None:
        """``mix_range``; causal layers are 0 above the diagonal."""
        return None if self.mix_range is None else Limits(*self.mix_range, causal=self.causal)

    def extra_repr(self) -> str:
        layout = (
            f"chunk={self.chunk}, causal"
            if self.causal
            else f"block_size={self.block_size}" if self.grid is None else f"grid={self.grid}, blocks={self.blocks}"
        )
        return (
            f"{self.dim}, heads={self.num_heads}, {layout}, mix={tuple(self.mix.shape)}, normalizer={self.normalizer}"
        )
