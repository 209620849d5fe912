"""The causal operator a few tokens at a time, in plain torch: what torch.classes.mhla.StreamingState is in the library.

Finished chunks are kept as their summaries; the tokens of the chunk that is open, and those that can be taken back, are
kept as features.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..feature_maps import FUSED
from .checks import name_of

Snapshot = tuple[dict[str, Tensor], dict[str, str]]


class TorchStreamingState:
    """B sequences of one length. The arguments are those of the library's class, in its order."""

    def __init__(
        self,
        mix: Tensor,
        batch: int,
        heads: int,
        kv_heads: int,
        key_size: int,
        value_size: int,
        chunk: int,
        dtype: torch.dtype,
        feature_map: str,
        normalizer: str,
        eps: float,
        scale: float | None,
        beyond_mix: str,
        den_features: bool,
        rollback: int | None,
    ) -> None:
        kv_heads = kv_heads or heads
        sizes = {"batch": batch, "heads": heads, "key_size": key_size, "value_size": value_size, "chunk": chunk}
        for name, size in sizes.items():
            if size < 1:
                raise RuntimeError(f"StreamingState: {name} is {size}, expected at least 1")
        if heads % kv_heads:
            raise RuntimeError(f"StreamingState: kv_heads is {kv_heads}, expected a divisor of heads = {heads}")
        if normalizer not in ("none", "paper"):
            raise RuntimeError(f"StreamingState: normalizer is '{normalizer}', expected none or paper")
        if beyond_mix not in ("error", "extend"):
            raise RuntimeError(f"StreamingState: beyond_mix is '{beyond_mix}', expected error or extend")
        self._options: dict[str, Any] = dict(
            batch=batch, heads=heads, kv_heads=kv_heads, key_size=key_size, value_size=value_size, chunk=chunk,
            dtype=str(dtype).split(".")[1], feature_map=feature_map, normalizer=normalizer, eps=eps, scale=scale,
            beyond_mix=beyond_mix, den_features=den_features, rollback=chunk if rollback is None else rollback,
        )  # fmt: skip
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        mix = mix.to(wide)
        self._mix = mix.expand(heads, -1, -1).clone() if mix.dim() == 2 else mix.clone()  # [H, L, L]
        self._phi = FUSED[feature_map]
        self._dtype = dtype
        self.reset()

    def reset(self) -> None:
        o, new = self._options, self._mix.new_zeros
        B, Hkv, D, E = o["batch"], o["kv_heads"], o["key_size"], o["value_size"]
        self._position, self._limit = 0, 0
        self._S, self._z = new(B, 0, Hkv, D, E), new(B, 0, Hkv, D)  # of finished chunks
        self._k, self._v, self._k_den = new(B, 0, Hkv, D), new(B, 0, Hkv, E), new(B, 0, Hkv, D)  # of tokens after them

    def positions(self) -> list[int]:
        return [self._position] * self._options["batch"]

    def capacity(self) -> int:
        return self._mix.shape[-1] * self._options["chunk"] if self._options["beyond_mix"] == "error" else 2**62

    def rollback_limit(self) -> int:
        return self._limit

    def bytes(self) -> int:
        held = (self._mix, self._S, self._z, self._k, self._v, self._k_den)
        return sum(x.numel() * x.element_size() for x in held)

    def append(self, q: Tensor, k: Tensor, v: Tensor, q_den: Tensor | None, k_den: Tensor | None) -> Tensor:
        """``[B, T, H, E]``. Nothing has changed after an error."""
        self._check(q, k, v, q_den, k_den)
        wide = self._mix.dtype
        features = [None if x is None else self._phi(x.to(wide)) for x in (q, k, q_den, k_den)]
        values, chunk, T = v.to(wide), self._options["chunk"], q.shape[1]
        parts = [q.new_zeros(q.shape[0], 0, q.shape[2], v.shape[3])]
        begin = 0
        while begin < T:  # up to the end of a chunk each
            end = min(T, begin + chunk - self._position % chunk)
            fq, fk, fq_den, fk_den = (None if x is None else x[:, begin:end] for x in features)
            assert fq is not None and fk is not None
            parts.append(self._step(fq, fk, values[:, begin:end], fq_den, fk_den).to(q.dtype))
            begin = end
        return torch.cat(parts, 1)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, q_den: Tensor | None, k_den: Tensor | None) -> None:
        o = self._options
        B, T = o["batch"], q.shape[1] if q.dim() == 4 else 0
        key, query = (B, T, o["kv_heads"], o["key_size"]), (B, T, o["heads"], o["key_size"])
        given = {"q": (q, query), "k": (k, key), "v": (v, (*key[:3], o["value_size"]))}
        if o["den_features"] != (q_den is not None and k_den is not None):
            raise RuntimeError(f"StreamingState: q_den and k_den are {'not ' if o['den_features'] else ''}given, "
                               f"expected {'both' if o['den_features'] else 'none'}")  # fmt: skip
        if q_den is not None and k_den is not None:
            given.update(q_den=(q_den, query), k_den=(k_den, key))
        for name, (x, shape) in given.items():
            if tuple(x.shape) != shape:
                raise RuntimeError(f"StreamingState: {name} has shape {list(x.shape)}, expected {list(shape)}")
            if x.dtype != self._dtype:
                raise RuntimeError(f"StreamingState: {name} has dtype {name_of(x.dtype)}, expected {name_of(self._dtype)}")
            if torch.is_grad_enabled() and x.requires_grad:
                raise RuntimeError(f"StreamingState: {name} requires a gradient, but streaming has none: use "
                                   "torch.no_grad(), or the causal form")  # fmt: skip
        if self._position + T > self.capacity():
            raise RuntimeError(f"StreamingState: state 0 is at position {self._position} and T is {T}, expected at most "
                               f"{self.capacity()} tokens in all")  # fmt: skip

    def _coefficients(self, i: int, b: Tensor) -> Tensor:
        """``[H, n]``: how chunk i weighs chunks b; beyond the matrix its last row by the distance."""
        rows = self._mix.shape[-1]
        column = b if i < rows else (rows - 1 - (i - b)).clamp(min=0)
        return self._mix[:, min(i, rows - 1), column]

    def _step(self, q: Tensor, k: Tensor, v: Tensor, q_den: Tensor | None, k_den: Tensor | None) -> Tensor:
        """Tokens of one chunk."""
        o, chunk, T = self._options, self._options["chunk"], q.shape[1]
        group, first = o["heads"] // o["kv_heads"], self._S.shape[1] * self._options["chunk"]
        self._k, self._v = torch.cat([self._k, k], 1), torch.cat([self._v, v], 1)
        self._k_den = torch.cat([self._k_den, k if k_den is None else k_den], 1)
        i = self._position // chunk
        places = torch.arange(self._position, self._position + T, device=q.device)
        tokens = torch.arange(first, first + self._k.shape[1], device=q.device)
        of_tokens = self._coefficients(i, tokens // chunk)[:, None] * (tokens[None] <= places[:, None])  # [H, T, window]
        of_chunks = self._coefficients(i, torch.arange(self._S.shape[1], device=q.device))  # [H, finished]

        def shared(x: Tensor) -> Tensor:  # by the heads of q
            return x.repeat_interleave(group, 2)

        pairs = torch.einsum("bthd,bshd->bhts", q, shared(self._k)) * of_tokens
        out = torch.einsum("bhts,bshe->bthe", pairs, shared(self._v))
        out = out + torch.einsum("bthd,bhde->bthe", q, torch.einsum("hn,bnhde->bhde", of_chunks, shared(self._S)))
        scale = o["scale"]
        if scale is None:
            scale = o["key_size"] ** -0.5 if o["normalizer"] == "none" else 1.0
        out = out * scale
        if o["normalizer"] == "paper":
            qd = q if q_den is None else q_den
            den = (torch.einsum("bthd,bshd->bhts", qd, shared(self._k_den)) * of_tokens).sum(-1).transpose(1, 2)
            den = den + torch.einsum("bthd,bhd->bth", qd, torch.einsum("hn,bnhd->bhd", of_chunks, shared(self._z)))
            out = out / (den + o["eps"]).unsqueeze(-1)
        self._position += T
        self._limit = min(self._limit + T, o["rollback"])
        self._finish_chunks()
        return out

    def _finish_chunks(self) -> None:
        """Chunks that nothing can be taken back from become summaries."""
        chunk, kept = self._options["chunk"], self._k.shape[1]
        ready = max(0, (kept - self._options["rollback"]) // chunk)
        if not ready:
            return
        cut = ready * chunk
        k, v, k_den = (x[:, :cut].unflatten(1, (ready, chunk)) for x in (self._k, self._v, self._k_den))
        self._S = torch.cat([self._S, torch.einsum("bnchd,bnche->bnhde", k, v)], 1)
        self._z = torch.cat([self._z, k_den.sum(2)], 1)
        self._k, self._v, self._k_den = self._k[:, cut:], self._v[:, cut:], self._k_den[:, cut:]

    def rollback(self, tokens: int) -> None:
        if not 0 <= tokens <= self._limit:
            raise RuntimeError(f"StreamingState.rollback: tokens is {tokens}, expected 0 to {self._limit}")
        kept = self._k.shape[1] - tokens
        self._k, self._v, self._k_den = self._k[:, :kept], self._v[:, :kept], self._k_den[:, :kept]
        self._position, self._limit = self._position - tokens, self._limit - tokens

    def select(self, sequences: Sequence[int]) -> TorchStreamingState:
        if not sequences:
            raise RuntimeError("StreamingState.select: no sequences are named, expected at least one")
        for b in sequences:
            if not 0 <= b < self._options["batch"]:
                raise RuntimeError(f"StreamingState.select: sequence is {b}, expected 0 to {self._options['batch'] - 1}")
        chosen = list(sequences)
        other = TorchStreamingState.__new__(TorchStreamingState)
        other.__dict__.update(self.__dict__)
        other._options = {**self._options, "batch": len(chosen)}
        for name in ("_S", "_z", "_k", "_v", "_k_den"):
            setattr(other, name, getattr(self, name)[chosen])
        return other

    @staticmethod
    def join(states: Sequence[TorchStreamingState]) -> TorchStreamingState:
        first = states[0]
        settings = [{**one._options, "batch": 0} for one in states]
        if any(one != settings[0] for one in settings) or any(one._position != first._position for one in states):
            raise RuntimeError(f"StreamingState.join: the states are at positions {[one._position for one in states]}, expected "
                               'one position and the same options: backend="torch" holds sequences of one length')  # fmt: skip
        joined = first.select(range(first._options["batch"]))
        joined._options["batch"] = sum(one._options["batch"] for one in states)
        joined._limit = min(one._limit for one in states)
        for name in ("_S", "_z", "_k", "_v", "_k_den"):
            setattr(joined, name, torch.cat([getattr(one, name) for one in states]))
        return joined

    def snapshot(self) -> Snapshot:
        names = ("mix", "S", "z", "k", "v", "k_den")
        tensors = {name: getattr(self, f"_{name}").clone() for name in names}
        place = {"position": self._position, "limit": self._limit}
        return tensors, {"backend": "torch", "options": json.dumps(self._options), "place": json.dumps(place)}

    @classmethod
    def load(cls, tensors: dict[str, Tensor], texts: dict[str, str]) -> TorchStreamingState:
        options = json.loads(texts["options"])
        state = cls(tensors["mix"], **{**options, "dtype": getattr(torch, options["dtype"])})
        for name in ("S", "z", "k", "v", "k_den"):
            setattr(state, f"_{name}", tensors[name].clone())
        place = json.loads(texts["place"])
        state._position, state._limit = place["position"], place["limit"]
        return state
