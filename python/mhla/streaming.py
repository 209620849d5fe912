"""The causal operator a few tokens at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _backend
from ._types import Backend, BeyondMix, FeatureMap, Normalizer
from .torch_backend import TorchStreamingState

Snapshot = tuple[dict[str, Tensor], dict[str, str]]
_TAIL = "tail."  # how a snapshot names them


class StreamingState:
    """What the causal form remembers of B sequences. However a sequence is split into ``append`` calls, the outputs have
    the bits of one pass over all of it: of ``mhla.attention(..., causal=True)``, but on Hopper in bfloat16, where that takes
    other kernels and agrees to rounding.

    A state can be copied (``fork``, ``select``, ``split``, ``join``), taken back (``rollback``), pickled and saved with
    ``torch.save`` (``torch.load`` wants ``weights_only=False`` for it; a :meth:`snapshot` is tensors and text and needs nothing).

    Args:
        mix: ``[L, L]`` or ``[H, L, L]``; copied. The state is on its device.
        heads, kv_heads, key_size, value_size: H, Hkv (0: as H), D and E.
        batch: B.
        dtype: of q, k and v.
        den_features: whether tokens come with q_den and k_den.
        rollback: tokens that can be taken back; one chunk unless told.
        backend: ``"kernels"`` or ``"torch"``, whose outputs agree with one pass to rounding.
        The rest as in :func:`mhla.attention`.
    """

    def __init__(
        self,
        mix: Tensor,
        *,
        heads: int,
        key_size: int,
        value_size: int,
        kv_heads: int = 0,
        batch: int = 1,
        chunk: int = 64,
        dtype: torch.dtype = torch.float32,
        feature_map: FeatureMap = "relu_eps",
        normalizer: Normalizer = "none",
        eps: float = 1e-6,
        scale: float | None = None,
        beyond_mix: BeyondMix = "error",
        den_features: bool = False,
        rollback: int | None = None,
        backend: Backend | None = None,
    ) -> None:
        if _backend.plain(backend):
            make: Any = TorchStreamingState
        else:
            _backend.kernels()
            make = torch.classes.mhla.StreamingState
        self._state: Any = make(
            mix.detach(), batch, heads, kv_heads, key_size, value_size, chunk, dtype, feature_map, normalizer, eps, scale,
            beyond_mix, den_features, rollback,
        )  # fmt: skip
        # What short convolutions of a layer still see, and what can be taken back of it: [B, at most so many, width] each.
        self._tails: tuple[Tensor, ...] = ()

    @classmethod
    def _wrap(cls, state: Any, tails: tuple[Tensor, ...] = ()) -> StreamingState:
        wrapped = cls.__new__(cls)
        wrapped._state, wrapped._tails = state, tails
        return wrapped

    def append(
        self, q: Tensor, k: Tensor, v: Tensor, q_den: Tensor | None = None, k_den: Tensor | None = None
    ) -> Tensor:
        """T more tokens of every sequence: prefill, append and decode (T = 1) alike.

        q ``[B, T, H, D]``, k ``[B, T, Hkv, D]``, v ``[B, T, Hkv, E]``; returns ``[B, T, H, E]``. After an error no
        sequence has moved.
        """
        return self._state.append(q, k, v, q_den, k_den)

    @property
    def positions(self) -> list[int]:
        """Tokens seen by each sequence."""
        return list(self._state.positions())

    @property
    def batch(self) -> int:
        """B."""
        return len(self._state.positions())

    @property
    def capacity(self) -> int:
        """Tokens that mix has rows for."""
        return self._state.capacity()

    @property
    def rollback_limit(self) -> int:
        """Tokens that can be taken back now."""
        return self._state.rollback_limit()

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._state.bytes() + sum(tail.numel() * tail.element_size() for tail in self._tails)

    def rollback(self, tokens: int) -> None:
        """Takes the last tokens of every sequence back, as if they had never come."""
        self._state.rollback(tokens)
        self._tails = tuple(tail[:, : tail.shape[1] - tokens] for tail in self._tails)

    def reset(self) -> None:
        """As new."""
        self._state.reset()
        self._tails = tuple(tail[:, :0] for tail in self._tails)

    def fork(self) -> StreamingState:
        """An independent copy."""
        return self.select(range(self.batch))

    def select(self, sequences: Sequence[int]) -> StreamingState:
        """A new state with copies of the sequences named, in that order: beams, a batch grown or shrunk."""
        chosen = list(sequences)
        state = self._state.select(chosen)
        return self._wrap(state, tuple(tail[chosen] for tail in self._tails))

    def split(self) -> list[StreamingState]:
        """Copies of the sequences, one state each."""
        return [self.select([b]) for b in range(self.batch)]

    @classmethod
    def join(cls, states: Sequence[StreamingState]) -> StreamingState:
        """A new state with copies of all sequences of all states, in that order; they may be at different positions.

        ``backend="torch"`` and the short convolutions of a layer want sequences of one length.
        """
        if not states:
            raise RuntimeError("StreamingState.join: no states are given, expected at least one")
        kinds = {isinstance(one._state, TorchStreamingState) for one in states}
        tails = [tuple(tail.shape[1:] for tail in one._tails) for one in states]
        if len(kinds) > 1 or any(shapes != tails[0] for shapes in tails):
            raise RuntimeError("StreamingState.join: states differ in backend or in the tokens of short convolutions, expected "
                               "states of one layer, and with short convolutions of one length")  # fmt: skip
        inner: list[Any] = [one._state for one in states]
        joined = TorchStreamingState.join(inner) if kinds.pop() else torch.ops.mhla.join_streaming_states(inner)
        return cls._wrap(joined, tuple(torch.cat(parts) for parts in zip(*(one._tails for one in states))))

    def snapshot(self) -> Snapshot:
        """Everything needed to go on elsewhere, as named tensors and text."""
        tensors, texts = self._state.snapshot()
        tails = {f"{_TAIL}{i}": tail.clone() for i, tail in enumerate(self._tails)}
        return {**tensors, **tails}, dict(texts)

    @classmethod
    def load(cls, snapshot: Snapshot) -> StreamingState:
        """The state of a :meth:`snapshot`."""
        tensors, texts = snapshot
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_TAIL)}
        tails = tuple(tensors[name] for name in sorted(tensors) if name.startswith(_TAIL))
        if texts.get("backend") == "torch":
            return cls._wrap(TorchStreamingState.load(own, texts), tails)
        _backend.kernels()
        return cls._wrap(torch.ops.mhla.load_streaming_state(own, texts), tails)

    def __getstate__(self) -> Snapshot:
        return self.snapshot()

    def __setstate__(self, snapshot: Snapshot) -> None:
        loaded = self.load(snapshot)
        self._state, self._tails = loaded._state, loaded._tails

    def __repr__(self) -> str:
        return f"mhla.StreamingState(positions={self.positions}, nbytes={self.nbytes})"
