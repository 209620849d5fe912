"""The streaming state: bits of one pass, copies, what is saved, and the layer's own way to stream."""

import copy
import io
import pickle

import pytest
import torch

import mhla
from mhla.nn import MHLA


@pytest.fixture
def tokens():
    """q, k, v of two sequences, mix, and the outputs of one pass."""
    q, k, v, mix = torch.randn(2, 37, 4, 16), torch.randn(2, 37, 2, 16), torch.randn(2, 37, 2, 24), torch.rand(6, 6)
    return q, k, v, mix, mhla.attention(q, k, v, mix, causal=True, chunk=8, feature_map="relu")


def state_of(mix, **options):
    return mhla.StreamingState(
        mix, heads=4, kv_heads=2, key_size=16, value_size=24, batch=2, chunk=8, feature_map="relu", **options
    )


def feed(state, tokens, begin, end):
    return state.append(*(x[:, begin:end] for x in tokens[:3]))


def test_any_split_has_the_bits_of_one_pass(tokens):
    state = state_of(tokens[3])
    cuts = [0, 5, 6, 7, 8, 21, 21, 24, 37]
    parts = [feed(state, tokens, a, b) for a, b in zip(cuts, cuts[1:])]
    assert torch.equal(torch.cat(parts, 1), tokens[4])
    assert state.positions == [37, 37] and state.capacity == 48 and state.nbytes > 0


def test_copies_go_their_own_way(tokens):
    state = state_of(tokens[3])
    feed(state, tokens, 0, 20)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    load = {"weights_only": False} if "weights_only" in torch.load.__kwdefaults__ else {}
    copies = [state.fork(), copy.deepcopy(state), pickle.loads(pickle.dumps(state)),
              mhla.StreamingState.load(state.snapshot()), torch.load(buffer, **load)]  # fmt: skip
    feed(state, tokens, 0, 5)
    for other in copies:
        assert other.positions == [20, 20]
        assert torch.equal(feed(other, tokens, 20, 37), tokens[4][:, 20:])


def test_sequences_are_chosen(tokens):
    state = state_of(tokens[3])
    feed(state, tokens, 0, 20)
    beams = state.select([1, 1, 0])
    assert beams.batch == 3
    more = [x[[1, 1, 0], 20:] for x in tokens[:3]]
    assert torch.equal(beams.append(*more), tokens[4][[1, 1, 0], 20:])


def test_tokens_are_taken_back(tokens):
    state = state_of(tokens[3])
    feed(state, tokens, 0, 30)
    assert state.rollback_limit == 8
    state.rollback(7)
    assert torch.equal(feed(state, tokens, 23, 37), tokens[4][:, 23:])
    state.reset()
    assert torch.equal(feed(state, tokens, 0, 37), tokens[4])


def test_mistakes_are_named(tokens):
    q, k, v, mix, _ = tokens
    state = state_of(mix)
    with pytest.raises(RuntimeError, match="state 0 is at position 0 and T is 74, expected at most 48"):
        state.append(*(torch.cat([x, x], 1) for x in (q, k, v)))
    with pytest.raises(RuntimeError, match="q has dtype f16, expected f32"):
        state.append(q.half(), k.half(), v.half())
    with pytest.raises(RuntimeError, match="rollback: tokens is 3, expected 0 to 0"):
        state.rollback(3)
    with pytest.raises(RuntimeError, match="sequence is 5, expected 0 to 1"):
        state.select([5])
    with pytest.raises(RuntimeError, match="q requires a gradient, but streaming has none"):
        state.append(q.requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="the text has no 'batch'"):
        mhla.StreamingState.load(({}, {}))
    assert state.positions == [0, 0]


@pytest.mark.parametrize(
    "options",
    [{}, dict(normalizer="paper", rope=True), dict(rope=False, feature_map="elu1"), dict(num_kv_heads=2),
     dict(short_conv=4), dict(short_conv=1, num_kv_heads=2)],
    ids=str,
)
def test_a_layer_streams_what_it_computes_at_once(options):
    layer = MHLA.lm(64, 4, chunk=8, max_tokens=64, **options)
    x = torch.randn(2, 43, 64)
    with torch.no_grad():
        want = layer(x)
    state = layer.streaming_state(batch=2)
    parts = [layer.stream(x[:, a:b], state) for a, b in ((0, 17), (17, 18), (18, 19), (19, 43))]
    torch.testing.assert_close(torch.cat(parts, 1), want, rtol=1e-4, atol=1e-5)


def test_short_convolutions_stay_with_the_state():
    layer = MHLA.lm(32, 2, chunk=5, max_tokens=60, short_conv=4)
    x = torch.randn(3, 41, 32)
    with torch.no_grad():
        want = layer(x)
    close = lambda got, sequences, begin: torch.testing.assert_close(
        got, want[sequences][:, begin : begin + got.shape[1]], rtol=1e-4, atol=1e-5
    )
    state = layer.streaming_state(batch=3)
    for begin, end in ((0, 1), (1, 3), (3, 4), (4, 17)):  # shorter than the convolution, too
        close(layer.stream(x[:, begin:end], state), [0, 1, 2], begin)
    copy, chosen = state.fork(), state.select([2, 0])
    loaded = mhla.StreamingState.load(state.snapshot())
    pickled = pickle.loads(pickle.dumps(state))
    close(layer.stream(x[[2, 0], 17:30], chosen), [2, 0], 17)
    for other in (copy, loaded, pickled):
        assert other.nbytes == state.nbytes
        layer.stream(torch.randn(3, 4, 32), other)
        other.rollback(4)
        close(layer.stream(x[:, 17:22], other), [0, 1, 2], 17)
    with pytest.raises(RuntimeError, match="expected at most 60"):
        layer.stream(torch.randn(3, 50, 32), state)
    close(layer.stream(x[:, 17:41], state), [0, 1, 2], 17)  # nothing was lost
    state.reset()
    assert layer.stream(x[:, :0], state).shape == (3, 0, 32)
    close(layer.stream(x, state), [0, 1, 2], 0)
    other = MHLA.lm(32, 2, chunk=5, max_tokens=60)
    with pytest.raises(RuntimeError, match="the state has no tokens of short convolutions, expected one of this layer"):
        layer.stream(x, other.streaming_state(batch=3))
    with pytest.raises(RuntimeError, match="the state has tokens of short convolutions"):
        other.stream(x, layer.streaming_state(batch=3))


def test_only_causal_layers_stream():
    with pytest.raises(RuntimeError, match="the layer is not causal"):
        MHLA(32, 2, block_size=8).streaming_state()


def test_states_are_joined_and_split(tokens):
    """Sequences at different positions in one batch go on with their own bits."""
    first, second = state_of(tokens[3]), state_of(tokens[3])
    feed(first, tokens, 0, 20)
    feed(second, tokens, 0, 11)
    both = mhla.StreamingState.join([first, second.select([1])])
    assert both.positions == [20, 20, 11]
    begins = ((0, 20), (1, 20), (1, 11))
    more = [torch.stack([x[b, begin : begin + 9] for b, begin in begins]) for x in tokens[:3]]
    out = both.append(*more)
    want = torch.stack([tokens[4][b, begin : begin + 9] for b, begin in begins])
    assert torch.equal(out, want)
    parts = both.split()
    assert [part.positions for part in parts] == [[29], [29], [20]]
    assert torch.equal(parts[2].append(*(x[1:, 20:] for x in tokens[:3])), tokens[4][1:, 20:])
    assert first.positions == [20, 20]
    with pytest.raises(RuntimeError, match="no states are given"):
        mhla.StreamingState.join([])
    layer = MHLA.lm(32, 2, chunk=8, max_tokens=64, short_conv=4)
    long, short = layer.streaming_state(), layer.streaming_state()
    x = torch.randn(1, 40, 32)
    layer.stream(x[:, :9], long)
    with pytest.raises(RuntimeError, match="of one length"):
        mhla.StreamingState.join([long, short])
    layer.stream(x[:, :9], short)
    torch.testing.assert_close(layer.stream(x[:, 9:].expand(2, -1, -1), mhla.StreamingState.join([long, short]))[1:], layer(x)[:, 9:])
