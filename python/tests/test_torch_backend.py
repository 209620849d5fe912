"""backend="torch" against the kernels and plain pairs of tokens: values, two derivatives, transforms, streaming, mistakes."""

import pickle

import plain
import pytest
import torch
from test_attention import LAYOUTS, MISTAKES, inputs

import mhla
from mhla.nn import MHLA

try:
    mhla.get_num_threads()
    KERNELS = True
except ImportError:  # PyPI's torch without a build of its own
    KERNELS = False
needs_kernels = pytest.mark.skipif(not KERNELS, reason="the compiled library is not there")


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("normalizer", ["paper", "none"])
@pytest.mark.parametrize("feature_map", list(plain.PHI))
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_like_plain_code(layout, feature_map, normalizer, per_head):
    tensors, block = inputs(layout, per_head=per_head)
    options = dict(feature_map=feature_map, normalizer=normalizer, eps=0.5, scale=0.7)
    got = mhla.attention(*tensors, **layout, **options, backend="torch")
    want = plain.attention(*tensors, block, causal=layout.get("causal", False), **options)
    torch.testing.assert_close(got, want)
    dout = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b)


@needs_kernels
@pytest.mark.parametrize("options", [
    dict(), dict(normalizer="official", grid=(4, 9), blocks=(2, 3)), dict(causal=True, chunk=8),
    dict(causal=True, chunk=4, beyond_mix="extend"), dict(causal=True, chunk=8, normalizer="paper"),
    dict(grid=(3, 3, 4), blocks=(3, 1, 2), normalizer="official", eps=0.1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("den", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_like_the_kernels(options, den, dtype):
    layout = {key: value for key, value in options.items() if key in ("grid", "blocks", "causal", "chunk")} or dict(block_size=8)
    if den and options.get("normalizer", "none" if options.get("causal") else "paper") == "none":
        pytest.skip("no denominator")
    tensors, _ = inputs(layout, dtype)
    if options.get("beyond_mix"):
        tensors = (*tensors[:3], tensors[3].detach()[:3, :3].clone().requires_grad_())
    features = dict(q_den=torch.rand_like(tensors[0]), k_den=torch.rand_like(tensors[1])) if den else {}
    call = lambda backend: mhla.attention(*tensors, **{**layout, **options}, **features, backend=backend)
    got, want = call("torch"), call("kernels")
    assert got.dtype == dtype
    limit = 8 * torch.finfo(dtype).eps
    close = lambda a, b: ((a - b).double().norm() <= limit * b.double().norm()).item()
    assert close(got, want)
    dout = torch.rand_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        assert close(a, b)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_two_derivatives(layout):
    small = {"grid": (3, 3), "blocks": (2, 2)} if len(layout.get("grid", ())) == 2 else layout
    tensors, _ = inputs(small, B=1, H=2, Hkv=1, D=2, E=2)
    den = [x.detach().clone().requires_grad_() for x in tensors[:2]]
    call = lambda q, k, v, mix, q_den, k_den: mhla.attention(
        q, k, v, mix, **small, q_den=q_den, k_den=k_den, normalizer="paper", feature_map="elu1", eps=0.3, backend="torch"
    )
    assert torch.autograd.gradcheck(call, (*tensors, *den), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (*tensors, *den), fast_mode=True)


def test_packed_sequences():
    bounds = torch.tensor([0, 0, 3, 20, 37])
    for layout in (dict(block_size=8), dict(causal=True, chunk=8)):
        (q, k, v, mix), _ = inputs(layout, torch.float32, B=1, H=2)
        packed = mhla.attention(q, k, v, mix, **layout, cu_seqlens=bounds, backend="torch")
        parts = [mhla.attention(q[:, a:b], k[:, a:b], v[:, a:b], mix, **layout, backend="torch") for a, b in ((0, 3), (3, 20), (20, 37))]
        torch.testing.assert_close(packed, torch.cat(parts, 1))


def test_large_heads_and_no_tokens():
    q = torch.randn(1, 12, 2, 300)
    assert mhla.attention(q, q, q, torch.rand(2, 2), block_size=8, backend="torch").shape == q.shape
    for shape in ((0, 40, 2, 8), (3, 0, 2, 8)):
        q = torch.randn(shape, requires_grad=True)
        out = mhla.attention(q, q, q, torch.rand(5, 5), block_size=8, backend="torch")
        out.sum().backward()
        assert out.shape == shape == q.grad.shape


def test_eps_of_zero_with_a_ragged_block():
    (q, k, v, mix), _ = inputs(dict(block_size=8))
    out = mhla.attention(q, k, v, mix, block_size=8, eps=0.0, feature_map="elu1", backend="torch")
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), (q, k, v, mix)))


def test_autocast():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mhla.attention(q, k, v, mix, block_size=8, backend="torch")
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, mhla.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mix, block_size=8, backend="torch"))


def test_traced():
    layer = MHLA.image(32, 2, (6, 8), (3, 4), backend="torch").eval()
    x = torch.randn(2, 48, 32)
    traced = torch.jit.trace(layer, x)
    y = torch.randn(2, 48, 32)
    torch.testing.assert_close(traced(y), layer(y))


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch.func came with PyTorch 2")
def test_transforms():
    (q, k, v, mix), _ = inputs(dict(block_size=8), B=3)
    call = lambda q: mhla.attention(q, k[:1], v[:1], mix, block_size=8, backend="torch").square().sum()
    per_sample = torch.func.vmap(torch.func.grad(lambda q: call(q[None])))(q)
    one = torch.autograd.grad(call(q[1:2]), q)[0][1]
    torch.testing.assert_close(per_sample[1], one)
    _, tangent = torch.func.jvp(call, (q[:1],), (torch.ones_like(q[:1]),))
    torch.testing.assert_close(tangent, torch.autograd.grad(call(q[:1]), q)[0].sum())


MADE_IN_TORCH = [message for message in MISTAKES
                 if not message.startswith(("q has last stride", "no candidate", "q has dtype Complex", "SparseCPU"))]  # fmt: skip


@pytest.mark.parametrize("message", MADE_IN_TORCH)
def test_mistakes_are_named(message):
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    arguments = dict(q=q, k=k, v=v, mix=mix, block_size=8, backend="torch")
    arguments.update(MISTAKES[message](arguments))
    with pytest.raises(RuntimeError, match=message):
        mhla.attention(**arguments)


@pytest.mark.parametrize("options", [{}, dict(normalizer="paper"), dict(rope=False, feature_map="elu1"), dict(num_kv_heads=2),
                                     dict(short_conv=4), dict(beyond_mix="extend", max_tokens=16)], ids=str)  # fmt: skip
def test_a_layer_streams_what_it_computes_at_once(options):
    layer = MHLA.lm(64, 4, **{"chunk": 8, "max_tokens": 64, "backend": "torch", **options})
    x = torch.randn(2, 43, 64)
    with torch.no_grad():
        want = layer(x)
    state = layer.streaming_state(batch=2)
    close = lambda got, begin: torch.testing.assert_close(got, want[:, begin : begin + got.shape[1]], rtol=1e-4, atol=1e-5)
    for begin, end in ((0, 17), (17, 18), (18, 19), (19, 30)):
        close(layer.stream(x[:, begin:end], state), begin)
    copies = [state.fork(), pickle.loads(pickle.dumps(state)), mhla.StreamingState.load(state.snapshot())]
    layer.stream(x[:, :5], state)
    state.rollback(5)
    for other in (state, *copies):
        assert other.positions == [30, 30] and other.nbytes > 0
        close(layer.stream(x[:, 30:], other), 30)
    chosen = copies[0].select([1])
    assert chosen.batch == 1 and chosen.positions == [43]
    state.reset()
    close(layer.stream(x, state), 0)


def test_streaming_says_what_is_wrong():
    state = mhla.StreamingState(torch.rand(2, 2), heads=2, key_size=4, value_size=4, chunk=4, backend="torch")
    x = torch.randn(1, 9, 2, 4)
    with pytest.raises(RuntimeError, match="expected at most 8"):
        state.append(x, x, x)
    with pytest.raises(RuntimeError, match="q has dtype f64, expected f32"):
        state.append(x.double(), x.double(), x.double())
    with pytest.raises(RuntimeError, match="rollback: tokens is 3, expected 0 to 0"):
        state.rollback(3)
    with pytest.raises(RuntimeError, match="requires a gradient"):
        state.append(x[:, :2].requires_grad_(), x[:, :2], x[:, :2])


def test_backends_are_named():
    q = torch.randn(1, 8, 2, 4)
    with pytest.raises(RuntimeError, match="backend is 'cuda', expected one of kernels, torch"):
        mhla.attention(q, q, q, torch.rand(1, 1), block_size=8, backend="cuda")
    mhla.set_backend("torch")
    try:
        assert mhla.get_backend() == "torch"
        assert mhla.attention(q, q, q, torch.rand(1, 1), block_size=8).shape == q.shape
    finally:
        mhla.set_backend(None)


@needs_kernels
def test_mixing_matrices_are_those_of_the_library():
    for blocks in ([1], [5], [3, 4], [2, 3, 4]):
        for transform in ("linear", "cos", "exp", "gaussian", "local", "uniform"):
            for official in (False, True):
                want = torch.ops.mhla.init_mix(blocks, transform, official, 2.5, 1.2)
                got = mhla.init_mix(blocks, transform, official=official, exp_sigma=2.5, local_threshold=1.2)
                torch.testing.assert_close(got, want, rtol=2e-7, atol=1e-9)
    for init in ("prefix", "linear", "exp"):
        torch.testing.assert_close(mhla.init_causal_mix(7, init, exp_sigma=2.0), torch.ops.mhla.init_causal_mix(7, init, 2.0))
    for source, target in (([4], [7]), ([3, 4], [5, 2]), ([2, 3, 2], [3, 3, 3]), ([4], [4])):
        mix = torch.rand(2, *[torch.tensor(source).prod()] * 2) - 0.3
        mix[:, 0] = 0
        mix[:, 1, 0] -= mix[:, 1].sum(-1)  # a row that cancels
        torch.testing.assert_close(mhla.resample_mix(mix, source, target), torch.ops.mhla.resample_mix(mix, source, target, False))
    mix = torch.rand(5, 5)
    torch.testing.assert_close(mhla.resample_mix(mix, [5], [8], causal=True), torch.ops.mhla.resample_mix(mix, [5], [8], True))


def test_states_are_joined():
    make = lambda: mhla.StreamingState(torch.rand(4, 4, generator=torch.Generator().manual_seed(1)), heads=2, key_size=8, value_size=8, chunk=8, backend="torch")
    one, two, q = make(), make(), torch.randn(2, 20, 2, 8)
    one.append(*(q[:1, :11],) * 3), two.append(*(q[1:, :11],) * 3)
    both = mhla.StreamingState.join([one, two])
    want = torch.cat([one.append(*(q[:1, 11:],) * 3), two.append(*(q[1:, 11:],) * 3)])
    torch.testing.assert_close(both.append(*(q[:, 11:],) * 3), want)
    assert [part.positions for part in both.split()] == [[20], [20]]
    with pytest.raises(RuntimeError, match=r"positions \[20, 0\], expected one position"):
        mhla.StreamingState.join([one, make()])
