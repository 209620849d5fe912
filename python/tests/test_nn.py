"""mhla.nn.MHLA beyond the golden files: options against plain torch code, training, dtypes, refusals."""

import plain
import pytest
import torch
import torch.nn.functional as F

import mhla
from mhla.nn import MHLA


def test_plain_layer():
    """Every part of the layer, spelled out."""
    layer = MHLA(24, 4, grid=(4, 6), blocks=(2, 3), num_kv_heads=2, qkv_bias=True, qk_norm=True, qk_norm_eps=1e-5, head_norm=True,
                 gate="silu", lepe=3, inner_norm=True).double()  # fmt: skip
    x = torch.randn(2, 24, 24, dtype=torch.float64)
    y = F.layer_norm(x, (24,), layer.norm.weight, layer.norm.bias)
    q, k, v = F.linear(y, layer.qkv.weight, layer.qkv.bias).split([24, 12, 12], -1)
    rms = lambda z, eps: z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
    heads = lambda z: z.reshape(2, 24, -1, 6)
    out = plain.attention(
        heads(rms(q, 1e-5)), heads(rms(k, 1e-5)), heads(v), layer.mix, plain.block_of(24, grid=(4, 6), blocks=(2, 3))
    )
    out = rms(out, 1e-6).reshape(2, 24, 24) * F.silu(F.linear(y, layer.gate.weight))
    local = F.conv2d(v.transpose(1, 2).reshape(2, 12, 4, 6), layer.lepe.weight, layer.lepe.bias, padding=1, groups=12)
    local = local.reshape(2, 2, 6, 24).repeat_interleave(2, 1).reshape(2, 24, 24).transpose(1, 2)
    torch.testing.assert_close(layer(x), F.linear(out + local, layer.out.weight, layer.out.bias))


def test_gate_around_lepe():
    layer = MHLA(16, 2, grid=(4, 4), blocks=(2, 2), gate="linear", lepe=5, lepe_inside_gate=True)
    with torch.no_grad():
        layer.gate.weight.zero_()
    assert torch.equal(layer(torch.randn(1, 16, 16)), layer.out.bias.expand(1, 16, 16))


@pytest.mark.parametrize("gate, act", [("silu", F.silu), ("linear", lambda z: z)])
def test_gates(gate, act):
    layer = MHLA(16, 2, block_size=8, max_tokens=16, gate=gate, gate_bias=True).double()
    x = torch.randn(1, 16, 16, dtype=torch.float64)
    y, q, k, v = layer._project(x)
    core = mhla.attention(q, k, v, layer.mix, block_size=8).flatten(-2)
    want = core * act(F.linear(x, layer.gate.weight, layer.gate.bias))
    torch.testing.assert_close(layer(x), F.linear(want, layer.out.weight, layer.out.bias))


def test_dropout_in_training_alone():
    layer = MHLA(16, 2, block_size=8, max_tokens=16, dropout=0.5)
    x = torch.randn(1, 16, 16)
    dropped = layer(x) == 0
    assert 0.3 < dropped.float().mean() < 0.7
    layer.eval()
    assert torch.equal(layer(x), layer(x)) and not (layer(x) == 0).any()


@pytest.mark.parametrize("options", [dict(eps=0.5), dict(scale=0.25), dict(normalizer="none")])
@pytest.mark.parametrize("causal", [False, True])
def test_options_of_the_operator_reach_it(options, causal):
    layout = dict(causal=True, chunk=8) if causal else dict(block_size=8)
    layer = MHLA(16, 2, max_tokens=16, **layout, **{"normalizer": "paper", **options}).double()
    x = torch.randn(1, 16, 16, dtype=torch.float64)
    _, q, k, v = layer._project(x)
    want = plain.attention(q, k, v, layer.mix, torch.arange(16) // 8, causal=causal,
                           **{"scale": 16 ** -0.5 * 2 ** 0.5 if causal and "normalizer" in options else 1.0, **options})  # fmt: skip
    torch.testing.assert_close(layer(x), F.linear(want.flatten(-2), layer.out.weight, layer.out.bias))


def test_longer_than_mix():
    """beyond_mix: one row that every chunk reuses is plain causal attention."""
    options = dict(causal=True, chunk=8, max_tokens=8, feature_map="elu1", normalizer="none", scale=1.0)
    with pytest.raises(RuntimeError, match="x has 30 tokens, expected at most max_tokens = 8"):
        MHLA(16, 2, **options)(torch.randn(1, 30, 16))
    layer = MHLA(16, 2, beyond_mix="extend", **options).double()
    x = torch.randn(1, 30, 16, dtype=torch.float64)
    _, q, k, v = layer._project(x)
    want = plain.attention(q, k, v, layer.mix, torch.zeros(30, dtype=torch.int64), causal=True, feature_map="elu1", normalizer="none")
    torch.testing.assert_close(layer(x), F.linear(want.flatten(-2), layer.out.weight, layer.out.bias))


def test_mix_as_told():
    layer = MHLA(16, 2, grid=(8, 8), blocks=(4, 4), mix="exp", mix_exp_sigma=0.7)
    torch.testing.assert_close(layer.mix.detach(), mhla.init_mix([4, 4], "exp", exp_sigma=0.7))
    assert not torch.allclose(layer.mix, mhla.init_mix([4, 4], "exp"))
    layer = MHLA(16, 2, grid=(8, 8), blocks=(4, 4), mix="local", mix_local_threshold=1.1)
    assert (layer.mix[0] > 0).sum() == 3  # itself and two neighbours, none of them diagonal
    layer = MHLA(16, 2, causal=True, max_tokens=256, mix="exp", mix_exp_sigma=0.7)
    torch.testing.assert_close(layer.mix.detach(), mhla.init_causal_mix(4, "exp", exp_sigma=0.7))


def test_constraint_of_a_layer():
    """Held in its range after a step; a causal layer's coefficients above the diagonal at 0. Officially before a forward."""
    layer = MHLA(16, 2, causal=True, chunk=8, max_tokens=32, mix_range=(0.1, 0.5))
    with torch.no_grad():
        layer.mix.fill_(-1.0)[2].fill_(2.0)
    layer.constrain_()
    assert layer.mix.triu(1).abs().sum() == 0
    assert layer.mix[1, 0] == 0.1 and layer.mix[2, 1] == 0.5
    official = MHLA.lm(16, 2, official=True)
    with torch.no_grad():
        official.mix.zero_()
    official(torch.randn(1, 4, 16))
    assert official.mix.min() == torch.tensor(1e-5)


def test_rope_leaves_the_normaliser_alone():
    """With v = 1 the output is the numerator's sum over the denominator's: rotation shows, and a normaliser of rotated
    features would hide it."""
    layer = MHLA(16, 2, grid=(4, 4), blocks=(2, 2), rope=True, feature_map="elu1").double()
    turned, straight = torch.randn(1, 16, 16, dtype=torch.float64), None
    y, q, k, v = layer._project(turned)
    arguments = layer._features(q, k, None)
    straight = {name: arguments[name] for name in ("q_den", "k_den")}
    torch.testing.assert_close(straight["q_den"], F.elu(q) + 1)
    block = plain.block_of(16, grid=(4, 4), blocks=(2, 2))
    want = plain.attention(arguments["q"], arguments["k"], v, layer.mix, block, feature_map="identity", **straight)
    got = mhla.attention(v=v, mix=layer.mix, grid=(4, 4), blocks=(2, 2), **arguments)
    torch.testing.assert_close(got, want)
    norms = arguments["q"].square().sum(-1)
    torch.testing.assert_close(norms, straight["q_den"].square().sum(-1))


def test_rope_knows_packed_sequences():
    layer = MHLA.lm(32, 2, chunk=8, max_tokens=64)
    x = torch.randn(1, 40, 32)
    bounds = torch.tensor([0, 11, 40])
    packed = layer(x, cu_seqlens=bounds)
    apart = torch.cat([layer(x[:, :11]), layer(x[:, 11:])], 1)
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-6)


def spelled_out(layer, name, x, q_or_k):
    """A feature map by its formula."""
    part = getattr(layer, f"feature_map_{q_or_k}")
    if name == "t2r":
        return (x @ part.layer.weight.T).relu()
    if name == "hedgehog":
        y = x @ part.layer.weight.T + part.layer.bias
        e = torch.cat([(2 * y).exp(), (-2 * y).exp()], -1)
        return e / e.sum(-1, keepdim=True)
    if name == "hadamard":
        return (x @ part.layer1.weight.T + part.layer1.bias) * (x @ part.layer2.weight.T + part.layer2.bias)
    r = torch.cat([x.clamp(min=0), (-x).clamp(min=0)], -1)
    return torch.cat([r * torch.cat([r[..., -j:], r[..., :-j]], -1) for j in (1, 2, 3, 4)], -1)


@pytest.mark.parametrize("name, size", [("t2r", 6), ("hedgehog", 12), ("hadamard", 6), ("dpfp", 48)])
@pytest.mark.parametrize("rope", [False, True])
def test_feature_maps_that_learn(name, size, rope):
    layer = MHLA(24, 4, causal=True, chunk=5, max_tokens=40, feature_map=name, normalizer="paper", rope=rope).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.rand_like(parameter) * 0.3)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    q, k, v = (part.reshape(2, 17, 4, 6) for part in F.linear(x, layer.qkv.weight).split(24, -1))
    q, k = spelled_out(layer, name, q, "q"), spelled_out(layer, name, k, "k")
    assert q.shape[-1] == size == layer._feature_size
    den = {}
    if rope:
        angles = mhla.nn.rotary.angles_1d(torch.arange(17), size, 10000.0)
        den = {"q_den": q, "k_den": k}
        q, k = (plain.rope(part, angles.cos(), angles.sin(), True) for part in (q, k))
    want = plain.attention(q, k, v, layer.mix, torch.arange(17) // 5, causal=True, feature_map="identity", **den)
    got = layer(x)
    torch.testing.assert_close(got, F.linear(want.flatten(-2), layer.out.weight, layer.out.bias))
    got.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    state = layer.streaming_state(batch=2)
    streamed = torch.cat([layer.stream(part, state) for part in x.split([3, 9, 1, 4], 1)], 1)
    torch.testing.assert_close(streamed, got.detach())


def test_short_convolutions():
    """Tap by tap, and packed sequences that do not reach into each other."""
    layer = MHLA.lm(32, 4, chunk=5, max_tokens=40, short_conv=4).double()
    x = torch.randn(1, 17, 32, dtype=torch.float64)
    parts = F.linear(x, layer.qkv.weight).split(layer.widths, -1)
    wanted = []
    for part, conv in zip(parts, (layer.q_conv, layer.k_conv, layer.v_conv)):
        assert conv.weight.shape == (part.shape[-1], 1, 4)
        total = torch.zeros_like(part)
        for t in range(17):
            for j in range(4):
                if t - 3 + j >= 0:
                    total[:, t] += part[:, t - 3 + j] * conv.weight[:, 0, j]
        wanted.append(total * total.sigmoid())
    for got, want in zip(layer._project(x)[1:], wanted):
        torch.testing.assert_close(got.flatten(-2), want)
    bounds = torch.tensor([0, 2, 2, 11, 17])
    apart = torch.cat([layer(x[:, first:last]) for first, last in zip(bounds[:-1], bounds[1:]) if last > first], 1)
    torch.testing.assert_close(layer(x, cu_seqlens=bounds), apart)


def test_it_learns():
    """A few steps lower a loss, and mix stays in its range."""
    layer = MHLA.image(32, 2, (8, 8), (4, 4))
    x, target = torch.randn(4, 64, 32), torch.randn(4, 64, 32)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-2)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(layer(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        layer.constrain_()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert layer.mix.min() >= 0 and layer.mix.max() <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    layer = MHLA(32, 2, block_size=8, max_tokens=32, head_norm=True, rope=True).to(dtype)
    try:
        out = layer(torch.randn(2, 30, 32, dtype=dtype))
    except RuntimeError as error:  # torch 1.13 has no linear layer of float16 on the CPU
        assert "not implemented for 'Half'" in str(error)
        return
    assert out.dtype == dtype and torch.isfinite(out).all()
    out.sum().backward()
    assert layer.mix.grad.dtype == dtype


def test_autocast_and_no_gradient_for_a_frozen_mix():
    layer = MHLA.dit(32, 2, (4, 4), (2, 2), learn_mix=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.randn(1, 16, 32))
    out.float().sum().backward()
    assert layer.mix.grad is None and layer.qkv.weight.grad is not None


def test_constraint():
    mix = torch.tensor([[-1.0, 0.5], [2.0, 0.25]])
    assert mhla.constrain_mix_(mix.clone()).tolist() == [[0.0, 0.5], [1.0, 0.25]]
    assert mhla.constrain_mix_(mix.clone(), causal=True).tolist() == [[0.0, 0.0], [1.0, 0.25]]
    rows = mhla.constrain_mix_(mix.clone(), renormalize_rows=True)
    torch.testing.assert_close(rows, torch.tensor([[0.0, 1.0], [0.8, 0.2]]))
    with pytest.raises(RuntimeError, match="lo is 1.0 and hi is 0.0"):
        mhla.constrain_mix_(mix, 1.0, 0.0)


def test_initial_values():
    assert torch.allclose(mhla.init_mix([2, 2])[0], torch.tensor([0.630602, 0.184699, 0.184699, 0.0]), atol=1e-6)
    assert torch.allclose(
        mhla.init_mix([4], official=True)[1], torch.tensor([0.333333, 0.375, 0.25, 0.166667]), atol=1e-6
    )
    assert mhla.init_causal_mix(3).tolist()[2] == pytest.approx([1 / 3] * 3)
    finer = mhla.resample_mix(mhla.init_mix([4, 4]), [4, 4], [8, 8])
    assert finer.shape == (64, 64) and torch.allclose(finer.sum(1), torch.ones(64), atol=1e-5)
    with pytest.raises(RuntimeError, match="axes, expected 1, 2 or 3"):
        mhla.init_mix([2, 2, 2, 2])


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(), "the layout is not given"),
        (dict(block_size=8, causal=True), "expected one of block_size, grid with blocks, causal"),
        (dict(grid=(4, 4)), "expected one of block_size, grid with blocks, causal"),
        (dict(block_size=8, num_heads=5), "dim is 32, expected a multiple of num_heads = 5"),
        (dict(block_size=8, num_kv_heads=3), "num_kv_heads is 3, expected a divisor of num_heads = 4"),
        (dict(block_size=8, feature_map="softmax"), "feature_map is 'softmax'"),
        (dict(block_size=8, short_conv=4), "short_conv is 4, expected 0, or taps of a causal layer"),
        (dict(block_size=8, lepe=3), "expected an odd kernel size on a 2D or 3D grid"),
        (dict(grid=(4, 4), blocks=(2, 2), lepe=4), "lepe is 4"),
        (dict(block_size=8, gate="tanh"), "gate is 'tanh'"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(RuntimeError, match=message):
        MHLA(32, options.pop("num_heads", 4), **options)


def test_wrong_inputs():
    layer = MHLA(32, 4, block_size=8, max_tokens=40)
    for shape in ((2, 37, 31), (37, 32)):
        with pytest.raises(RuntimeError, match=r"x has shape \[.*\], expected \[B, N, 32\]"):
            layer(torch.randn(shape))
    with pytest.raises(RuntimeError, match="x has 41 tokens, expected at most max_tokens = 40"):
        layer(torch.randn(1, 41, 32))
    assert layer(torch.randn(0, 37, 32)).shape == (0, 37, 32)


def test_wrong_number_of_tokens():
    with pytest.raises(RuntimeError, match="grid"):
        MHLA(32, 4, grid=(4, 4), blocks=(2, 2))(torch.randn(1, 15, 32))
