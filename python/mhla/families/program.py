"""Converted models of diffusers as folders of the program: ``config.json`` and ``model.safetensors``, out and in.

The program keeps the names of diffusers for SANA and Wan, with the mixing matrix under its published name, and has names of
its own for DiT. The table of a model lists every weight once, under both names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..convert import load_safetensors
from .core import Replaced, Settings

_DIT = {"norm1.linear.": "adaLN_modulation.1.", "attn1.to_out.0.": "attn.out.", "attn1.processor.mix": "attn.mix",
        "ff.net.0.proj.": "mlp.fc1.", "ff.net.2.": "mlp.fc2.", "norm1.emb.timestep_embedder.linear_1.": "t_embedder.mlp.0.",
        "norm1.emb.timestep_embedder.linear_2.": "t_embedder.mlp.2.",
        "norm1.emb.class_embedder.embedding_table.": "y_embedder.embedding_table."}  # fmt: skip
_DIT_ENDS = {"pos_embed.proj.": "x_embedder.proj.", "proj_out_1.": "final_layer.adaLN_modulation.1.",
             "proj_out_2.": "final_layer.linear."}  # fmt: skip


class Name(NamedTuple):
    """A weight of the program."""

    program: str
    model: tuple[str, ...]  # one after the other along axis 0
    ones: int = 0  # that the program's shape has at its end


def _renamed(name: str, table: dict[str, str]) -> str:
    for theirs, ours in table.items():
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


def _dit_names(keys: list[str]) -> Iterator[Name]:
    for key in keys:
        if not key.startswith("transformer_blocks."):
            yield Name(_renamed(key, _DIT_ENDS), (key,))
            continue
        _, number, rest = key.split(".", 2)
        head = f"transformer_blocks.{number}."
        if rest.startswith("attn1.to_q."):
            part = rest.rsplit(".", 1)[1]
            yield Name(f"blocks.{number}.attn.qkv.{part}", tuple(f"{head}attn1.to_{letter}.{part}" for letter in "qkv"))
        elif not rest.startswith(("attn1.to_k.", "attn1.to_v.")):
            yield Name(f"blocks.{number}.{_renamed(rest, _DIT)}", (key,))


def _names(family: str, keys: list[str]) -> list[Name]:
    if family == "diffusers.dit":
        return list(_dit_names(keys))
    mix = "piece_attn" if family == "diffusers.sana" else "block_attn"
    return [Name(key.replace(".processor.mix", f".{mix}.conv.weight"), (key,), 2) if key.endswith(".processor.mix")
            else Name(key, (key,)) for key in keys]  # fmt: skip


def _expect(good: bool, what: str) -> None:
    if not good:
        raise RuntimeError(f"save_denoiser: {what}")


def _dit_config(c: Any, s: Settings, blocks: list[int], layers: list[int]) -> dict[str, Any]:
    _expect(len(layers) == c.num_layers, f"{len(layers)} of {c.num_layers} layers are converted, expected all")
    _expect(c.out_channels in (None, c.in_channels, 2 * c.in_channels), f"out_channels is {c.out_channels}")
    size = [c.sample_size] * 2 if isinstance(c.sample_size, int) else list(c.sample_size)
    return dict(
        family="dit", image=size, channels=c.in_channels, classes=c.num_embeds_ada_norm, patch=c.patch_size,
        dim=c.num_attention_heads * c.attention_head_dim, depth=c.num_layers, heads=c.num_attention_heads,
        learn_sigma=c.out_channels == 2 * c.in_channels, norm2_eps=c.norm_eps, freq_shift=1, own_embedders=True,
    )  # fmt: skip


def _sana_config(c: Any, s: Settings, blocks: list[int], layers: list[int]) -> dict[str, Any]:
    _expect(len(layers) == c.num_layers, f"{len(layers)} of {c.num_layers} layers are converted, expected all")
    _expect(not c.get("guidance_embeds"), "guidance_embeds is true, expected false")
    return dict(
        family="sana", model="", channels=c.in_channels, patch=c.patch_size, dim=c.num_attention_heads * c.attention_head_dim,
        depth=c.num_layers, head_dim=c.attention_head_dim, cross_heads=c.num_cross_attention_heads, mlp_ratio=c.mlp_ratio,
        caption_dim=c.caption_channels, norm_eps=c.norm_eps, qk_norm=c.get("qk_norm") is not None, eps=s.eps, truncate_t=False,
    )  # fmt: skip


def _wan_config(c: Any, s: Settings, blocks: list[int], layers: list[int]) -> dict[str, Any]:
    _expect(c.get("image_dim") is None and c.get("added_kv_proj_dim") is None, "the model takes an image, expected text to video")
    return dict(
        family="wan", model="", layers=layers, channels=c.in_channels, out_channels=c.out_channels, patch=list(c.patch_size),
        dim=c.num_attention_heads * c.attention_head_dim, depth=c.num_layers, heads=c.num_attention_heads, mlp=c.ffn_dim,
        time_channels=c.freq_dim, text_dim=c.text_dim, pad_text=False, wide_time=False, eps=c.eps, head_norm=False,
        normalizer_eps=s.eps,
    )  # fmt: skip


_CONFIGS = {"diffusers.dit": _dit_config, "diffusers.sana": _sana_config, "diffusers.wan": _wan_config}


def _parts(model: nn.Module) -> tuple[str, Any, dict[str, Replaced]]:
    from . import FAMILIES, _is

    found = {name: module for name, module in model.named_modules() if isinstance(module, Replaced)}
    family = next((name for name in _CONFIGS if _is(model, FAMILIES[name].package, FAMILIES[name].model)), "")
    known = ", ".join(FAMILIES[name].model for name in _CONFIGS)
    if not family or not found:
        raise RuntimeError(f"save_denoiser: the model is a {type(model).__name__} with {len(found)} converted layers, expected a "
                           f"{known} after replace_attention")  # fmt: skip
    return family, model, found


def to_program(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What :func:`save_denoiser` writes: the fields of ``config.json``, and the weights by the names of the program."""
    family, part, found = _parts(model)
    layers = [int(name.split(".")[1]) for name in found]
    first: Any = next(iter(found.values()))
    s: Settings = first.settings
    if family == "diffusers.sana" and s.normalizer != "paper":
        raise RuntimeError(f"save_denoiser: normalizer is '{s.normalizer}', expected paper in a SANA")
    state = {key: value.detach() for key, value in model.state_dict().items()}
    names = _names(family, list(state))
    weights = {}
    for name in names:
        value = torch.cat([state[key] for key in name.model]) if len(name.model) > 1 else state[name.model[0]]
        weights[name.program] = value.reshape(*value.shape, *[1] * name.ones).contiguous()
    if family == "diffusers.dit":
        weights["pos_embed"] = part.pos_embed.pos_embed.detach().to(state["pos_embed.proj.weight"].dtype).contiguous()
    blocks = list(first.blocks)
    fields = dict(attention="mhla", blocks=blocks, features=s.feature_map)
    if family != "diffusers.sana":
        fields["normalizer"] = s.normalizer
    return {**_CONFIGS[family](part.config, s, blocks, layers), **fields}, weights


def save_denoiser(model: nn.Module, folder: str | Path) -> None:
    """Writes a converted ``DiTTransformer2DModel``, ``SanaTransformer2DModel`` or ``WanTransformer3DModel`` of diffusers as a
    folder that the program opens: ``mhla inspect``, and ``mhla sample`` and ``mhla convert`` of DiT and SANA.

    Args:
        model: after :func:`mhla.replace_attention`, at the grid it was converted with. Of a Wan also some layers only.
        folder: gets ``config.json`` and ``model.safetensors``.
    """
    from safetensors.torch import save_file

    config, weights = to_program(model)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    save_file({name: value.cpu() for name, value in weights.items()}, str(place / "model.safetensors"), {"format": "pt"})
    (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_denoiser(model: nn.Module, folder: str | Path) -> None:
    """Reads weights of :func:`save_denoiser`, or of the program under the same names, into a converted model, in place.

    Args:
        model: of diffusers, after :func:`mhla.replace_attention` with the blocks that the weights have.
        folder: with ``model.safetensors``.
    """
    family, _, _ = _parts(model)
    weights, _ = load_safetensors(Path(folder) / "model.safetensors")
    weights.pop("pos_embed", None) if family == "diffusers.dit" else None
    own = model.state_dict()
    names = _names(family, list(own))
    missing, over = ({n.program for n in names} - set(weights), set(weights) - {n.program for n in names})
    if missing or over:
        raise RuntimeError(f"load_denoiser: {folder}: missing: {', '.join(sorted(missing)) or 'nothing'}; "
                           f"left over: {', '.join(sorted(over)) or 'nothing'}")  # fmt: skip
    state: dict[str, Tensor] = {}
    for name in names:
        value = weights[name.program]
        value = value.reshape(value.shape[: value.dim() - name.ones])
        parts = value.split([own[key].shape[0] for key in name.model]) if len(name.model) > 1 else [value]
        state.update(zip(name.model, parts))
    model.load_state_dict(state)
