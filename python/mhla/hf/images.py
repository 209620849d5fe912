"""Classifiers of ``mhla train classify`` as models of transformers: DeiT and VLT with mhla, linear or softmax attention,
under the names of the run's weights (mhla/models/classify)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from .. import rope as rotary
from .._parts import RMSNorm
from ..families.core import turn
from ..nn import MHLA

# The fields of a run's config.json and their defaults, as in mhla/models/classify/classifier_config.h.
FIELDS: dict[str, Any] = dict(
    model="deit_tiny", family="deit", attention="mhla", official=False, image=(224, 224), pad=(0, 0), channels=3, classes=1000,
    patch=16, dims=(192,), depths=(12,), heads=(3,), mlp_ratio=4.0, blocks=((4, 4),), cpe=3, lepe=0, qkv_bias=False,
    qk_norm=True, features="relu_eps", normalizer="paper", mix_init="linear", mix_sigma=3.0, mix_range=(0.0, 1.0),
    learn_mix=True, mix_per_head=False, pos_init="normal", init_std=0.02, drop_path=0.1, dropout=0.0,
)  # fmt: skip

softmax_attention: Any = getattr(F, "scaled_dot_product_attention", None)  # of PyTorch 2, as transformers
FINAL = 1024  # channels before the head of VLT


class MhlaImageConfig(PretrainedConfig):
    """The ``config.json`` of ``mhla train classify``; :data:`FIELDS` has its fields and their defaults. ``backend`` as in
    :func:`mhla.attention`."""

    model_type = "mhla_image"

    def __init__(self, backend: str | None = None, **options: Any) -> None:
        for name, default in FIELDS.items():
            setattr(self, name, options.pop(name, default))
        c: Any = self
        if c.family not in ("deit", "vlt") or c.attention not in ("mhla", "linear", "softmax"):
            raise RuntimeError(f"MhlaImageConfig: family is '{c.family}' and attention is '{c.attention}', "
                               "expected deit or vlt, and mhla, linear or softmax")  # fmt: skip
        self.backend = backend
        super().__init__(**options)

    @property
    def grids(self) -> list[tuple[int, int]]:
        """The token grid of every stage."""
        c: Any = self
        if c.family == "deit":
            rows, columns = (side // c.patch for side in (pad or size for pad, size in zip(c.pad, c.image)))
            return [(rows, columns)]
        sides = [math.ceil(math.ceil(size / 2) / 2) for size in c.image]
        found = []
        for _ in range(4):
            found.append((sides[0], sides[1]))
            sides = [math.ceil(side / 2) for side in sides]
        return found


class GridConv(nn.Conv2d):
    """A depth-wise convolution of tokens ``[B, N, C]`` over their grid."""

    def __init__(self, grid: tuple[int, int], channels: int, kernel: int) -> None:
        super().__init__(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2).unflatten(-1, self.grid)).flatten(2).transpose(1, 2)


class BatchNorm(nn.BatchNorm2d):
    """Without the count of batches, which runs do not keep."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("num_batches_tracked", None)


class Holder(nn.Module):
    """Modules under one name."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Cpe(Holder):
    conv: Any

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class Mlp(nn.Module):
    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(dim, width), nn.Linear(width, dim), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(x)))))


class PointConv(nn.Conv2d):
    """A 1x1 convolution, of tokens: their last axis."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(1), self.bias)


class Softmax(nn.Module):
    """Softmax attention of DeiT."""

    def __init__(self, dim: int, heads: int, grid: tuple[int, int], lepe: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.lepe = GridConv(grid, dim, lepe) if lepe else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = softmax_attention(q, k, v).transpose(1, 2).flatten(-2)
        if self.lepe is not None:
            out = out + self.lepe(v.transpose(1, 2).flatten(-2))
        return self.proj(out)


class GatedSoftmax(nn.Module):
    """Softmax attention of VLT: rotary positions, LePE, gate."""

    def __init__(self, dim: int, heads: int, grid: tuple[int, int], backend: Any) -> None:
        super().__init__()
        self.heads, self.grid, self.backend = heads, grid, backend
        self.qkvo, self.lepe, self.proj = nn.Linear(dim, 4 * dim), GridConv(grid, dim, 5), nn.Linear(dim, dim)
        self._tables: rotary.Tables = {}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, gate = self.qkvo(x).chunk(4, -1)
        q, k = (part.unflatten(-1, (self.heads, -1)) for part in (q, k))
        cos, sin = rotary.table(self._tables, self.grid, q.shape[-1], 10000.0, None, x.shape[1], q)
        q, k = turn(q, k, cos, sin, False, self.backend)
        parts = (part.transpose(1, 2) for part in (q, k, v.unflatten(-1, (self.heads, -1))))
        out = softmax_attention(*parts).transpose(1, 2).flatten(-2)
        return self.proj((out + self.lepe(v)) * gate)


def mixing(c: Any, linear: bool) -> dict[str, Any]:
    """What config.json says of mix."""
    return dict(mix=c.mix_init, mix_exp_sigma=c.mix_sigma, mix_range=tuple(c.mix_range), mix_per_head=c.mix_per_head,
                learn_mix=c.learn_mix and not linear, qk_norm=c.qk_norm, lepe=c.lepe, backend=c.backend)  # fmt: skip


def deit_attention(c: Any, grid: tuple[int, int]) -> nn.Module:
    dim, heads = c.dims[0], c.heads[0]
    if c.attention == "softmax":
        return Softmax(dim, heads, grid, c.lepe)
    if c.attention == "linear":
        return MHLA(dim, heads, grid=grid, blocks=(1, 1), feature_map="relu", qk_norm=c.qk_norm, qk_norm_eps=1e-6,
                    qkv_bias=c.qkv_bias, lepe=c.lepe, learn_mix=False, backend=c.backend)  # fmt: skip
    official = {} if c.official else {"normalizer": c.normalizer}
    return MHLA.image(dim, heads, grid, tuple(c.blocks[0]), official=c.official, qkv_bias=c.qkv_bias, feature_map=c.features,
                      **official, **mixing(c, False))  # fmt: skip


def vlt_attention(c: Any, stage: int, grid: tuple[int, int]) -> nn.Module:
    dim, heads = c.dims[stage], c.heads[stage]
    if stage >= 2 or c.attention == "softmax":
        return GatedSoftmax(dim, heads, grid, c.backend)
    linear = c.attention == "linear"
    return MHLA(dim, heads, grid=grid, blocks=(1, 1) if linear else tuple(c.blocks[stage]), qkv_bias=True, gate_bias=True,
                rope=True, gate="linear", lepe_inside_gate=True, feature_map=c.features, normalizer=c.normalizer,
                **mixing(c, linear))  # fmt: skip


def dropped(x: Tensor, rate: float, training: bool) -> Tensor:
    """In training each sample keeps x / (1 - rate), or gets 0."""
    if not training or rate == 0.0:
        return x
    kept = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= rate
    return x * kept.to(x.dtype) / (1 - rate)


class DeitBlock(nn.Module):
    def __init__(self, c: Any, grid: tuple[int, int], drop_path: float) -> None:
        super().__init__()
        dim, self.drop_path = c.dims[0], drop_path
        rms = c.official and c.attention == "linear"
        norm: Any = (lambda: RMSNorm(dim, 1e-6, c.backend)) if rms else (lambda: nn.LayerNorm(dim, 1e-6))
        self.cpe = Cpe(conv=GridConv(grid, dim, c.cpe)) if c.cpe else None
        self.norm1, self.attn = norm(), deit_attention(c, grid)
        self.norm2, self.mlp = norm(), Mlp(dim, int(c.mlp_ratio * dim), c.dropout)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.cpe is None else self.cpe(x)
        x = x + dropped(self.dropout(self.attn(self.norm1(x))), self.drop_path, self.training)
        return x + dropped(self.mlp(self.norm2(x)), self.drop_path, self.training)


class Deit:
    """Images ``[B, C, rows, columns]`` to logits: the parts of a model, which are its own modules."""

    @staticmethod
    def build(self: Any, c: Any) -> None:
        grid, dim, depth = c.grids[0], c.dims[0], c.depths[0]
        self.image, self.pad, self.dropout = tuple(c.image), tuple(c.pad), nn.Dropout(c.dropout)
        self.pos_embed = nn.Parameter(torch.randn(1, math.prod(grid), dim) * 0.02)
        self.patch_embed = Holder(proj=nn.Conv2d(c.channels, dim, c.patch, stride=c.patch))
        rates = [c.drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(DeitBlock(c, grid, rate) for rate in rates)
        self.fc_norm, self.head = nn.LayerNorm(dim, 1e-6), nn.Linear(dim, c.classes)

    @staticmethod
    def run(self: Any, x: Tensor) -> Tensor:
        if any(self.pad):
            rows, columns = (pad - size if pad else 0 for pad, size in zip(self.pad, self.image))
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        x = self.dropout(self.patch_embed.proj(x).flatten(2).transpose(1, 2) + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        return self.head(self.fc_norm(x.mean(1)))


class VltBlock(nn.Module):
    def __init__(self, c: Any, stage: int, grid: tuple[int, int], drop_path: float) -> None:
        super().__init__()
        dim, self.drop_path = c.dims[stage], drop_path
        width = int(c.mlp_ratio * dim)
        self.pos = GridConv(grid, dim, c.cpe) if c.cpe else None
        self.norm1, self.norm2 = (Holder(norm=nn.LayerNorm(dim, 1e-6)) for _ in range(2))
        self.attn = vlt_attention(c, stage, grid)
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.ones(1, dim, 1, 1)) for _ in range(2))
        self.ffn = Holder(fc1=PointConv(dim, width), dwconv=GridConv(grid, width, 3), fc2=PointConv(width, dim))
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        ffn: Any = self.ffn
        norm1: Any = self.norm1.norm
        norm2: Any = self.norm2.norm
        x = x if self.pos is None else x + self.pos(x)
        x = x + dropped(self.gamma_1.flatten() * self.dropout(self.attn(norm1(x))), self.drop_path, self.training)
        y = F.gelu(ffn.fc1(norm2(x)))
        y = self.dropout(ffn.fc2(y + ffn.dwconv(y)))
        return x + dropped(self.gamma_2.flatten() * y, self.drop_path, self.training)


class Vlt:
    """The same in four stages."""

    @staticmethod
    def build(self: Any, c: Any) -> None:
        first, half, total = c.dims[0], max(1, c.dims[0] // 2), sum(c.depths)
        conv: Any = lambda a, b, stride: nn.Conv2d(a, b, 3, stride, padding=1)  # noqa: E731
        self.patch_embed = Holder(proj=nn.Sequential(
            conv(c.channels, half, 2), BatchNorm(half), nn.GELU(), conv(half, half, 1), BatchNorm(half), nn.GELU(),
            conv(half, half, 1), BatchNorm(half), nn.GELU(), conv(half, first, 2), BatchNorm(first)))  # fmt: skip
        self.grids = c.grids
        layers = []
        for stage, grid in enumerate(self.grids):
            rates = [c.drop_path * (sum(c.depths[:stage]) + j) / max(1, total - 1) for j in range(c.depths[stage])]
            parts: dict[str, nn.Module] = dict(blocks=nn.ModuleList(VltBlock(c, stage, grid, rate) for rate in rates))
            if stage < 3:
                wider = c.dims[stage + 1]
                parts["downsample"] = Holder(reduction=conv(c.dims[stage], wider, 2), norm=BatchNorm(wider))
            layers.append(Holder(**parts))
        self.layers = nn.ModuleList(layers)
        self.proj, self.norm, self.head = PointConv(c.dims[3], FINAL), BatchNorm(FINAL), PointConv(FINAL, c.classes)

    @staticmethod
    def run(self: Any, x: Tensor) -> Tensor:
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        for layer, grid in zip(self.layers, self.grids):
            for block in layer.blocks:
                x = block(x)
            if "downsample" in layer._modules:
                image = x.transpose(1, 2).unflatten(-1, grid)
                x = layer.downsample.norm(layer.downsample.reduction(image)).flatten(2).transpose(1, 2)
        x = self.norm(self.proj(x).transpose(1, 2).unflatten(-1, self.grids[-1]))
        return self.head(F.silu(x).flatten(2).mean(-1))


class MhlaForImageClassification(PreTrainedModel):
    """A classifier of ``mhla train classify``, with its weights under their names."""

    config_class = MhlaImageConfig
    base_model_prefix = "network"
    main_input_name = "pixel_values"

    def __init__(self, config: MhlaImageConfig) -> None:
        super().__init__(config)
        c: Any = config
        (Deit if c.family == "deit" else Vlt).build(self, c)
        self.post_init()  # type: ignore[no-untyped-call, unused-ignore]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=self.config.init_std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        """Logits ``[B, classes]`` of images ``[B, channels, rows, columns]``, scaled as ``preprocess.json`` of the run says;
        with ``labels`` ``[B]`` their cross-entropy."""
        c: Any = self.config
        expected = (c.channels, *c.image)
        if pixel_values.dim() != 4 or tuple(pixel_values.shape[1:]) != expected:
            raise RuntimeError(f"MhlaForImageClassification: pixel_values has shape {list(pixel_values.shape)}, expected "
                               f"[B, {', '.join(map(str, expected))}]")  # fmt: skip
        logits = (Deit if c.family == "deit" else Vlt).run(self, pixel_values)
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        answer: dict[str, Any] = dict(loss=loss, logits=logits)
        return ImageClassifierOutput(**answer)
