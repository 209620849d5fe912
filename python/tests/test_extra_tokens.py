"""Tokens that are not on the grid, padding, other resolutions, constraints of whole models, and what users get wrong."""

import copy
import importlib
import math
import warnings

import numpy
import plain
import pytest
import torch

import mhla
from mhla.nn import MHLA

BACKENDS = ["kernels", "torch"]


def with_extra_block(tokens, extra, **layout):
    return torch.cat([torch.zeros(extra, dtype=torch.int64), 1 + plain.block_of(tokens - extra, **layout)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extra", [1, 5, 40])
@pytest.mark.parametrize("layout", [dict(block_size=8), dict(grid=(5, 6), blocks=(2, 3)), dict(grid=(2, 3, 5), blocks=(1, 2, 2))], ids=str)
@pytest.mark.parametrize("options", [dict(), dict(normalizer="none", feature_map="elu1"), dict(eps=0.0, feature_map="elu1")], ids=str)
def test_extra_tokens_are_a_block_of_their_own(layout, extra, options, backend):
    N = 30 + extra
    block = with_extra_block(N, extra, **layout)
    M = int(block.max()) + 1
    make = lambda heads, size: torch.randn(2, N, heads, size, dtype=torch.float64, requires_grad=True)
    tensors = make(4, 6), make(2, 6), make(2, 5), torch.rand(4, M, M, dtype=torch.float64, requires_grad=True)
    got = mhla.attention(*tensors, **layout, **options, extra_tokens=extra, backend=backend)
    want = plain.attention(*tensors, block, **options)
    torch.testing.assert_close(got, want)
    dout = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", [dict(block_size=8), dict(causal=True, chunk=8), dict(grid=(4, 10), blocks=(2, 2))], ids=str)
def test_padding_is_not_seen(layout, backend):
    q, k, v = (torch.randn(2, 40, 2, 6, dtype=torch.float64) for _ in range(3))
    mix, mask = torch.rand(5, 5, dtype=torch.float64), torch.zeros(2, 40, dtype=torch.bool)
    mix = mix[:4, :4] if "grid" in layout else mix
    mask[0, 29:] = True
    v[0, 35] = k[0, 36] = float("nan")
    call = lambda k, v: mhla.attention(q, k, v, mix, **layout, normalizer="paper", key_padding_mask=mask, backend=backend)
    out = call(k, v)
    assert torch.isfinite(out).all()
    assert torch.equal(out, call(torch.where(mask[..., None, None], torch.ones_like(k), k), v))
    if "grid" not in layout:
        alone = mhla.attention(q[:1, :29], k[:1, :29], v[:1, :29], mix, **layout, normalizer="paper", backend=backend)
        torch.testing.assert_close(out[:1, :29], alone)
    with pytest.raises(RuntimeError, match="key_padding_mask has dtype torch.float64"):
        mhla.attention(q, k, v, mix, **layout, key_padding_mask=mask.double(), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_with_a_class_token(backend):
    layer = MHLA(24, 2, grid=(4, 6), blocks=(2, 3), extra_tokens=2, lepe=3, rope=True, qk_norm=True, head_norm=True, backend=backend).double()
    assert layer.mix.shape == (7, 7)
    torch.testing.assert_close(layer.mix.sum(1), torch.ones(7, dtype=torch.float64), rtol=1e-6, atol=0)
    x = torch.randn(2, 26, 24, dtype=torch.float64)
    y, q, k, v = layer._project(x)
    turned = layer._features(q, k, None)
    torch.testing.assert_close(turned["q"][:, :2], turned["q_den"][:, :2])  # no place, no rotation
    assert not torch.allclose(turned["q"][:, 3:], turned["q_den"][:, 3:])
    block = with_extra_block(26, 2, grid=(4, 6), blocks=(2, 3))
    out = plain.attention(turned["q"], turned["k"], v, layer.mix, block, feature_map="identity", q_den=turned["q_den"], k_den=turned["k_den"])
    torch.testing.assert_close(layer(x), layer._finish(y, v, out))
    assert layer._lepe_of(v)[:, :2].abs().sum() == 0
    with pytest.raises(RuntimeError, match=r"x has 23 tokens after 2 extra tokens, expected 24 of grid \(4, 6\)"):
        layer(x[:, :25])


def test_keyword_arguments_of_other_blocks():
    layer, x = MHLA(16, 2, block_size=8, max_tokens=16), torch.randn(1, 16, 16)
    want = layer(x)
    assert torch.equal(want, layer(x, attn_mask=None, is_causal=False, attention_mask=None, encoder_hidden_states=None))
    with pytest.raises(RuntimeError, match="attn_mask is given, expected None .key_padding_mask hides padding"):
        layer(x, attn_mask=torch.ones(16, 16))
    with pytest.raises(RuntimeError, match="encoder_hidden_states is given, expected None"):
        layer(x, encoder_hidden_states=x)
    mask = torch.zeros(1, 16, dtype=torch.bool)
    mask[0, 8:] = True
    torch.testing.assert_close(layer(x, key_padding_mask=mask)[:, :8], layer(x[:, :8]))


def test_another_resolution():
    layer = MHLA(16, 2, grid=(4, 4), blocks=(2, 2), lepe=3, rope=True, extra_tokens=1)
    layer(torch.randn(1, 17, 16))
    mix = layer.mix
    assert layer.resize((6, 8)) is layer and layer.mix is mix
    assert layer(torch.randn(1, 49, 16)).shape == (1, 49, 16)
    layer.resize((6, 8), (3, 4))
    assert layer.mix.shape == (13, 13) and layer.mix.requires_grad
    torch.testing.assert_close(layer.mix.sum(1), torch.ones(13), rtol=1e-5, atol=0)
    assert layer(torch.randn(1, 49, 16)).shape == (1, 49, 16)
    with pytest.raises(RuntimeError, match="which leaves a block empty"):
        layer.resize((7, 8), (5, 4))
    with pytest.raises(RuntimeError, match="expected 2 axes"):
        layer.resize((7, 8, 9))
    with pytest.raises(RuntimeError, match="the layer has no grid"):
        MHLA(16, 2, block_size=8).resize((4, 4))


def test_resampling_has_a_gradient():
    mix = mhla.init_mix([3, 3]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda m: mhla.resample_mix(m, [3, 3], [4, 2]), mix)


def test_constraints_of_a_model():
    model = torch.nn.Sequential(MHLA(16, 2, block_size=8, max_tokens=32), torch.nn.GELU(), MHLA.lm(16, 2, max_tokens=128))
    free = MHLA(16, 2, block_size=8, max_tokens=32, mix_range=None)
    model.append(free) if hasattr(model, "append") else model.add_module("3", free)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = mhla.constrain_after_step(optimizer, model)
    if hasattr(torch, "compile"):
        importlib.import_module("torch._dynamo")  # which takes hooks away in 2.2
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert model[0].mix.min() == 0 == model[2].mix.min() and free.mix.min() < -1
    handle.remove()
    optimizer.step()
    assert model[0].mix.min() < 0
    assert mhla.constrain_(model) == 3 and model[0].mix.min() == 0


def test_constraints_of_layers_alike():
    """Layers whose matrices are alike are constrained together: the values of one by one, NaN and infinity untouched."""
    layers = [MHLA(16, 2, block_size=8, max_tokens=32) for _ in range(3)]
    layers += [MHLA(16, 2, block_size=8, max_tokens=32, mix_range=(0.25, 0.5), mix_per_head=heads) for heads in (False, True, True)]
    layers += [MHLA.lm(16, 2, max_tokens=256) for _ in range(2)]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        layer.mix.data = 3 * torch.randn_like(layer.mix)
        layer.mix.data.flatten()[:2] = torch.tensor([math.nan, math.inf])
    one_by_one = copy.deepcopy(model)
    assert mhla.constrain_(model) == len(layers)
    for layer, expected in zip(layers, one_by_one):
        expected.constrain_()
        torch.testing.assert_close(layer.mix, expected.mix, rtol=0, atol=0, equal_nan=True)
        assert layer.mix[..., 1:, :].min() >= layer.mix_range[0] * (not layer.causal) and not layer.mix.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_before_tokens_are_noticed(backend):
    q = torch.randn(2, 6, 32, 8)
    with pytest.warns(UserWarning, match=r"6 tokens and 32 heads: the order is \[B, N, H, D\]"):
        mhla.attention(q, q, q, torch.rand(1, 1), block_size=8, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q = q.transpose(1, 2).contiguous()
        mhla.attention(q, q, q, torch.rand(4, 4), block_size=8, backend=backend)
        MHLA(16, 4, block_size=8)(torch.randn(1, 2, 16))


Q = torch.randn(1, 16, 2, 4)


@pytest.mark.parametrize("call, message", [
    (lambda: mhla.attention(numpy.zeros((1, 16, 2, 4)), Q, Q, torch.rand(2, 2), block_size=8), "mhla.attention: q is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: mhla.attention(Q, Q, Q, [[1.0]], block_size=16), "mhla.attention: mix is a builtins.list, expected a torch.Tensor"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(4, 4), grid=16, blocks=4), r"grid is 16, expected sizes per axis, such as \(16, 16\)"),
    (lambda: mhla.attention(Q[0], Q, Q, torch.rand(2, 2), block_size=8), r"^mhla.attention: q has shape \[16, 2, 4\], expected \[B, N, H, D\]"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(1, 1), causal=True, chunk=8), "^mhla.attention: mix has shape"),
    (lambda: mhla.init_mix(16), r"init_mix: blocks is 16, expected blocks per axis, such as \[4, 4\]"),
    (lambda: MHLA(32, 4, grid=16, blocks=(4, 4)), r"MHLA: grid is 16, expected sizes of 2 or 3 axes"),
    (lambda: MHLA(32, 4, grid=(4, 4), blocks=4), "MHLA: blocks is 4"),
    (lambda: MHLA(32, 4, causal=True, extra_tokens=1), "MHLA: extra_tokens is 1 in a causal layer"),
    (lambda: MHLA(32, 4, block_size=8, max_tokens=16)(torch.randn(1, 17, 32)), "x has 17 tokens, expected at most max_tokens = 16"),
    (lambda: MHLA.lm(32, 4, chunk=8, max_tokens=16)(torch.randn(1, 17, 32)), "x has 17 tokens, expected at most max_tokens = 16"),
    (lambda: MHLA(32, 4, grid=(4, 4), blocks=(2, 2), rope=True)(torch.randn(1, 25, 32)), r"25 tokens, expected 16 of grid \(4, 4\); for another size use layer.resize"),
    (lambda: MHLA(32, 4, block_size=8)(numpy.zeros((1, 8, 32))), "MHLA: x is a numpy.ndarray, expected a torch.Tensor"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(3, 3), causal=True, chunk=8, extra_tokens=1), "extra_tokens with causal=True"),
], ids=range(14))  # fmt: skip
def test_messages_name_what_the_user_wrote(call, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value) and "_forward" not in str(caught.value)
