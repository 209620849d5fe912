"""Queries and keys of different lengths, and images of different grids in one row."""

import plain
import pytest
import torch

import mhla
from mhla.nn import MHLA

BACKENDS = ["kernels", "torch"]


def pairs(q, k, v, mix, size, normalizer="paper", feature_map="relu_eps", eps=1e-6, hidden=None):
    """Token by token."""
    phi, group = plain.PHI[feature_map], q.shape[2] // k.shape[2]
    rows, columns = torch.arange(q.shape[1]) // size, torch.arange(k.shape[1]) // size
    keys = phi(k) if hidden is None else phi(k) * ~hidden[..., None, None]
    weights = torch.einsum("bthd,bshd->bhts", phi(q), keys.repeat_interleave(group, 2)) * mix[..., rows, :][..., columns]
    out = torch.einsum("bhts,bshe->bthe", weights, v.repeat_interleave(group, 2))
    return out if normalizer == "none" else out / (weights.sum(-1).transpose(1, 2)[..., None] + eps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("queries, keys", [(37, 11), (11, 37), (40, 39), (1, 9), (9, 1)])
@pytest.mark.parametrize("options", [dict(), dict(normalizer="none"), dict(eps=0.0, feature_map="elu1")], ids=str)
@pytest.mark.parametrize("per_head", [False, True])
def test_cross_attention(queries, keys, options, per_head, backend):
    rows, columns = -(-queries // 8), -(-keys // 8)
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64).requires_grad_()
    mix = torch.rand(*([4] if per_head else []), rows, columns, dtype=torch.float64).requires_grad_()
    tensors = make(2, queries, 4, 6), make(2, keys, 2, 6), make(2, keys, 2, 5), mix
    got = mhla.attention(*tensors, block_size=8, **options, backend=backend)
    want = pairs(*tensors, 8, **options)
    torch.testing.assert_close(got, want)
    dout = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, tensors, dout), torch.autograd.grad(want, tensors, dout)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cross_attention_with_padding_and_a_larger_matrix(backend):
    q, k, v = torch.randn(2, 30, 2, 6), torch.randn(2, 19, 2, 6), torch.randn(2, 19, 2, 6)
    mix, hidden = torch.rand(9, 9), torch.zeros(2, 19, dtype=torch.bool)
    hidden[1, 12:] = True
    k[1, 15] = v[1, 13] = float("nan")
    got = mhla.attention(q, k, v, mix, block_size=8, key_padding_mask=hidden, backend=backend)
    clean = [torch.where(hidden[..., None, None], torch.zeros_like(x), x) for x in (k, v)]
    torch.testing.assert_close(got, pairs(q, *clean, mix, 8, hidden=hidden), rtol=1e-4, atol=1e-5)
    alone = mhla.attention(q[1:], k[1:, :12], v[1:, :12], mix, block_size=8, backend=backend)
    torch.testing.assert_close(got[1:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_reads_a_context(backend):
    torch.manual_seed(0)
    layer = MHLA(24, 4, block_size=8, max_tokens=64, qk_norm=True, gate="silu", head_norm=True, num_kv_heads=2, backend=backend)
    x, words = torch.randn(2, 30, 24), torch.randn(2, 11, 24)
    y, q, _, _ = layer._project(x)
    _, _, k, v = layer._project(words)
    want = layer._finish(y, v, pairs(q, k, v, layer.mix, 8))
    torch.testing.assert_close(layer(x, context=words), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer(x, context=x), layer(x))
    layer(x, context=words).sum().backward()
    assert layer.mix.grad[:4, :2].abs().min() > 0 and layer.mix.grad[4:].abs().sum() == 0 == layer.mix.grad[:, 2:].abs().sum()


GRIDS = [(4, 6), (6, 4), (4, 6), (8, 5)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extra", [0, 2])
def test_packed_grids_are_apart(extra, backend):
    sizes = [rows * columns + extra for rows, columns in GRIDS]
    M = 4 + bool(extra)
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64).requires_grad_()
    N = sum(sizes)
    tensors = make(1, N, 4, 6), make(1, N, 2, 6), make(1, N, 2, 5), torch.rand(M, M, dtype=torch.float64).requires_grad_()
    q, k, v, mix = tensors
    hidden = torch.rand(1, N) < 0.2
    how = dict(blocks=(2, 2), extra_tokens=extra, backend=backend)
    got = mhla.attention(q, k, v, mix, grids=GRIDS, key_padding_mask=hidden, **how)
    parts, cut = [], lambda x: x.split(sizes, 1)
    for grid, *one, mask in zip(GRIDS, cut(q), cut(k), cut(v), cut(hidden)):
        parts.append(mhla.attention(*one, mix, grid=grid, key_padding_mask=mask, **how))
    want = torch.cat(parts, 1)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.square().sum(), tensors), torch.autograd.grad(want.square().sum(), tensors)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_of_packed_grids(backend):
    layer = MHLA(16, 2, grid=(4, 4), blocks=(2, 2), lepe=3, rope=True, extra_tokens=1, backend=backend)
    sizes = [rows * columns + 1 for rows, columns in GRIDS]
    x = torch.randn(1, sum(sizes), 16)
    got = layer(x, grids=GRIDS)
    got.sum().backward()
    gradient = layer.mix.grad.clone()
    layer.zero_grad()
    want = torch.cat([layer.resize(grid)(part) for grid, part in zip(GRIDS, x.split(sizes, 1))], 1)
    torch.testing.assert_close(got, want)
    want.sum().backward()
    torch.testing.assert_close(gradient, layer.mix.grad, rtol=1e-4, atol=1e-5)
    layer.resize((4, 4))(torch.randn(1, 17, 16))  # has its own grid still


Q = torch.randn(1, 16, 2, 4)


@pytest.mark.parametrize("call, message", [
    (lambda: mhla.attention(Q, Q[:, :9], Q[:, :9], torch.rand(1, 2), block_size=8), r"mix has shape \[1, 2\], expected at least \[2, 2\]"),
    (lambda: mhla.attention(Q, Q[:, :9], Q[:, :8], torch.rand(2, 2), block_size=8), r"v has shape \[1, 8, 2, 4\], expected 9 tokens as k has"),
    (lambda: mhla.attention(Q, Q[:, :9], Q[:, :9], torch.rand(3, 3), block_size=8, extra_tokens=1), "extra_tokens with 16 queries and 9 keys"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(4, 4), grids=[(4, 3)], blocks=(2, 2)), "grids have 12 tokens, expected N = 16"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(4, 4), grids=(4, 4), blocks=(2, 2)), "expected one grid per image"),
    (lambda: mhla.attention(Q, Q, Q, torch.rand(4, 4), grids=[(4, 4)], block_size=4), "expected blocks alone"),
    (lambda: MHLA(8, 2, block_size=4, rope=True)(torch.randn(1, 4, 8), context=torch.randn(1, 3, 8)), "context with rope"),
    (lambda: MHLA(8, 2, block_size=4, max_tokens=8)(torch.randn(1, 4, 8), context=torch.randn(1, 9, 8)), "at most max_tokens = 8"),
    (lambda: MHLA(8, 2, block_size=4)(torch.randn(1, 4, 8), grids=[(2, 2)]), "expected a layer with grid and blocks"),
], ids=range(9))  # fmt: skip
def test_mistakes_are_named(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
