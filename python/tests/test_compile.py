"""torch.compile, torch.export and torch.library.opcheck: what PyTorch 2 asks of an operator."""

import pytest
import torch

import mhla
from mhla import _fake
from mhla.nn import MHLA

pytestmark = pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile came with PyTorch 2")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
BACKENDS = ["aot_eager", "inductor"]
LAYOUTS = [dict(block_size=8), dict(grid=(4, 10), blocks=(2, 5)), dict(causal=True, chunk=8)]


@pytest.fixture(autouse=True)
def fresh_cache():
    """Tests share their functions' code: without this one's compilations count against the next one's limit."""
    torch._dynamo.reset()


def inputs(device, M=5, requires_grad=True):
    make = lambda *shape: torch.randn(*shape, device=device, requires_grad=requires_grad)
    return (
        make(2, 40, 4, 16),
        make(2, 40, 2, 16),
        make(2, 40, 2, 16),
        torch.rand(M, M, device=device, requires_grad=requires_grad),
    )


def blocks_of(layout):
    return 10 if "grid" in layout else 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch.library.opcheck came with PyTorch 2.4")
def test_opcheck(device, causal):
    q, k, v, mix = inputs(device)
    q_den, k_den = q.detach().clone().requires_grad_(), k.detach().clone().requires_grad_()
    op = torch.ops.mhla.chunkwise.default if causal else torch.ops.mhla.bidirectional.default
    torch.library.opcheck(op, (q, k, v, mix, 8))
    more = dict(q_den=q_den, k_den=k_den, normalizer="paper")
    torch.library.opcheck(op, (q, k, v, mix, 8), more)
    packed = dict(cu_seqlens=torch.tensor([0, 11, 40]))
    torch.library.opcheck(op, (q[:1], k[:1], v[:1], mix, 8), packed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_compiled_in_one_graph(layout, device, backend):
    tensors = inputs(device, blocks_of(layout))
    call = lambda q, k, v, mix: (mhla.attention(q.sin(), k, v, mix, **layout) * 2).cos()
    want = call(*tensors)
    dout = torch.randn_like(want)
    want_gradients = torch.autograd.grad(want, tensors, dout)
    got = torch.compile(call, fullgraph=True, backend=backend)(*tensors)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), want_gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_for_any_length(device):
    call = torch.compile(
        lambda q, k, v, mix: mhla.attention(q, k, v, mix, block_size=8) + 1,
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for tokens in (40, 33, 17):
        q, k, v, mix = inputs(device)
        q, k, v = q[:, :tokens], k[:, :tokens], v[:, :tokens]
        torch.testing.assert_close(call(q, k, v, mix), mhla.attention(q, k, v, mix, block_size=8) + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [
    lambda: MHLA.image(32, 2, (8, 8), (4, 4), official=True),
    lambda: MHLA.video(48, 2, (2, 4, 8), (1, 2, 2), gated=True, lepe=3),
    lambda: MHLA.lm(32, 2, chunk=16, max_tokens=64),
], ids=["image", "video", "lm"])  # fmt: skip
def test_layers_compile(make, device):
    layer = make().to(device)
    x = torch.randn(2, 64, layer.dim, device=device)
    want = layer(x)
    want.sum().backward()
    gradient = layer.mix.grad.clone()
    layer.zero_grad()
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    torch.testing.assert_close(layer.mix.grad, gradient)


def test_export():
    layer = MHLA.dit(32, 2, (4, 4), (2, 2))
    x = torch.randn(2, 16, 32)
    exported = torch.export.export(layer, (x,))
    assert any("mhla.bidirectional" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), layer(x))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.skipif(not _fake.possible(), reason="this PyTorch lets no shape function replace one of C++")
def test_shapes_beside_host_offsets(causal):
    """cu_seqlens is in host memory also for tensors of a device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    op = torch.ops.mhla.chunkwise if causal else torch.ops.mhla.bidirectional
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 40, heads, 16, device="cuda") for heads in (4, 2, 2))
        mix = torch.empty(5, 5, device="cuda")
        out = op(q, k, v, mix, 8, cu_seqlens=torch.tensor([0, 11, 40]))
        assert out.shape == (1, 40, 4, 16) and out.device.type == "cuda"
        with pytest.raises(Exception, match="k has 3"):
            op(q, torch.empty(1, 40, 3, 16, device="cuda"), v, mix, 8)
