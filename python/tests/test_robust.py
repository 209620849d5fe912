"""What a layer does in unusual places: inference mode, other devices and dtypes, bad bounds of packed sequences."""

import copy
import pickle

import pytest
import torch

import mhla
from mhla.nn import MHLA

X = torch.randn(2, 32, 48, generator=torch.Generator().manual_seed(0))


def lm(**options):
    torch.manual_seed(0)
    return MHLA.lm(48, 2, chunk=8, max_tokens=32, **options)


def video():
    torch.manual_seed(0)
    return MHLA.video(48, 2, (2, 4, 4), (1, 2, 2))


@pytest.mark.parametrize("bounds", [[0, -1, 32], [0, 31], [0, 20, 10, 32], [1, 32], [0, 40], [32], []])
@pytest.mark.parametrize("options", [{}, {"short_conv": 4}])
def test_bad_bounds_are_named_by_the_operator(bounds, options):
    with pytest.raises(RuntimeError, match="cu_seqlens"):
        lm(**options)(X[:1], cu_seqlens=torch.tensor(bounds, dtype=torch.int64))


def test_good_bounds_keep_sequences_apart():
    layer, bounds = lm(short_conv=4), torch.tensor([0, 5, 5, 20, 32])
    parts = [layer(X[:1, a:b]) for a, b in zip(bounds[:-1], bounds[1:]) if b > a]
    torch.testing.assert_close(layer(X[:1], cu_seqlens=bounds), torch.cat(parts, 1))


@pytest.mark.parametrize("make", [lm, video])
def test_training_behind_inference_mode(make):
    layer = make()
    with torch.inference_mode():
        layer(X)
    layer(X).sum().backward()
    assert torch.isfinite(layer.qkv.weight.grad).all()


@pytest.mark.parametrize("make", [lm, video])
def test_tables_do_not_travel(make):
    layer = make()
    want = layer(X)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert not other._tables and torch.equal(other(X), want)


def test_two_passes_before_one_backward():
    layer = lm(official=True)
    (layer(X) + layer(X)).sum().backward()
    out = layer(X).sum()
    layer.streaming_state(1)
    out.backward()


@pytest.mark.skipif(not hasattr(torch, "get_default_device"), reason="this torch has no device contexts")
def test_a_device_context_has_mix_too():
    with torch.device("meta"):
        layer = lm()
    assert {p.device.type for p in layer.parameters()} == {"meta"}


def test_a_default_dtype_of_64_bits():
    torch.set_default_dtype(torch.float64)
    try:
        layer = lm()
        assert layer.mix.dtype == torch.float64 and layer(X.double()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_streaming_under_autocast():
    layer = lm()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = layer.streaming_state(2)
        out = torch.cat([layer.stream(X[:, :5], state), layer.stream(X[:, 5:], state)], 1)
    torch.testing.assert_close(out.float(), layer(X), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"num_heads": 0, "block_size": 4}, "num_heads is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"causal": True, "chunk": 0}, "chunk is 0"),
        ({"block_size": 4, "beyond_mix": "extend"}, "beyond_mix extend in a layer that is not causal"),
        ({"causal": True, "beyond_mix": "foo"}, "beyond_mix is 'foo'"),
        ({"block_size": 4, "official_causal_clamp": True}, "official_causal_clamp"),
        ({"causal": True, "mix_official": True}, "mix_official"),
        ({"block_size": 4, "lepe_inside_gate": True}, "lepe_inside_gate"),
        ({"block_size": 4, "mix_range": (1.0, 0.0)}, "lower end first"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, text):
    with pytest.raises(RuntimeError, match=text):
        MHLA(48, **{"num_heads": 2, **options})


@pytest.mark.parametrize("x", [X[:1], X[0], X[..., :40]])
def test_stream_says_what_it_expects(x):
    layer = lm()
    with pytest.raises(RuntimeError, match=r"x has shape .* expected \[2, N, 48\]"):
        layer.stream(x, layer.streaming_state(2))


def test_tensors_without_memory_are_refused():
    q, mix = torch.randn(1, 16, 2, 8), torch.full((2, 2), 0.5)
    table = torch.ones(16, 4), torch.zeros(16, 4)
    with pytest.raises(RuntimeError, match="cos is on meta, expected cpu like q"):
        torch.ops.mhla.rope(q, q, table[0].to("meta"), table[1], True, "relu")
    with pytest.raises(RuntimeError, match="cu_seqlens is on meta"):
        mhla.attention(q, q, q, mix, block_size=8, cu_seqlens=torch.tensor([0, 16], device="meta"))


def test_other_derivatives_are_refused():
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        x = forward.make_dual(torch.randn(2, 8), torch.randn(2, 8))
        with pytest.raises(RuntimeError, match="norm: forward-mode derivatives are not implemented"):
            torch.ops.mhla.norm(x, torch.ones(8))
        q = forward.make_dual(torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8))
        with pytest.raises(RuntimeError, match="rope: forward-mode derivatives are not implemented"):
            torch.ops.mhla.rope(q, q, torch.ones(4, 4), torch.zeros(4, 4), True)
    with pytest.raises(RuntimeError, match="x has dtype Long, expected a float"):
        torch.ops.mhla.norm(torch.tensor([[1, 2, 3, 4]]), torch.ones(4))


def test_rows_that_cannot_be_scaled():
    with pytest.raises(RuntimeError, match="a row sums to 0"):
        mhla.constrain_mix_(torch.zeros(2, 2), renormalize_rows=True)


def test_published_names_are_written_whole():
    layer = MHLA.image(48, 2, (4, 4), (2, 2))
    weights = layer.state_dict()
    for name in ("mix", "lepe.bias"):
        with pytest.raises(RuntimeError, match=f"needs {name}"):
            mhla.convert.to_published({k: v for k, v in weights.items() if k != name}, "image", layer.widths)
    with pytest.raises(RuntimeError, match=r"expected \[M, M\]"):
        mhla.convert.to_published({**weights, "mix": torch.rand(2, 4, 4)}, "image", layer.widths)


@pytest.mark.parametrize("header", [b"{", b"[]", b'{"a": {"dtype": "F32"}}', b'{"a": 3}', b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}'])
def test_safetensors_headers_are_named(tmp_path, header):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")
    with pytest.raises(RuntimeError, match="weights.safetensors: its header is no safetensors header"):
        mhla.convert.load_safetensors(path)
