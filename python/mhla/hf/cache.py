"""Streaming states as the cache of ``generate``."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ..nn import MHLA
from ..streaming import StreamingState

ROLLBACK = 64  # tokens that assisted decoding can take back


class StateLayer(CacheLayerMixin):
    """The streaming state of one layer for all sequences, made with the first tokens."""

    is_croppable = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.state: StreamingState | None = None

    def step(self, layer: MHLA, x: Tensor) -> Tensor:
        """T more tokens, ``[B, T, dim]``."""
        if self.state is None:
            self.state = layer.streaming_state(x.shape[0], rollback=max(layer.chunk, ROLLBACK))
            self.is_initialized = True
        return layer.stream(x, self.state)

    def get_seq_length(self) -> int:
        return 0 if self.state is None else self.state.positions[0]

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last tokens back; a negative number, as transformers has it."""
        if tokens_to_remove > 0:
            raise RuntimeError(f"MhlaCache.crop: tokens_to_remove is {tokens_to_remove}, expected 0 or a negative number")
        if self.state is not None and tokens_to_remove:
            self.state.rollback(-tokens_to_remove)

    def _select(self, sequences: list[int]) -> None:
        self.state = None if self.state is None else self.state.select(sequences)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self._select([b for b in range(self.state.batch) for _ in range(repeats)])

    def reset(self) -> None:
        if self.state is not None:
            self.state.reset()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise RuntimeError("MhlaCache: it holds states, not keys and values")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("MhlaCache: it holds states, not keys and values")


class MhlaCache(Cache):
    """Streaming states instead of keys and values: their size is bounded by the rows of mix. All sequences have one length;
    batches with padding take a ``DynamicCache``. At most :data:`ROLLBACK` tokens, or a chunk, can be cropped."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[StateLayer() for _ in range(layers)])

    @property
    def nbytes(self) -> int:
        """Memory held."""
        layers: list[Any] = list(self.layers)
        return sum(layer.state.nbytes for layer in layers if layer.state is not None)
