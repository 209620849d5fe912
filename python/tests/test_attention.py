"""mhla.attention against plain torch code, its gradients, the tensors it takes and those it refuses."""

import plain
import pytest
import torch

import mhla

LAYOUTS = [
    dict(block_size=8),
    dict(block_size=100),
    dict(grid=(4, 9), blocks=(2, 3)),
    dict(grid=(5, 7), blocks=(2, 3)),
    dict(grid=(3, 3, 4), blocks=(2, 1, 2)),
    dict(causal=True, chunk=8),
]


def tokens_of(layout):
    count = 1
    for length in layout.get("grid", (37,)):
        count *= length
    return count


def inputs(layout, dtype=torch.float64, B=2, H=4, Hkv=2, D=6, E=5, per_head=False):
    """q, k, v, mix that require gradients, and the block of every token."""
    N = tokens_of(layout)
    cut = {key: value for key, value in layout.items() if key in ("grid", "blocks")} or {
        "block_size": layout.get("block_size", layout.get("chunk"))
    }
    block = plain.block_of(N, **cut)
    M = int(block.max()) + 1
    make = lambda *shape: torch.randn(*shape, dtype=dtype).requires_grad_()
    mix = torch.rand(*([H] if per_head else []), M, M, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    return (make(B, N, H, D), make(B, N, Hkv, D), make(B, N, Hkv, E), mix.requires_grad_()), block


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("normalizer", ["paper", "none"])
@pytest.mark.parametrize("feature_map", list(plain.PHI))
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_like_plain_code(layout, feature_map, normalizer, per_head):
    tensors, block = inputs(layout, per_head=per_head)
    options = dict(feature_map=feature_map, normalizer=normalizer, eps=0.5, scale=0.7)
    got = mhla.attention(*tensors, **layout, **options)
    want = plain.attention(*tensors, block, causal=layout.get("causal", False), **options)
    torch.testing.assert_close(got, want)
    dout = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradcheck(layout):
    tensors, _ = inputs(layout, B=1, H=2, Hkv=1, D=2, E=2)
    den = [x.detach().clone().requires_grad_() for x in tensors[:2]]
    call = lambda q, k, v, mix, q_den, k_den: mhla.attention(
        q, k, v, mix, **layout, q_den=q_den, k_den=k_den, normalizer="paper", feature_map="elu1", eps=0.3
    )
    assert torch.autograd.gradcheck(call, (*tensors, *den), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_dtypes(layout, dtype):
    tensors, block = inputs(layout, dtype)
    got = mhla.attention(*tensors, **layout, eps=0.1, normalizer="paper")
    assert got.dtype == dtype
    wide = [x.detach().double() for x in tensors]
    want = plain.attention(*wide, block, causal=layout.get("causal", False), eps=0.1)
    assert ((got - want).square().mean() / want.square().mean()).sqrt() <= 8 * torch.finfo(dtype).eps
    got.sum().backward()
    assert [x.grad.dtype for x in tensors] == [dtype] * 3 + [torch.float32]


def test_slices_of_a_fused_projection_are_not_copied():
    qkv = torch.randn(2, 40, 3, 4, 16, requires_grad=True)
    mix = torch.rand(5, 5)
    q, k, v = qkv.unbind(2)
    assert not q.is_contiguous()
    got = mhla.attention(q, k, v, mix, block_size=8)
    want = mhla.attention(q.contiguous(), k.contiguous(), v.contiguous(), mix, block_size=8)
    assert torch.equal(got, want)
    got.sum().backward()
    assert qkv.grad.abs().sum() > 0


@pytest.mark.parametrize("device", [None, "int32", "int64"])
def test_packed_sequences_are_apart(device):
    if device is None:
        bounds = torch.tensor([0, 0, 3, 20, 37])
    else:
        bounds = torch.tensor([0, 0, 3, 20, 37], dtype=getattr(torch, device))
    for layout in (dict(block_size=8), dict(causal=True, chunk=8)):
        (q, k, v, mix), _ = inputs(layout, torch.float32, B=1)
        packed = mhla.attention(q, k, v, mix, **layout, cu_seqlens=bounds)
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            one = mhla.attention(q[:, begin:end], k[:, begin:end], v[:, begin:end], mix, **layout)
            assert torch.equal(packed[:, begin:end], one)
        packed.sum().backward()
        assert torch.isfinite(q.grad).all()


def test_empty_batches_and_no_tokens():
    mix = torch.rand(5, 5, requires_grad=True)
    for shape in ((0, 40, 2, 8), (3, 0, 2, 8)):
        q = torch.randn(shape, requires_grad=True)
        out = mhla.attention(q, q, q, mix, block_size=8)
        assert out.shape == shape
        out.sum().backward()
        assert q.grad.shape == shape and mix.grad.abs().sum() == 0


def test_same_bits_every_time():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    before = mhla.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        mhla.set_num_threads(threads)
        out = mhla.attention(q, k, v, mix, block_size=8)
        results.append((out, *torch.autograd.grad(out.sum(), (q, k, v, mix))))
    mhla.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_autocast():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = mhla.attention(q, k, v, mix, block_size=8)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, mhla.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mix, block_size=8))
    out.float().sum().backward()
    assert q.grad.dtype == mix.grad.dtype == torch.float32


def test_meta_tensors():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    out = mhla.attention(q.to("meta"), k.to("meta"), v.to("meta"), mix.to("meta"), block_size=8)
    assert out.shape == (2, 37, 4, 5) and out.device.type == "meta"


def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    call = lambda q, k, v, mix: mhla.attention(q, k, v, mix, block_size=8)
    plain_gradients = torch.autograd.grad(call(q, k, v, mix).sum(), (q, k, v, mix))
    for x in (q, k, v, mix):
        x.grad = None
    checkpoint(call, q, k, v, mix, use_reentrant=False).sum().backward()
    assert all(torch.equal(x.grad, want) for x, want in zip((q, k, v, mix), plain_gradients))


def test_no_second_derivative():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    (first,) = torch.autograd.grad(mhla.attention(q, k, v, mix, block_size=8).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="the gradient of a gradient is not implemented"):
        first.sum().backward()


MISTAKES = {
    "q has last stride 4, expected 1": lambda t: dict(q=torch.randn(2, 37, 6, 4).transpose(2, 3)),
    "k has dtype f16, expected f32": lambda t: dict(k=t["k"].half()),
    "q has dtype i64, expected f32, bf16, f16 or f64": lambda t: dict(q=torch.ones(2, 37, 4, 6, dtype=torch.int64)),
    r"q has shape \[37, 4, 6\], expected \[B, N, H, D\]": lambda t: dict(q=t["q"][0]),
    r"mix has shape \[3, 3\], expected at least \[5, 5\]": lambda t: dict(mix=torch.rand(3, 3)),
    "mix has dtype f64, expected f32": lambda t: dict(mix=t["mix"].double()),
    r"v has shape \[2, 36, 2, 5\], expected \[2, 37, 2, 5\]": lambda t: dict(v=t["v"][:, 1:]),
    "only q_den is given": lambda t: dict(q_den=t["q"]),
    "no layout is given, expected block_size, or grid and blocks": lambda t: dict(block_size=None),
    "block_size is 8 beside grid and blocks": lambda t: dict(grid=(1, 37), blocks=(1, 1)),
    "expected chunk": lambda t: dict(causal=True),
    "chunk and beyond_mix belong to causal=True": lambda t: dict(chunk=8),
    "'softmax'": lambda t: dict(feature_map="softmax"),
    "'l1'": lambda t: dict(normalizer="l1"),
    "eps is inf, expected a finite number": lambda t: dict(eps=float("inf")),
    "B is 2, expected 1 with cu_seqlens": lambda t: dict(cu_seqlens=torch.tensor([0, 37])),
    "k is on meta, expected cpu like q": lambda t: dict(k=t["k"].to("meta")),
    "k is on cpu, expected meta like q": lambda t: dict(q=t["q"].to("meta")),
    "mix is on meta, expected cpu like q": lambda t: dict(mix=t["mix"].to("meta")),
    "mix has dtype i64, expected f32": lambda t: dict(mix=torch.ones(5, 5, dtype=torch.int64)),
    "q has dtype ComplexFloat": lambda t: dict(q=t["q"].to(torch.complex64)),
    "SparseCPU": lambda t: dict(q=t["q"].detach().to_sparse()),
    "layout block_size is -3, expected at least 1": lambda t: dict(block_size=-3),
    "grid has 1 axes and blocks has 2, expected 2 or 3 of each": lambda t: dict(
        block_size=None, grid=(37,), blocks=(2, 2)
    ),
    "cuts 37 tokens into 30 blocks, which leaves a block empty; the nearest count that works is 37": lambda t: dict(
        block_size=None, grid=(37, 1), blocks=(30, 1), mix=torch.rand(30, 30)
    ),
    "k has 3 heads, expected a divisor of H = 4": lambda t: dict(k=torch.randn(2, 37, 3, 6), v=torch.randn(2, 37, 3, 5)),
    "D is 0, expected at least 1": lambda t: dict(q=t["q"][..., :0], k=t["k"][..., :0]),
    "no candidate for f32 .* D=300": lambda t: dict(q=torch.randn(2, 37, 4, 300), k=torch.randn(2, 37, 2, 300)),
    "scale is nan, expected a finite number": lambda t: dict(scale=float("nan")),
    "cu_seqlens decreases from 20 to 10 at index 2": lambda t: dict(
        q=t["q"][:1], k=t["k"][:1], v=t["v"][:1], cu_seqlens=torch.tensor([0, 20, 10, 37])
    ),
    "cu_seqlens ends at 20, expected N = 37": lambda t: dict(
        q=t["q"][:1], k=t["k"][:1], v=t["v"][:1], cu_seqlens=torch.tensor([0, 20])
    ),
    "cu_seqlens has dtype f32": lambda t: dict(
        q=t["q"][:1], k=t["k"][:1], v=t["v"][:1], cu_seqlens=torch.tensor([0.0, 37.0])
    ),
}


@pytest.mark.parametrize("message", list(MISTAKES))
def test_mistakes_are_named(message):
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    arguments = dict(q=q, k=k, v=v, mix=mix, block_size=8)
    arguments.update(MISTAKES[message](arguments))
    with pytest.raises(RuntimeError, match=message):
        mhla.attention(**arguments)


def test_integers_have_no_gradient():
    """torch itself refuses one that asks for it; one that does not is refused beside inputs that do."""
    with pytest.raises(RuntimeError, match="(?i)only tensors of floating point"):
        torch.ones(2, 37, 4, 6, dtype=torch.int64).requires_grad_()
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    with pytest.raises(RuntimeError, match="v has dtype i64"):
        mhla.attention(q, k, torch.ones(2, 37, 2, 5, dtype=torch.int64), mix, block_size=8)


def test_forward_mode_is_refused():
    (q, k, v, mix), _ = inputs(dict(block_size=8), torch.float32)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
        with pytest.raises(RuntimeError, match="forward-mode derivatives are not implemented"):
            mhla.attention(dual, k, v, mix, block_size=8)
