"""Language models of ``mhla train lm`` as models of transformers: the network under the names of the run's weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast

from .. import feature_maps
from .._parts import RMSNorm
from ..families.rows import visible, weigh
from ..functional import attend
from ..nn import MHLA
from .cache import MhlaCache

# The fields of a run's config.json and their defaults, as in mhla/models/lm/lm_config.h.
FIELDS: dict[str, Any] = dict(
    model="mhla_340m", family="lm", attention="mhla", official=False, vocab=32000, dim=1024, layers=24, heads=4, mlp=2816,
    match=True, context=2048, chunk=64, tied=True, norm_eps=1e-6, rope_base=10000.0, kv_heads=0, expand_k=0.5, expand_v=1.0,
    features="relu", rope=True, gate=True, short_conv=0, mix_init="prefix", mix_sigma=3.0, mix_range=(0.0, 1.0), learn_mix=True,
    mix_per_head=False,
)  # fmt: skip

class MhlaConfig(PretrainedConfig):
    """The ``config.json`` of ``mhla train lm``; :data:`FIELDS` has its fields and their defaults. ``backend`` as in
    :func:`mhla.attention`."""

    model_type = "mhla"
    attribute_map = {"vocab_size": "vocab", "hidden_size": "dim", "num_hidden_layers": "layers", "intermediate_size": "mlp",
                     "num_attention_heads": "heads", "max_position_embeddings": "context"}  # fmt: skip

    def __init__(self, backend: str | None = None, use_cache: bool = True, **options: Any) -> None:
        for name, default in FIELDS.items():
            setattr(self, name, options.pop(name, default))
        if self.family != "lm" or self.attention not in ("mhla", "linear"):
            raise RuntimeError(f"MhlaConfig: family is '{self.family}' and attention is '{self.attention}', "
                               "expected lm and mhla or linear")  # fmt: skip
        self.backend, self.use_cache = backend, use_cache
        options.setdefault("tie_word_embeddings", False)  # a tied model has no second table at all
        super().__init__(**options)

    def fields(self) -> dict[str, Any]:
        """What a run's ``config.json`` holds."""
        return {name: getattr(self, name) for name in FIELDS}

    def mlp_width(self) -> int:
        """Width of the MLP: with ``match`` as many parameters as with softmax attention (lm_plan.cpp)."""
        if not self.match:
            return self.mlp
        D, E = (int(expand * self.dim) // self.heads for expand in (self.expand_k, self.expand_v))
        kv_heads = self.kv_heads or self.heads
        projected = self.heads * D + kv_heads * (D + E)  # q, k and v
        own = self.dim * projected + self.heads * E * self.dim * (2 if self.gate else 1) + self.short_conv * projected + E
        own += {"t2r": 2 * D * D, "hedgehog": 2 * D * (D + 1), "hadamard": 4 * D * (D + 1)}.get(self.features, 0)
        softmax = 4 * self.dim * self.dim
        more = own - softmax
        if 100 * abs(more) <= 3 * (softmax + 3 * self.dim * self.mlp):
            return self.mlp
        steps = int((self.mlp - int(more / (3 * self.dim))) / 32 + 0.5)
        if steps < 1:
            raise RuntimeError(f"MhlaConfig: no MLP of {self.mlp} channels makes up for {more} parameters, expected match=False")
        return steps * 32


class Swiglu(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), without biases."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(dim, width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class CausalMHLA(MHLA):
    """The layer of a language model, which also reads keys from a cache of transformers."""

    def attend_cached(self, x: Tensor, mask: Tensor | None, cache: Any, index: int) -> Tensor:
        """x ``[B, T, dim]``, the newest tokens; ``mask`` ``[B, S]``: 0 for padding among all S tokens."""
        if isinstance(cache, MhlaCache):
            if mask is not None:
                raise RuntimeError("MhlaForCausalLM: attention_mask has padding beside an MhlaCache, expected a DynamicCache")
            layer: Any = cache.layers[index]
            return layer.step(self, x)
        past = 0 if cache is None else cache.get_seq_length(index)
        if past == 0 and cache is None and mask is None:
            return self(x)
        self._expect(x, packed=True)
        self._clamp()
        if self.short_conv:
            raise RuntimeError(f"MhlaForCausalLM: short_conv is {self.short_conv}, expected an MhlaCache or none, and no padding")
        total = past + x.shape[1]
        if self.beyond_mix == "error" and total > self._most_tokens and mask is None:
            raise RuntimeError(f"MhlaForCausalLM: {total} tokens, expected at most context = {self._most_tokens}")
        y, q, k, v = self._project(x)
        places = torch.arange(past, total, device=x.device).expand(x.shape[0], -1)
        if mask is not None:
            places = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, past:total]
        features = self._features(q, k, places if self.rope else None, total)
        phi = feature_maps.FUSED[features["feature_map"]]
        q, k, seen_v = phi(features["q"]), phi(features["k"]), v
        if cache is not None:
            k, seen_v = (z.transpose(1, 2) for z in cache.update(k.transpose(1, 2), v.transpose(1, 2), index))
        scale = self.scale if self.scale is not None else self._feature_size**-0.5
        if mask is None and past == 0:
            out = attend(q, k.contiguous(), seen_v.contiguous(), self.mix, block_size=self.chunk, grid=None, blocks=None,
                         causal=True, normalizer="none", feature_map="identity", scale=scale, beyond_mix=self.beyond_mix,
                         backend=self.backend)  # fmt: skip
        else:
            seen = visible(mask, q.shape[1], k.shape[1], q)
            out = weigh(q, k, seen_v, self.mix, self.chunk, seen, scale=scale, eps=self.eps)
        return self._finish(y, v, out)


class Block(nn.Module):
    """x + attn(attn_norm(x)), then x + mlp(mlp_norm(x))."""

    def __init__(self, config: MhlaConfig) -> None:
        super().__init__()
        c: Any = config
        linear = c.attention == "linear"
        self.attn_norm = RMSNorm(c.dim, c.norm_eps, c.backend)
        self.attn = CausalMHLA.lm(
            c.dim, c.heads, expand_k=c.expand_k, expand_v=c.expand_v, gated=c.gate, official=c.official, chunk=c.chunk,
            max_tokens=c.chunk if linear else c.context, num_kv_heads=c.kv_heads or None, feature_map=c.features, rope=c.rope,
            rope_base=c.rope_base, norm_eps=c.norm_eps, short_conv=c.short_conv, mix=None if linear else c.mix_init,
            mix_exp_sigma=c.mix_sigma, mix_range=None if c.official or linear else tuple(c.mix_range),
            learn_mix=c.learn_mix and not linear, mix_per_head=c.mix_per_head and not linear, backend=c.backend,
            beyond_mix="extend" if linear else "error",
        )  # fmt: skip
        self.mlp_norm = RMSNorm(c.dim, c.norm_eps, c.backend)
        self.mlp = Swiglu(c.dim, c.mlp_width())

    def forward(self, x: Tensor, mask: Tensor | None, cache: Any, index: int) -> Tensor:
        attention: Any = self.attn
        x = x + attention.attend_cached(self.attn_norm(x), mask, cache, index)
        return x + self.mlp(self.mlp_norm(x))


class Body(nn.Module):
    """Token table, blocks and the last norm, under the names of the run's weights."""

    def __init__(self, config: MhlaConfig) -> None:
        super().__init__()
        c: Any = config
        self.embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(c.layers))
        self.norm = RMSNorm(c.dim, c.norm_eps, c.backend)


class MhlaForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model of ``mhla train lm``, with its weights under their names."""

    config_class = MhlaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config: MhlaConfig) -> None:
        super().__init__(config)
        c: Any = config
        self.model = Body(config)
        self.lm_head = None if c.tied else nn.Linear(c.dim, c.vocab, bias=False)
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call, unused-ignore]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Any, *args: Any, **kwargs: Any) -> Any:
        mask = model_kwargs.get("attention_mask")
        padded = mask is not None and not bool(mask.all())
        usual = generation_config.use_cache is not False and generation_config.cache_implementation is None
        if usual and model_kwargs.get("past_key_values") is None and not padded:
            model_kwargs["past_key_values"] = MhlaCache(self.config.layers)
        usual_way: Any = GenerationMixin._prepare_cache_for_generation
        return usual_way(self, generation_config, model_kwargs, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embeddings = value  # type: ignore[assignment, unused-ignore]

    def get_output_embeddings(self) -> nn.Module | None:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        """Logits ``[B, T, vocab]`` of tokens ``[B, T]``.

        Args:
            input_ids: the tokens, without those that ``past_key_values`` holds.
            attention_mask: ``[B, S]`` of all tokens, 0 for padding.
            labels: ``[B, T]``: the tokens themselves; they are shifted here, and -100 is left out of the loss.
            logits_to_keep: of how many last tokens; 0: of all.
        """
        x = self.model.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        training = self.gradient_checkpointing and self.training
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and not self.training
        mask = None if attention_mask is None or attention_mask.dim() != 2 or bool(attention_mask.all()) else attention_mask
        if use_cache and past_key_values is None:
            stateful = mask is None and not torch.is_grad_enabled()
            if stateful or not self.config.short_conv:
                past_key_values = MhlaCache(self.config.layers) if stateful else DynamicCache()
        for index, layer in enumerate(self.model.layers):
            if training:
                x = self._gradient_checkpointing_func(layer.__call__, x, mask, None, index)
            else:
                x = layer(x, mask, past_key_values, index)
        hidden = self.model.norm(x)
        kept = hidden[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else hidden[:, logits_to_keep]
        logits = F.linear(kept, self.model.embeddings.weight) if self.lm_head is None else self.lm_head(kept)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab, **kwargs)
        answer: dict[str, Any] = dict(loss=loss, logits=logits, past_key_values=past_key_values if use_cache else None)
        return CausalLMOutputWithPast(**answer)
