"""backend="torch" under what PyTorch 2 does to models: export, ONNX, compile, transforms, counters."""

import pytest
import torch
from test_families import images, timm_vit

import mhla
from mhla import _backend, flop_counter
from mhla.nn import MHLA

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model():
    return mhla.replace_attention(timm_vit().eval(), blocks=(4, 4))[0]


def test_export(model):
    exported = torch.export.export(model, (X,))
    torch.testing.assert_close(exported.module()(X), model(X))


def test_compiled_in_one_graph(model):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), model(X))
    other = torch.randn(2, 3, 48, 24)
    torch.testing.assert_close(compiled(other), model(other))


def test_onnx(model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(model, (X,), path, dynamo=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(X).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [
    lambda: (MHLA.image(32, 2, (6, 8), (3, 4), extra_tokens=1), 49),
    lambda: (MHLA.lm(32, 2, chunk=8, max_tokens=64), 48),
    lambda: (MHLA.video(48, 2, (2, 4, 6), (1, 2, 3), gated=True), 48),
], ids=["image", "lm", "video"])  # fmt: skip
def test_layers_are_exported(make):
    layer, tokens = make()
    x = torch.randn(2, tokens, layer.dim)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
    with torch.no_grad():
        per_sample = torch.func.vmap(lambda one: layer(one[None])[0])(x)
    torch.testing.assert_close(per_sample, layer(x), rtol=1e-4, atol=1e-5)


def test_autocast_and_16_bits(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(X)
    torch.testing.assert_close(out.float(), model(X), rtol=0.1, atol=0.1)
    out.float().sum().backward()
    assert torch.isfinite(model.bfloat16()(X.bfloat16())).all()


def test_gradient_checkpointing(model):
    want = images()(model)[0]
    model.set_grad_checkpointing()
    model.train()
    out = images()(model)[0]
    torch.testing.assert_close(out, want)
    out.sum().backward()
    assert model.blocks[0].attn.mix.grad.abs().sum() > 0


def test_flops_are_counted():
    """The compiled operators are not here: their schemas are, with our formulas."""
    from torch.utils.flop_counter import FlopCounterMode

    if _backend.available():
        pytest.skip("the compiled operators are here: test_package.py counts them")
    library = torch.library.Library("mhla", "FRAGMENT")
    more = "Tensor? q_den=None, Tensor? k_den=None, Tensor? cu_seqlens=None"
    library.define(f"bidirectional(Tensor q, Tensor k, Tensor v, Tensor mix, int block_size=0, int[] grid=[], int[] blocks=[], {more}) -> Tensor")
    library.define(f"chunkwise(Tensor q, Tensor k, Tensor v, Tensor mix, int chunk=64, {more}) -> Tensor")
    library.define("bidirectional_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor mix, int block_size) -> Tensor")
    library.define("chunkwise_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor mix, int chunk) -> Tensor")
    for name in ("bidirectional", "chunkwise"):
        library.impl(name, lambda q, k, v, mix, *_, **__: torch.zeros_like(q), "CPU")
        library.impl(f"{name}_backward", lambda dout, *_: torch.zeros_like(dout), "CPU")
    flop_counter.register()
    q, mix = torch.randn(2, 40, 2, 8), torch.rand(5, 5)
    for op, back, formula in ((torch.ops.mhla.bidirectional, torch.ops.mhla.bidirectional_backward, flop_counter.bidirectional),
                              (torch.ops.mhla.chunkwise, torch.ops.mhla.chunkwise_backward, flop_counter.chunkwise)):  # fmt: skip
        with FlopCounterMode(display=False) as counter:
            op(q, q, q, mix, 8)
        assert counter.get_total_flops() == formula(q.shape, q.shape, q.shape, mix.shape, 8) > 0
        with FlopCounterMode(display=False) as counter:
            back(q, q, q, q, mix, 8)
        assert counter.get_total_flops() == formula(q.shape, q.shape, q.shape, mix.shape, 8, backward=True)
