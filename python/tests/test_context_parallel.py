"""mhla.distributed.attention on 2 to 4 real processes over loopback: by summaries the bits of one process, by heads too,
for every layout, ragged or not; what is sent, what is chosen, what is refused."""

import copy
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import mhla

# name, layout, tokens, options
CASES = [
    ("line", dict(block_size=96), 1000, dict()),
    ("line, own mixes", dict(block_size=96), 1000, dict(per_head=True)),
    ("line, no normaliser", dict(block_size=64), 512, dict(normalizer="none", scale=0.25)),
    ("image", dict(grid=(23, 19), blocks=(4, 5)), 437, dict()),
    ("image, den", dict(grid=(23, 19), blocks=(2, 5)), 437, dict(den=True)),
    ("video", dict(grid=(7, 9, 11), blocks=(3, 2, 3)), 693, dict(per_head=True)),
    ("causal", dict(causal=True, chunk=96), 1000, dict()),
    ("causal, normalised", dict(causal=True, chunk=96), 1000, dict(normalizer="paper", per_head=True)),
    ("causal, den", dict(causal=True, chunk=64), 449, dict(normalizer="paper", den=True)),
    ("causal, bf16", dict(causal=True, chunk=64), 512, dict(dtype=torch.bfloat16)),
]


def make(layout, tokens, per_head=False, den=False, dtype=torch.float32, **options):
    """Tensors of the whole sequence: q, k, v, mix, q_den, k_den, dout."""
    generator = torch.Generator().manual_seed(7)
    H, Hkv, D, E, B = 4, 4, 16, 24, 2
    if "grid" in layout:
        M = 1
        for count in layout["blocks"]:
            M *= count
    else:
        M = -(-tokens // (layout.get("block_size") or layout["chunk"]))
    new = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)
    mix = torch.rand(*([H] if per_head else []), M, M, generator=generator)
    q, k, v, dout = new(B, tokens, H, D), new(B, tokens, Hkv, D), new(B, tokens, Hkv, E), new(B, tokens, H, E)
    features = (new(B, tokens, H, D), new(B, tokens, Hkv, D)) if den else (None, None)
    return (q, k, v, mix, *features, dout), options


def compute(tensors, options, call):
    """out and the gradients of what is given."""
    *inputs, dout = tensors
    leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
    q, k, v, mix, q_den, k_den = leaves
    out = call(q, k, v, mix, q_den=q_den, k_den=k_den, **options)
    given = [x for x in leaves if x is not None]
    return [out.detach(), *torch.autograd.grad(out, given, dout)]


def whole(case):
    _, layout, tokens, more = case
    tensors, options = make(layout, tokens, **copy.copy(more))
    return compute(tensors, options, lambda *a, **o: mhla.attention(*a, **layout, **o))


class Counted:
    """Values that arrive from other ranks."""

    def __init__(self, rank):
        self.rank, self.values = rank, 0
        self.gather, self.exchange = dist.all_gather, dist.all_to_all_single

    def all_gather(self, to, own, group=None):
        self.values += sum(x.numel() for i, x in enumerate(to) if i != self.rank)
        return self.gather(to, own, group=group)

    def all_to_all(self, to, own, sizes, sent, group=None):
        self.values += sum(n for i, n in enumerate(sizes) if i != self.rank)
        return self.exchange(to, own, sizes, sent, group=group)

    def __enter__(self):
        dist.all_gather, dist.all_to_all_single = self.all_gather, self.all_to_all
        return self

    def __exit__(self, *_):
        dist.all_gather, dist.all_to_all_single = self.gather, self.exchange


def work(rank, world, port, folder):
    torch.set_num_threads(1)
    mhla.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    results = []
    for name, layout, tokens, more in CASES:
        mine = mhla.distributed.local_tokens(rank, world, tokens=tokens, **layout)
        tensors, options = make(layout, tokens, **copy.copy(more))
        local = [x if x is None or i == 3 else x[:, mine] for i, x in enumerate(tensors)]
        for method in ("summaries", "heads"):
            if method == "heads" and 4 % world:
                continue
            # Without `tokens` the ranks ask each other.
            total = dict() if name == "line" else dict(tokens=tokens)
            with Counted(rank) as counted:
                got = compute(
                    local, options, lambda *a, **o: mhla.distributed.attention(*a, **layout, **total, method=method, **o)
                )
            plan = mhla.distributed.plan(*local[:4], world=world, tokens=tokens, **layout, method=method, den=local[4] is not None,
                                         normalizer=options.get("normalizer"))
            dist.all_reduce(got[4])  # dmix: every rank has its part
            results.append((name, method, mine, got, counted.values, plan))
    torch.save(results, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request, tmp_path_factory):
    """What every rank of a team computed, case by case."""
    folder = tmp_path_factory.mktemp("team")
    multiprocessing.spawn(work, (request.param, free_port(), str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


@pytest.fixture(scope="module")
def wants():
    return {case[0]: whole(case) for case in CASES}


def test_bits_of_one_process(ranks, wants):
    checked = 0
    for parts in zip(*ranks):
        name, method = parts[0][:2]
        for i, full in enumerate(wants[name]):
            label = f"{name}, {method}, result {i}"
            if i == 4:  # dmix, summed over the ranks. By heads partial sums over heads are added in another order
                if method == "summaries":
                    assert all(torch.equal(part[3][4], full) for part in parts), label
                torch.testing.assert_close(parts[0][3][4], full, rtol=1e-4, atol=1e-4, msg=label)
                continue
            got = torch.full_like(full, float("nan"))
            for part in parts:
                got[:, part[2]] = part[3][i]
            assert torch.equal(got, full), label
            checked += 1
    assert checked >= len(CASES) * 4


def test_what_arrives(ranks):
    """By summaries (1 - 1/P) B M Hkv (D E + D) values forward and as many backward; by heads a share of q, k, v and out."""
    B, H, D, E, world = 2, 4, 16, 24, len(ranks)
    for parts in zip(*ranks):
        name, method = parts[0][:2]
        layout, tokens, more = next(case[1:] for case in CASES if case[0] == name)
        plain = more.get("normalizer") == "none" or (layout.get("causal") and "normalizer" not in more)
        size = 2 if more.get("dtype") == torch.bfloat16 else 4
        M = parts[0][3][4].shape[-1]
        if method == "summaries":
            expected = 2 * (world - 1) * B * M * H * (D * E + (0 if plain else D))  # of all ranks together
            assert sum(part[4] for part in parts) == expected, name
            assert max(part[4] for part in parts) == parts[0][5].values + parts[0][5].values_backward, name
            if M % world == 0 and "grid" not in layout:
                assert all(part[4] * world == expected for part in parts), name
        else:
            row = H * (4 if more.get("den") else 2) * D + 2 * H * E
            assert sum(part[4] for part in parts) == 2 * (world - 1) * B * tokens * row // world * size, name
            assert max(part[4] for part in parts) <= (parts[0][5].values + parts[0][5].values_backward) * size, name


def tensors_of(H=4, D=16, tokens=64):
    return [torch.randn(1, tokens, H, D) for _ in range(3)]


def test_the_choice():
    q, k, v = tensors_of()
    plan = mhla.distributed.plan
    few = plan(q, k, v, torch.rand(4, 4), world=4, tokens=65536, block_size=16384)
    assert few.method == "summaries" and few.values == 3 * 4 * (16 * 16 + 16)
    many = plan(q, k, v, torch.rand(1024, 1024), world=4, tokens=4096, block_size=4)
    assert many.method == "heads" and "bytes by summaries" in many.reason
    odd = plan(q, k, v, torch.rand(1024, 1024), world=3, tokens=4096, block_size=4)
    assert odd.method == "summaries" and "do not divide" in odd.reason
    assert plan(q, k, v, torch.rand(4, 4), world=4, tokens=65536, block_size=16384, method="heads").reason == "asked for"


def test_local_tokens():
    parts = [mhla.distributed.local_tokens(r, 3, grid=(5, 6), blocks=(3, 2)) for r in range(3)]
    assert torch.equal(torch.cat(parts), torch.arange(30))  # slices of the first axis are consecutive
    parts = [mhla.distributed.local_tokens(r, 4, grid=(5, 6), blocks=(3, 2)) for r in range(4)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(30))
    assert parts[1].tolist() == [3, 4, 5, 9, 10, 11, 12, 13, 14, 18, 19, 20]  # blocks 1 and 2
    range_of = torch.ops.mhla.blocks_of_rank
    for world in (1, 2, 3, 4, 6):
        for rank in range(world):
            first, count = range_of(30, 0, (5, 6), (3, 2), world, rank)
            layout = mhla.distributed._layout(None, None, (5, 6), (3, 2), False, None)
            assert mhla.distributed._range(layout, world, rank) == (first, count)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(tokens=64, block_size=32, world=4), "4 ranks for 2 blocks, expected 1 to 2"),
        (dict(tokens=64, block_size=16, method="ring"), "method is 'ring', expected auto, summaries or heads"),
        (dict(tokens=64, block_size=16, world=3, method="heads"), "method heads: 3 ranks do not divide 4 and 4 heads"),
        (dict(tokens=64, block_size=16, normalizer="official", method="summaries"),
         "method summaries: the official normaliser reads queries of every block"),
        (dict(tokens=64, block_size=16, chunk=8), "chunk is 8 without causal=True"),
        (dict(block_size=16), "tokens is None, expected the number of tokens of the whole sequence"),
        (dict(tokens=9, grid=(2, 4), blocks=(2, 2)), "tokens is 9, expected 8"),
        (dict(tokens=64), "the layout is not given or given twice"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    q, k, v = tensors_of()
    with pytest.raises(RuntimeError, match=message.replace("(", r"\(")):
        mhla.distributed.plan(q, k, v, torch.rand(4, 4), **{"world": 2, **change})


def test_needs_a_group():
    q, k, v = tensors_of()
    with pytest.raises(RuntimeError, match="torch.distributed has no process group"):
        mhla.distributed.attention(q, k, v, torch.rand(4, 4), block_size=16)


def test_one_process_and_gradients(tmp_path):
    """P = 1 needs no exchange; in f64 the gradients are those of finite differences."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for layout in (dict(grid=(3, 4), blocks=(2, 2)), dict(causal=True, chunk=5), dict(block_size=5)):
            q, k, v, q_den, k_den = (torch.randn(1, 12, 2, 3, dtype=torch.float64).requires_grad_() for _ in range(5))
            M = 4 if "grid" in layout else 3
            mix = torch.rand(M, M, dtype=torch.float64).requires_grad_()
            options = dict(normalizer="paper", feature_map="elu1", eps=0.3, **layout)
            call = lambda q, k, v, mix, q_den, k_den: mhla.distributed.attention(
                q, k, v, mix, q_den=q_den, k_den=k_den, method="summaries", **options
            )
            torch.testing.assert_close(
                call(q, k, v, mix, q_den, k_den), mhla.attention(q, k, v, mix, q_den=q_den, k_den=k_den, **options)
            )
            assert torch.autograd.gradcheck(call, (q, k, v, mix, q_den, k_den))
            with pytest.raises(RuntimeError, match="q of rank 0 has 11 tokens, expected 12"):
                call(q[:, :11], k[:, :11], v[:, :11], mix, None, None) if "grid" in layout else mhla.distributed.attention(
                    q[:, :11], k[:, :11], v[:, :11], mix, tokens=12, **options
                )
    finally:
        dist.destroy_process_group()
