"""Attention weights by their published names, in and out, and a reader of safetensors files.

The table lists what each of our parameters is called by a family; several names are one after the other along axis 0.
A family is recognised by its keys: a file that fits none, or leaves something over, is refused with the list of both.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Names = dict[str, tuple[str, ...]]  # our name of a parameter to the published ones


class Family(NamedTuple):
    """``required``: our name to the published ones. ``optional``: groups of such, each there as a whole or not at all.
    ``mix``: its name and the number of trailing ones of its shape."""

    required: Names
    optional: tuple[Names, ...] = ()
    mix: tuple[str, int] = ("", 0)

    def names(self) -> Names:
        """All of them in one table."""
        return {**self.required, **{ours: names for group in self.optional for ours, names in group.items()}}


def _both(ours: str, *published: str) -> Names:
    """Weight and bias."""
    return {f"{ours}.{part}": tuple(f"{name}.{part}" for name in published) for part in ("weight", "bias")}


_IMAGE = Family(
    required={"qkv.weight": ("to_qkv.weight",), **_both("out", "to_out.0")},
    optional=({"qkv.bias": ("to_qkv.bias",)}, _both("norm", "norm"), _both("lepe", "lepe"),
              {"q_norm.weight": ("q_norm.weight",), "k_norm.weight": ("k_norm.weight",)}),
    mix=("piece_attn.conv.weight", 2),
)  # fmt: skip
_VIDEO = Family(
    required={**_both("qkv", "q", "k", "v"), **_both("out", "o"), "head_norm.weight": ("g_norm.weight",)},
    optional=({"q_norm.weight": ("norm_q.weight",), "k_norm.weight": ("norm_k.weight",)}, _both("gate", "g"),
              _both("lepe", "lepe")),
    mix=("block_attn.conv.weight", 2),
)  # fmt: skip
_LM_PROJECTIONS = {"qkv.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"), "out.weight": ("o_proj.weight",)}
_LM_BIASES: tuple[Names, ...] = ({"qkv.bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias")}, {"out.bias": ("o_proj.bias",)})
_DIFFUSERS = {"qkv.weight": ("to_q.weight", "to_k.weight", "to_v.weight"), **_both("out", "to_out.0")}
_DIFFUSERS_OPTIONS: tuple[Names, ...] = (
    {"qkv.bias": ("to_q.bias", "to_k.bias", "to_v.bias")},
    {"q_norm.weight": ("norm_q.weight",), "k_norm.weight": ("norm_k.weight",)},
)
# Short convolutions, and the feature maps that learn: t2r has a weight, hedgehog its bias too, hadamard two layers.
_LM_OPTIONS: tuple[Names, ...] = (
    {f"{part}_conv.weight": (f"{part}_conv1d.weight",) for part in "qkv"},
    {f"feature_map_{part}.layer.weight": (f"feature_map_{part}.layer.weight",) for part in "qk"},
    {f"feature_map_{part}.layer.bias": (f"feature_map_{part}.layer.bias",) for part in "qk"},
    {key: value for part in "qk" for layer in ("layer1", "layer2")
     for key, value in _both(f"feature_map_{part}.{layer}", f"feature_map_{part}.{layer}").items()},
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "image": _IMAGE,  # DiT too: the same names
    "linear": Family(required={"qkv.weight": ("to_qkv.weight",), **_both("out", "to_out.0"),
                               "q_norm.weight": ("q_norm.weight",), "k_norm.weight": ("k_norm.weight",)},
                     optional=({"qkv.bias": ("to_qkv.bias",)}, _both("lepe", "lepe"))),  # fmt: skip
    "video": _VIDEO,
    "lm": Family(required={**_LM_PROJECTIONS, "head_norm.weight": ("g_norm.weight",)}, optional=_LM_OPTIONS,
                 mix=("mixing_matrix", 4)),  # fmt: skip
    "lm_gated": Family(required={**_LM_PROJECTIONS, "gate.weight": ("g_proj.weight",),
                                 "head_norm.weight": ("g_norm_swish_gate.weight",)},
                       optional=_LM_OPTIONS, mix=("mixing_matrix", 4)),  # fmt: skip
    "dit_base": Family(required={**_both("qkv", "qkv"), **_both("out", "proj")}),
    "diffusers": Family(required=_DIFFUSERS, optional=_DIFFUSERS_OPTIONS, mix=("processor.mix", 0)),  # after replace_attention
    "diffusers_base": Family(required=_DIFFUSERS, optional=_DIFFUSERS_OPTIONS),
    "timm": Family(required={"qkv.weight": ("qkv.weight",), **_both("out", "proj")}, optional=({"qkv.bias": ("qkv.bias",)},),
                   mix=("mix", 0)),  # without mix the names are those of dit_base
    "transformers": Family(required=_LM_PROJECTIONS, optional=_LM_BIASES, mix=("mix", 0)),  # ViT and Llama
    "transformers_base": Family(required=_LM_PROJECTIONS, optional=_LM_BIASES),
    "wan_base": Family(required={**_both("qkv", "q", "k", "v"), **_both("out", "o"), "q_norm.weight": ("norm_q.weight",),
                                 "k_norm.weight": ("norm_k.weight",)}),  # fmt: skip
}


def _fit(family: Family, keys: set[str]) -> tuple[list[str], list[str]]:
    """What of the family is missing in ``keys``, and what is left over."""
    missing = [name for names in family.required.values() for name in names if name not in keys]
    known = {name for names in family.names().values() for name in names}
    for group in family.optional:
        names = [name for parts in group.values() for name in parts]
        if any(name in keys for name in names):
            missing += [name for name in names if name not in keys]
    if family.mix[0]:
        known.add(family.mix[0])
        missing += [family.mix[0]] if family.mix[0] not in keys else []
    return missing, sorted(keys - known)


def family_of(weights: Mapping[str, Tensor]) -> str:
    """The family whose names these are, exactly; otherwise an error that lists, for the nearest, what is missing and what
    is left over."""
    keys = set(weights)
    fits = {name: _fit(family, keys) for name, family in FAMILIES.items()}
    exact = [name for name, (missing, over) in fits.items() if not missing and not over]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise RuntimeError(f"convert: the names fit {', '.join(exact)} alike, expected one family")
    nearest = min(fits, key=lambda name: sum(map(len, fits[name])))
    missing, over = fits[nearest]
    raise RuntimeError(
        f"convert: the names fit no family; nearest is {nearest}, missing: {', '.join(missing) or 'nothing'}; "
        f"left over: {', '.join(over) or 'nothing'}"
    )


def from_published(weights: Mapping[str, Tensor], family: str = "", prefix: str = "") -> Weights:
    """Our names for the weights of one attention layer. ``prefix`` (``"blocks.0.attn."``) picks the layer out of a model's;
    without ``family`` it is recognised by the names."""
    layer = {key[len(prefix) :]: value for key, value in weights.items() if key.startswith(prefix)}
    if not layer:
        raise RuntimeError(f"convert: no weights start with '{prefix}'")
    chosen = family or family_of(layer)
    if chosen not in FAMILIES:
        raise RuntimeError(f"convert: family is '{chosen}', expected one of {', '.join(FAMILIES)}")
    table = FAMILIES[chosen]
    missing, over = _fit(table, set(layer))
    if missing or over:
        raise RuntimeError(
            f"convert: {chosen}: missing: {', '.join(missing) or 'nothing'}; left over: {', '.join(over) or 'nothing'}"
        )
    ours = {}
    for name, published in table.names().items():
        if published[0] in layer:
            ours[name] = torch.cat([layer[part] for part in published]) if len(published) > 1 else layer[published[0]]
    name, ones = table.mix
    if name:
        mix = layer[name]
        if mix.dim() != 2 + ones or mix.shape[0] != mix.shape[1] or any(size != 1 for size in mix.shape[2:]):
            expected = ", ".join(["M", "M"] + ["1"] * ones)
            raise RuntimeError(f"convert: {name} has shape {list(mix.shape)}, expected [{expected}]")
        ours["mix"] = mix.flatten(1)
    return ours


def to_published(weights: Mapping[str, Tensor], family: str, widths: tuple[int, int, int]) -> Weights:
    """The published names of a layer's weights (its ``state_dict()``). ``widths``: rows of qkv that belong to q, k and v."""
    if family not in FAMILIES:
        raise RuntimeError(f"convert: family is '{family}', expected one of {', '.join(FAMILIES)}")
    table = FAMILIES[family]
    names = table.names()
    unknown = [name for name in weights if name not in names and not (name == "mix" and table.mix[0])]
    missing = [name for name in table.required if name not in weights]
    for group in table.optional:
        if any(name in weights for name in group):
            missing += [name for name in group if name not in weights]
    if table.mix[0]:
        missing += [] if "mix" in weights else ["mix"]
        if "mix" in weights and weights["mix"].dim() != 2:
            shape = list(weights["mix"].shape)
            raise RuntimeError(f"convert: mix has shape {shape}, expected [M, M]: {family} has one for all heads")
    if unknown or missing:
        raise RuntimeError(
            f"convert: {family} has no name for {', '.join(unknown) or 'nothing'} and needs {', '.join(missing) or 'nothing'}"
        )
    published = {}
    for name, value in weights.items():
        if name == "mix":
            published[table.mix[0]] = value.reshape(*value.shape, *[1] * table.mix[1])
        elif len(names[name]) == 1:
            published[names[name][0]] = value
        else:
            published.update(zip(names[name], value.split(list(widths))))
    return published


_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
           "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip


def load_safetensors(path: str | Path) -> tuple[Weights, dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    data = bytearray(Path(path).read_bytes())
    if len(data) < 8 or 8 + struct.unpack("<Q", data[:8])[0] > len(data):
        raise RuntimeError(f"{path}: {len(data)} bytes are no safetensors file")
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    try:
        header = json.loads(data[8:begin].decode())
        metadata = header.pop("__metadata__", {})
        entries = [(name, entry["dtype"], entry["shape"], *entry["data_offsets"]) for name, entry in header.items()]
        if not all(isinstance(number, int) for _, _, shape, *ends in entries for number in (*shape, *ends)):
            raise TypeError("sizes that are no integers")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"{path}: its header is no safetensors header: {type(error).__name__}: {error}") from error
    tensors = {}
    for name, text, shape, first, last in entries:
        if text not in _DTYPES:
            raise RuntimeError(f"{path}: {name} has dtype {text}, expected one of {', '.join(_DTYPES)}")
        dtype = _DTYPES[text]
        size = torch.empty((), dtype=dtype).element_size()
        count = 1
        for length in shape:
            count *= length
        if last - first != count * size or begin + last > len(data) or first < 0:
            raise RuntimeError(
                f"{path}: {name} has {last - first} bytes at {first}, expected {count * size} inside the file"
            )
        flat = (
            torch.frombuffer(data, dtype=dtype, count=count, offset=begin + first)
            if count
            else torch.empty(0, dtype=dtype)
        )
        tensors[name] = flat.reshape(shape).clone()
    return tensors, metadata
