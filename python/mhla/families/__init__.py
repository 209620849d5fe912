"""Attention layers of other people's models, replaced and put back. One file a kind of model; the table is below."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from .. import _backend
from .._types import Backend, FeatureMap, Normalizer
from .core import Grid, NoteGrid, Replaced, Settings
from .denoisers import DiTProcessor, SanaProcessor, WanProcessor
from .language import LlamaAttention
from .program import load_denoiser, save_denoiser
from .vision import TimmAttention, ViTAttention

__all__ = ["FAMILIES", "Report", "load_denoiser", "replace_attention", "restore_attention", "save_denoiser"]


class Family(NamedTuple):
    """How a kind of model is recognised, and what takes the place of its attention."""

    package: str
    model: str  # class of the model, or of a part of it
    attention: str  # class of its attention layers
    make: Any  # of the old layer, grid, settings and extra tokens
    patches: str = ""  # the convolution that makes the patches, from the model
    processor: bool = False  # replaces the processor of the layer, not the layer
    feature_map: str = "relu_eps"
    eps: float = 1e-6


FAMILIES: dict[str, Family] = {
    "timm": Family("timm", "VisionTransformer", "Attention", TimmAttention, "patch_embed.proj"),
    "transformers.vit": Family("transformers", "ViTModel", "ViTAttention", ViTAttention,
                               "embeddings.patch_embeddings.projection"),
    "transformers.llama": Family("transformers", "LlamaModel", "LlamaAttention", LlamaAttention),
    "diffusers.dit": Family("diffusers", "DiTTransformer2DModel", "Attention", DiTProcessor, "pos_embed.proj", True),
    "diffusers.sana": Family("diffusers", "SanaTransformer2DModel", "Attention", SanaProcessor, "patch_embed.proj", True,
                             "relu", 1e-15),
    "diffusers.wan": Family("diffusers", "WanTransformer3DModel", "WanAttention", WanProcessor, "patch_embedding", True),
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What :func:`replace_attention` did, by the names of the layers in the model."""

    family: str
    replaced: list[str]
    left: dict[str, str]  # name to the reason

    def __str__(self) -> str:
        lines = [f"{self.family}: {len(self.replaced)} attention layers replaced, {len(self.left)} left"]
        lines += [f"  replaced  {name}" for name in self.replaced]
        lines += [f"  left      {name} ({reason})" for name, reason in self.left.items()]
        return "\n".join(lines)


def _is(module: nn.Module, package: str, name: str) -> bool:
    return any(c.__name__ == name and c.__module__.split(".")[0] == package for c in type(module).__mro__)


def _family_of(model: nn.Module) -> tuple[str, nn.Module]:
    """The family, and the part of the model that it describes."""
    for part in model.modules():
        for name, family in FAMILIES.items():
            if _is(part, family.package, family.model):
                return name, part
    known = ", ".join(f"{f.package} {f.model}" for f in FAMILIES.values())
    raise RuntimeError(f"replace_attention: the model is a {type(model).__name__}, expected one that has a {known}")


def _chosen(layers: str | Sequence[int], count: int) -> set[int]:
    """Layers that are replaced."""
    if isinstance(layers, str):
        if layers == "all":
            return set(range(count))
        kept = re.fullmatch(r"every-([1-9][0-9]*)(st|nd|rd|th)-kept", layers)
        if kept is None:
            raise RuntimeError(f"replace_attention: layers is '{layers}', expected all, every-3rd-kept or a list of numbers")
        return {i for i in range(count) if (i + 1) % int(kept[1])}
    for i in layers:
        if not 0 <= i < count:
            raise RuntimeError(f"replace_attention: layers has {i}, expected 0 to {count - 1}")
    return set(layers)


def _axes(sizes: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if sizes is None else (sizes,) if isinstance(sizes, int) else tuple(sizes)


def _first_grid(part: nn.Module, patches: nn.Module | None) -> tuple[int, ...] | None:
    """What the model says about its grid, before it has seen an input."""
    known: Any = getattr(getattr(part, "patch_embed", None), "grid_size", None)
    if known is not None:
        return tuple(known)
    config: Any = getattr(part, "config", None)
    size = getattr(config, "sample_size", None) or getattr(config, "image_size", None)
    stride: Any = getattr(patches, "stride", None)
    if size is None or stride is None or len(stride) != 2:
        return None
    sides = (size, size) if isinstance(size, int) else size
    return tuple(side // step for side, step in zip(sides, stride))


def _extra(part: nn.Module) -> int:
    """Tokens before the grid: class token and registers."""
    prefix: Any = getattr(part, "num_prefix_tokens", None)
    return int(prefix) if prefix is not None else int(_is(part, "transformers", "ViTModel"))


def replace_attention(
    model: nn.Module,
    attention: str = "mhla",
    *,
    blocks: int | Sequence[int] | None = None,
    block_size: int | Sequence[int] | None = None,
    layers: str | Sequence[int] = "all",
    grid: Sequence[int] | None = None,
    feature_map: FeatureMap | None = None,
    normalizer: Normalizer = "paper",
    mix: str | None = None,
    max_tokens: int | None = None,
    backend: Backend | None = None,
) -> tuple[Any, Report]:
    """Replaces the self-attention of a model of timm, transformers or diffusers by MHLA, in place.

    Projections, norms and everything else keep their weights; each replaced layer gets a mixing matrix to learn. The
    converted model must be fine-tuned. Grids follow the input: other resolutions work, and their matrices are resampled.
    Attention masks are refused, except for padding in language models.

    Args:
        model: one that has a timm ``VisionTransformer``, transformers ``ViTModel`` or ``LlamaModel``, or diffusers
            ``DiTTransformer2DModel``, ``SanaTransformer2DModel`` or ``WanTransformer3DModel``.
        attention: ``"mhla"``.
        blocks: blocks per axis, (4, 4); the same for all inputs where they fit.
        block_size: instead: tokens of a block along each axis (7, or one per axis); for a language model the chunk.
        layers: ``"all"``, ``"every-3rd-kept"`` (layers 3, 6, ... keep their attention) or the numbers to replace, from 0.
        grid: tokens per axis at first, where the model does not say them (Wan).
        feature_map: ``"relu_eps"`` unless told, ``"relu"`` for Sana.
        normalizer: ``"paper"`` or ``"none"``.
        mix: initial values: those of :func:`mhla.init_mix`, in a language model of :func:`mhla.init_causal_mix`.
        max_tokens: of a language model: tokens that the matrix has rows for, at most 4096 unless told. Later tokens reuse
            its last row by distance.
        backend: ``"kernels"`` or ``"torch"``, as in :func:`mhla.attention`.

    Returns:
        The same model object, and a :class:`Report` of what was replaced and what was left.

    Example::

        model = timm.create_model("vit_tiny_patch16_224", pretrained=True)
        model, report = mhla.replace_attention(model, blocks=(7, 7))
    """
    if attention != "mhla":
        raise RuntimeError(f"replace_attention: attention is '{attention}', expected mhla")
    if (blocks is None) == (block_size is None):
        raise RuntimeError("replace_attention: expected one of blocks and block_size")
    if normalizer not in ("paper", "none"):
        raise RuntimeError(f"replace_attention: normalizer is '{normalizer}', expected paper or none")
    if not _backend.plain(backend, "replace_attention: backend"):
        _backend.kernels()
    if any(isinstance(module, Replaced) for module in model.modules()):
        raise RuntimeError("replace_attention: the model has been converted already, expected restore_attention first")
    name, part = _family_of(model)
    family = FAMILIES[name]
    patches = part.get_submodule(family.patches) if family.patches else None
    place = Grid(tuple(grid) if grid is not None else _first_grid(part, patches))
    settings = Settings(_axes(blocks), _axes(block_size), feature_map or family.feature_map, normalizer, family.eps, mix,
                        max_tokens, backend)  # fmt: skip
    found = [path for path, module in model.named_modules() if _is(module, family.package, family.attention)]
    crossed = [path for path in found if family.processor and path.rsplit(".", 1)[-1] != "attn1"]
    found = [path for path in found if path not in crossed]
    if not found:
        raise RuntimeError(f"replace_attention: the {family.model} has no {family.attention} layers, expected some")
    chosen = _chosen(layers, len(found))
    made = {i: family.make(model.get_submodule(found[i]), place, settings, _extra(part)) for i in sorted(chosen)}
    for i, new in made.items():  # all or none
        _put(model, found[i], new, family.processor)
    if patches is not None:
        patches.register_forward_hook(NoteGrid(place))
    left = dict.fromkeys(crossed, "cross-attention")
    left.update({path: "not among layers" for i, path in enumerate(found) if i not in chosen})
    return model, Report(name, [found[i] for i in sorted(chosen)], left)


def _put(model: nn.Module, path: str, new: Any, processor: bool) -> None:
    if processor:
        layer = model.get_submodule(path)
        layer._modules.pop("processor", None)
        layer.__dict__.pop("processor", None)
        layer.processor = new
        return
    parent, _, attribute = path.rpartition(".")
    setattr(model.get_submodule(parent), attribute, new)


def restore_attention(model: nn.Module) -> tuple[Any, list[str]]:
    """Puts the attention layers back that :func:`replace_attention` took out, in place. What projections and norms have
    learned since stays; mixing matrices are dropped.

    Returns:
        The same model object, and the names of the layers that were restored.
    """
    restored = []
    for path, module in list(model.named_modules()):
        for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, NoteGrid)]:
            del module._forward_hooks[key]
        if not isinstance(module, Replaced):
            continue
        processor = path.rsplit(".", 1)[-1] == "processor"
        if processor:
            path = path.rpartition(".")[0]
        else:  # a part may have been wrapped since, by LoRA for example
            module.old._modules.update({name: part for name, part in module._modules.items() if name in module.old._modules})
            module.old.train(module.training)
        _put(model, path, module.old, processor)
        restored.append(path)
    return model, restored
