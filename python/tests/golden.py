"""Golden files: inputs, weights, outputs and gradients of the published code. Cases become a layer and its numbers."""

import json
from pathlib import Path

import torch

from mhla import convert

FOLDER = Path(__file__).parents[2] / "tests" / "golden"


def cases(file):
    """(name, config, tensors by name) of every case."""
    tensors, metadata = convert.load_safetensors(FOLDER / f"{file}.safetensors")
    for name, text in metadata.items():
        own = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(name + "/")}
        if own:
            yield name, json.loads(text), own


def error(got, want):
    """max |got - want| / max |want|; NaN where either is."""
    return ((got - want).abs().max() / want.abs().max()).item()


def part(case, prefix):
    return {key[len(prefix) :]: value for key, value in case.items() if key.startswith(prefix)}


def square(tokens):
    side = round(tokens**0.5)
    assert side * side == tokens
    return side


def raster_order(grid, blocks):
    """index[i]: the raster place of the i-th token in block order."""
    rows, columns = grid
    r, c = blocks
    place = torch.arange(rows * columns).view(r, rows // r, c, columns // c)
    return place.permute(0, 2, 1, 3).reshape(-1)


class BlockOrder(torch.nn.Module):
    """Hands [B, M, N_b, C] in block order to a layer that wants [B, N, C] in raster order, and back."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.order = raster_order(layer.grid, layer.blocks)

    def forward(self, x):
        raster = torch.empty_like(x.flatten(1, 2))
        raster = raster.index_copy(1, self.order, x.flatten(1, 2))
        return self.layer(raster)[:, self.order].view_as(x)


def window_layer(make, config, tokens_per_block):
    side, window = square(config["embed_len"]), square(tokens_per_block)
    return make(config["dim"], config["heads"], (side, side), (side // window, side // window), official=True,
                dropout=config["dropout"], qk_norm=config["qk_norm"], mix=config["transform"])  # fmt: skip
