"""What only a GPU shows: results of the CPU, PyTorch's stream, CUDA graphs, autocast, memory."""

import pytest
import torch

import mhla
from mhla.nn import MHLA

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
LAYOUTS = [dict(block_size=16), dict(grid=(8, 12), blocks=(2, 3)), dict(causal=True, chunk=16)]


def inputs(layout, dtype=torch.float32, device="cuda", tokens=96):
    M = 6
    make = lambda heads: torch.randn(2, tokens, heads, 32, device=device).to(dtype).requires_grad_()
    return make(4), make(2), make(2), torch.rand(M, M, device=device).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_like_the_cpu(layout, dtype):
    tensors = inputs(layout, dtype)
    host = [x.detach().cpu().requires_grad_() for x in tensors]
    options = dict(eps=0.1, normalizer="paper")
    got, want = mhla.attention(*tensors, **layout, **options), mhla.attention(*host, **layout, **options)
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    error = lambda a, b: ((a.cpu().double() - b.double()).square().mean() / b.double().square().mean()).sqrt()
    assert error(got, want) <= tolerance
    dout = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, host, dout.cpu())):
        assert a.is_cuda and error(a, b) <= 2 * tolerance


def test_it_works_on_the_current_stream():
    q, k, v, mix = inputs(LAYOUTS[0])
    want = mhla.attention(q, k, v, mix, block_size=16)
    side = torch.cuda.Stream()
    big = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            big = big @ big * 1e-3  # keeps the stream busy: work on another one would not wait for the copy below
        late = torch.empty_like(q).copy_(q)
        out = mhla.attention(late, k, v, mix, block_size=16)
    side.synchronize()
    assert torch.equal(out, want)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_cuda_graphs(layout):
    q, k, v, mix = (x.detach() for x in inputs(layout, torch.bfloat16))
    mix = mix.float()
    warm = mhla.attention(q, k, v, mix, **layout)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mhla.attention(q, k, v, mix, **layout)
    q.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, mhla.attention(q, k, v, mix, **layout)) and not torch.equal(out, warm)


def test_cu_seqlens_of_the_device():
    q, k, v, mix = (x.detach() for x in inputs(LAYOUTS[0]))
    bounds = torch.tensor([0, 40, 96], dtype=torch.int32)
    q, k, v = q[:1], k[:1], v[:1]
    want = mhla.attention(q, k, v, mix, block_size=16, cu_seqlens=bounds)
    assert torch.equal(mhla.attention(q, k, v, mix, block_size=16, cu_seqlens=bounds.cuda()), want)
    graph = torch.cuda.CUDAGraph()
    device_bounds = bounds.cuda()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="while a CUDA graph is captured, expected host memory"):
        with torch.cuda.graph(graph):
            mhla.attention(q, k, v, mix, block_size=16, cu_seqlens=device_bounds)


def test_devices_that_differ():
    q, k, v, mix = inputs(LAYOUTS[0])
    for name in ("k", "mix"):
        arguments = dict(q=q, k=k, v=v, mix=mix)
        arguments[name] = arguments[name].cpu()
        with pytest.raises(RuntimeError, match=f"{name} is on cpu, expected cuda:0 like q"):
            mhla.attention(**arguments, block_size=16)


def test_streaming_has_the_bits_of_one_pass():
    layer = MHLA.lm(64, 4, chunk=16, max_tokens=128).cuda()
    x = torch.randn(2, 96, 64, device="cuda")
    q, k, v, mix = (x.detach() for x in inputs(LAYOUTS[2]))
    want = mhla.attention(q, k, v, mix, causal=True, chunk=16)
    state = mhla.StreamingState(mix, heads=4, kv_heads=2, key_size=32, value_size=32, batch=2, chunk=16)
    cuts = [0, 5, 6, 50, 96]
    parts = [state.append(q[:, a:b], k[:, a:b], v[:, a:b]) for a, b in zip(cuts, cuts[1:])]
    assert torch.equal(torch.cat(parts, 1), want)
    with torch.no_grad():
        at_once = layer(x)
    layer_state = layer.streaming_state(batch=2)
    streamed = torch.cat([layer.stream(x[:, a:b], layer_state) for a, b in zip(cuts, cuts[1:])], 1)
    torch.testing.assert_close(streamed, at_once, rtol=1e-3, atol=1e-4)


def test_float64_is_refused():
    q, k, v, mix = (x.double() for x in inputs(LAYOUTS[0]))
    with pytest.raises(RuntimeError, match="no candidate for f64"):
        mhla.attention(q, k, v, mix, block_size=16)


def test_autocast_and_training():
    layer = MHLA.dit(64, 4, (8, 12), (2, 3)).cuda()
    x = torch.randn(2, 96, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert layer.mix.grad.dtype == torch.float32 and torch.isfinite(layer.mix.grad).all()


def test_memory_of_training():
    """No more than softmax flash attention at the same shape: q, k, v and out, no summaries kept."""

    def peak(call):
        q, k, v = (
            torch.randn(1, 16384, 6, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(q, k, v).sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    mix = torch.rand(64, 64, device="cuda", requires_grad=True)
    ours = lambda q, k, v: mhla.attention(q, k, v, mix, grid=(128, 128), blocks=(8, 8))
    heads = lambda x: x.transpose(1, 2)
    softmax = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(heads(q), heads(k), heads(v))
    peak(ours), peak(softmax)
    print(f"peak MiB: mhla {peak(ours) / 2**20:.1f}, softmax {peak(softmax) / 2**20:.1f}")
    assert peak(ours) <= peak(softmax)
