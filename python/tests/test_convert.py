"""Published names: what is recognised, and what is refused with a list."""

import pytest
import torch

from mhla import convert
from mhla.nn import MHLA


def published(**options):
    layer = MHLA.video(48, 2, (2, 4, 4), (2, 2, 2), **options)
    return layer, convert.to_published(layer.state_dict(), "video", layer.widths)


def test_a_layer_out_of_a_model():
    layer, weights = published(gated=True, lepe=3)
    model = {f"blocks.3.self_attn.{name}": value for name, value in weights.items()}
    model["blocks.3.norm3.weight"] = torch.ones(48)
    ours = convert.from_published(model, prefix="blocks.3.self_attn.")
    assert set(ours) == set(layer.state_dict())
    assert all(torch.equal(ours[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("feature_map, names", [("relu", 0), ("t2r", 2), ("hedgehog", 4), ("hadamard", 8), ("dpfp", 0)])
@pytest.mark.parametrize("short_conv", [0, 4])
def test_language_models_with_options(gated, feature_map, names, short_conv):
    layer = MHLA.lm(32, 2, gated=gated, feature_map=feature_map, short_conv=short_conv)
    family = "lm_gated" if gated else "lm"
    weights = convert.to_published(layer.state_dict(), family, layer.widths)
    assert sum("feature_map" in name for name in weights) == names
    assert ("k_conv1d.weight" in weights) == bool(short_conv)
    assert convert.family_of(weights) == family
    ours = convert.from_published(weights)
    assert set(ours) == set(layer.state_dict())
    assert all(torch.equal(ours[name], value) for name, value in layer.state_dict().items())
    if names:
        del weights["feature_map_k.layer1.bias" if feature_map == "hadamard" else "feature_map_k.layer.weight"]
        with pytest.raises(RuntimeError, match="missing: feature_map_k.layer"):
            convert.from_published(weights)


def test_partial_files_are_refused():
    _, weights = published()
    del weights["k.weight"]
    weights["surprise"] = torch.ones(1)
    with pytest.raises(RuntimeError, match="nearest is video, missing: k.weight; left over: surprise"):
        convert.from_published(weights)
    with pytest.raises(RuntimeError, match="video: missing: k.weight; left over: surprise"):
        convert.from_published(weights, "video")


def test_half_a_gate_is_refused():
    _, weights = published(gated=True)
    del weights["g.bias"]
    with pytest.raises(RuntimeError, match="missing: g.bias"):
        convert.from_published(weights, "video")


def test_a_mixing_matrix_that_is_none_is_refused():
    _, weights = published()
    weights["block_attn.conv.weight"] = torch.rand(8, 7, 1, 1)
    with pytest.raises(RuntimeError, match=r"block_attn.conv.weight has shape \[8, 7, 1, 1\], expected \[M, M, 1, 1\]"):
        convert.from_published(weights)


def test_negative_weights_stay():
    _, weights = published()
    weights["block_attn.conv.weight"].fill_(-0.5)
    assert convert.from_published(weights)["mix"].max() == -0.5


def test_nothing_there():
    with pytest.raises(RuntimeError, match="no weights start with 'blocks.9.'"):
        convert.from_published({"x": torch.ones(1)}, prefix="blocks.9.")
    with pytest.raises(RuntimeError, match="family is 'vit'"):
        convert.from_published({"x": torch.ones(1)}, "vit")


def test_safetensors_that_are_none(tmp_path):
    file = tmp_path / "short.safetensors"
    file.write_bytes(b"abc")
    with pytest.raises(RuntimeError, match="3 bytes are no safetensors file"):
        convert.load_safetensors(file)
