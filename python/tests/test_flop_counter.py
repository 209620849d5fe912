"""The formulas of FlopCounterMode, against sums by hand."""

from mhla import flop_counter


def test_bidirectional():
    q, k, v, mix = (2, 40, 4, 8), (2, 40, 2, 8), (2, 40, 2, 6), (5, 5)
    summaries, read = 2 * 2 * 40 * 8 * 6 * 2, 2 * 4 * 40 * 8 * 6 * 2
    shared, own = 2 * 2 * 25 * 48 * 2, 2 * 4 * 25 * 48 * 2
    assert flop_counter.bidirectional(q, k, v, mix, 8) == summaries + shared + read
    assert flop_counter.bidirectional(q, k, v, (4, 5, 5), 8, out_shape=q) == summaries + own + read
    assert flop_counter.bidirectional(q, k, v, mix, 0, (4, 10), (1, 5), None, None, None, "relu", "paper") == summaries + shared + read
    assert flop_counter.bidirectional(q, k, v, mix, 8, backward=True) == 3 * summaries + 3 * shared + 2 * read
    packed = flop_counter.bidirectional((1, 40, 2, 8), (1, 40, 2, 8), (1, 40, 2, 6), mix, 10, (), (), None, None, (3,))
    assert packed == 2 * 2 * (2 * 40 * 48) + 2 * (2 * 2 * 4 * 48)  # two sequences of two blocks each


def test_chunkwise():
    q, v, mix = (1, 64, 2, 8), (1, 64, 2, 4), (4, 4)
    whole = 2 * 2 * 64 * 8 * 4
    mixing, within = 2 * 16 * 8 * 4, 2 * 64 * 16 * (8 + 4)
    assert flop_counter.chunkwise(q, q, v, mix, 16) == 2 * whole + mixing + within
    assert flop_counter.chunkwise(q, q, v, mix, 16, backward=True) == 5 * whole + 3 * mixing + 3 * within
