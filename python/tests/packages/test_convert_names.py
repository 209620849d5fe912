"""mhla.convert with the names of timm, diffusers and transformers: a converted layer and mhla.nn.MHLA are one layer."""

import pytest
import torch
from test_families import dit, hf_vit, llama, sana, timm_vit, wan

import mhla
from mhla import convert
from mhla.nn import MHLA


def layer_of(weights, **options):
    layer = MHLA(**options).eval()
    layer.load_state_dict(weights)
    return layer


def random_mix(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mix"):
                parameter.copy_(torch.rand_like(parameter).tril() if parameter.shape[0] == 16 and "self_attn" in name else torch.rand_like(parameter))


VISION = {
    "timm": (timm_vit, "blocks.1.attn.", 48, "timm"),
    "transformers.vit": (hf_vit, "vit.layers.1.attention.", 32, "transformers"),
}


@pytest.mark.parametrize("name", list(VISION))
def test_vision(name):
    make, prefix, dim, family = VISION[name]
    model, report = mhla.replace_attention(make().eval(), blocks=(4, 2))
    prefix = report.replaced[1] + "."
    random_mix(model)
    ours = convert.from_published(model.state_dict(), prefix=prefix)
    own = {key[len(prefix) :]: value for key, value in model.state_dict().items() if key.startswith(prefix)}
    assert convert.family_of(own) == family
    layer = layer_of(ours, dim=dim, num_heads=4, grid=(8, 8), blocks=(4, 2), qkv_bias=True, extra_tokens=1)
    x, old = torch.randn(2, 65, dim), model.get_submodule(prefix[:-1])
    want = old(x)
    torch.testing.assert_close(layer(x), want[0] if isinstance(want, tuple) else want, rtol=1e-4, atol=1e-5)
    back = convert.to_published(layer.state_dict(), family, layer.widths)
    assert set(back) == set(own) and all(torch.equal(back[key], own[key]) for key in own)


def test_llama():
    model, report = mhla.replace_attention(llama().eval(), block_size=8, max_tokens=128)
    random_mix(model)
    prefix = report.replaced[0] + "."
    ours = convert.from_published(model.state_dict(), prefix=prefix)
    layer = layer_of(ours, dim=32, num_heads=4, num_kv_heads=2, causal=True, chunk=8, max_tokens=128, rope=True, out_bias=False,
                     normalizer="paper", rope_base=10000.0)  # fmt: skip
    x = torch.randn(2, 37, 32)
    position = model.model.rotary_emb(x, torch.arange(37)[None])
    torch.testing.assert_close(layer(x), model.get_submodule(prefix[:-1])(x, position)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make, options, grid", [(dict(make=dit, dim=32, heads=4), dict(qkv_bias=True), (8, 8)),
                                                 (dict(make=sana, dim=32, heads=4), dict(feature_map="relu", eps=1e-15), (8, 8))])  # fmt: skip
def test_denoisers(make, options, grid):
    model, report = mhla.replace_attention(make["make"]().eval(), blocks=(4, 2))
    random_mix(model)
    prefix = report.replaced[0] + "."
    assert convert.family_of({k[len(prefix) :]: v for k, v in model.state_dict().items() if k.startswith(prefix)}) == "diffusers"
    ours = convert.from_published(model.state_dict(), prefix=prefix)
    layer = layer_of(ours, dim=make["dim"], num_heads=make["heads"], grid=grid, blocks=(4, 2), **options)
    attention = model.get_submodule(prefix[:-1])
    x = torch.randn(2, 64, make["dim"])
    torch.testing.assert_close(layer(x), attention(x), rtol=1e-4, atol=1e-5)


def test_softmax_layers_have_families_too():
    """What they hold before the conversion, of the original model."""
    for make, prefix, family in ((dit, "transformer_blocks.0.attn1.", "diffusers_base"), (wan, "blocks.0.attn1.", "diffusers_base"),
                                 (llama, "model.layers.0.self_attn.", "transformers_base"), (timm_vit, "blocks.0.attn.", "dit_base")):  # fmt: skip
        state = make().state_dict()
        assert convert.family_of({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}) == family
        assert {"qkv.weight", "out.weight"} <= set(convert.from_published(state, prefix=prefix))
