"""torch.ops.mhla.rope: the feature map and rotary positions behind it, against plain torch code."""

import copy

import plain
import pytest
import torch

import mhla

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
MAPS = ["identity", "relu", "relu_eps", "elu1"]


def inputs(device="cpu", dtype=torch.float64, batched=False, requires_grad=True):
    q, k = (torch.randn(2, 5, heads, 12, dtype=dtype, device=device, requires_grad=requires_grad) for heads in (4, 2))
    angles = 3 * torch.randn(*([2] if batched else []), 5, 6, dtype=torch.float64, device=device)
    table = torch.float64 if dtype == torch.float64 else torch.float32
    return q, k, angles.cos().to(table), angles.sin().to(table)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("halves", [True, False])
def test_formula(device, feature_map, halves):
    for dtype, off in ((torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        q, k, cos, sin = inputs(device, dtype, batched=halves, requires_grad=False)
        for got, x in zip(torch.ops.mhla.rope(q, k, cos, sin, halves, feature_map), (q, k)):
            want = plain.rope(x.double(), cos.double(), sin.double(), halves, feature_map)
            assert got.dtype == dtype and got.is_contiguous()
            torch.testing.assert_close(got.double(), want, rtol=off, atol=1e-6 if dtype != torch.float64 else 1e-14)


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("halves", [True, False])
def test_gradcheck(feature_map, halves):
    q, k, cos, sin = inputs(batched=not halves)
    call = lambda q, k: torch.ops.mhla.rope(q, k, cos, sin, halves, feature_map)
    assert torch.autograd.gradcheck(call, (q, k))
    assert torch.autograd.gradgradcheck(call, (q, k))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with PyTorch 2.4")
def test_opcheck(device):
    for feature_map in ("identity", "relu"):
        q, k, cos, sin = inputs(device, torch.float32)
        torch.library.opcheck(torch.ops.mhla.rope.default, (q, k, cos, sin, True, feature_map))
        qkv = torch.randn(2, 5, 3, 4, 12, device=device)  # slices
        torch.library.opcheck(torch.ops.mhla.rope.default, (qkv[:, :, 0], qkv[:, :, 1], cos, sin, False, feature_map))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with PyTorch 2")
def test_compiled_for_any_length(device):
    torch._dynamo.reset()
    call = lambda q, k, cos, sin: torch.ops.mhla.rope(q * 2, k, cos, sin, True, "relu")[0] + 1
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (5, 4, 2):
        q, k, cos, sin = inputs(device, torch.float32)
        some = q[:, :tokens], k[:, :tokens], cos[:tokens], sin[:tokens]
        torch.testing.assert_close(compiled(*some), call(*some))


def test_autocast():
    q, k, cos, sin = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.ops.mhla.rope(q, k, cos, sin, True)
    want = torch.ops.mhla.rope(q.bfloat16(), k.bfloat16(), cos, sin, True)
    for a, b in zip(got, want):
        assert a.dtype == torch.bfloat16 and torch.equal(a, b)


def test_refusals():
    q, k, cos, sin = inputs(dtype=torch.float32, requires_grad=False)
    call = torch.ops.mhla.rope
    with pytest.raises(RuntimeError, match=r"rope: cos has shape \[4, 6\], expected \[5, 6\] or \[2, 5, 6\]"):
        call(q, k, cos[:4], sin, True)
    with pytest.raises(RuntimeError, match="rope: sin is f64, expected f32 beside q in f32"):
        call(q, k, cos, sin.double(), True)
    with pytest.raises(RuntimeError, match=r"rope: k has shape \[2, 5, 2, 10\], expected \[2, 5, Hkv, 12\]"):
        call(q, k[..., :10], cos, sin, True)
    with pytest.raises(RuntimeError, match="tanh"):
        call(q, k, cos, sin, True, "tanh")
    with pytest.raises(RuntimeError, match="rope: cos wants a gradient"):
        call(q, k, cos.requires_grad_(), sin, True)


def test_the_table_of_a_layer_grows():
    layer = mhla.nn.MHLA.lm(32, 2, chunk=16, max_tokens=512)
    x = torch.randn(1, 300, 32)
    whole = copy.deepcopy(layer)(x)
    for tokens, room in ((40, 64), (70, 128), (300, 512), (64, 512)):
        torch.testing.assert_close(layer(x[:, :tokens]), whole[:, :tokens])
        ((cos, _),) = layer._tables.values()
        assert cos.shape[0] == room
