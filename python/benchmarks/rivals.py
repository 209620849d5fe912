"""What the installed PyTorch takes for the work of `mhla bench op`: softmax attention, and MHLA in plain torch code.

    venv/bin/python python/benchmarks/rivals.py --mhla build/release/bin/mhla                  # softmax at 4,096 tokens
    venv/bin/python python/benchmarks/rivals.py --mhla ... --rival plain --pass fwd,fwd+bwd --batch 4 dit_s_256 dit_xl_512

softmax: `torch.nn.functional.scaled_dot_product_attention`, each of its backends with two layouts of the inputs. plain:
the formula of MHLA in torch operators, as it is written and through `torch.compile`. Every variant is checked, then timed;
the fastest counts: median of its calls, f32, on the CPU, with an allocator that keeps what is freed (else torch spends most
of a short call on fresh pages). With --mhla the program is timed before and after on the same
shape with as many threads, and the line ends with the ratio of the medians. The package mhla is not needed.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
if any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):  # glibc reads them when a program starts
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})

import torch
import torch.nn.functional as F

# B, H, grid of tokens, D, blocks: those of `mhla bench op --shape`, and the one of the README.
SHAPES = {
    "tokens_4096": (1, 6, (64, 64), 64, (4, 4)),
    "deit_t_224": (128, 3, (16, 16), 64, (4, 4)),
    "dit_s_256": (64, 6, (16, 16), 64, (4, 4)),
    "dit_xl_512": (16, 16, (32, 32), 72, (4, 4)),
    "sana_1024": (8, 36, (32, 32), 32, (4, 4)),
    "dit_s_4096": (1, 6, (256, 256), 64, (16, 16)),
    "wan_480p": (1, 12, (21, 30, 50), 128, (7, 3, 5)),
}


def plain_attention(q, k, v, mix, grid, blocks):
    """Blocks gathered, summaries, mixing, read-out; tokens are [B, N, H, D] in raster order."""
    B, N, H, D = q.shape
    axes = len(grid)
    split = [size for tokens, count in zip(grid, blocks) for size in (count, tokens // count)]
    by_block = [0, 1 + 2 * axes, *range(1, 2 * axes, 2), *range(2, 2 * axes + 1, 2), 2 + 2 * axes]
    back = [by_block.index(axis) for axis in range(len(by_block))]
    cut = lambda x: x.view(B, *split, H, D).permute(by_block).reshape(B, H, math.prod(blocks), -1, D)
    q, k, v = cut(q.relu() + 1e-6), cut(k.relu() + 1e-6), cut(v)
    summaries = k.transpose(-1, -2) @ v
    mixed = (mix @ summaries.flatten(-2)).view_as(summaries)
    den = q @ (mix @ k.sum(-2)).unsqueeze(-1) + 1e-6
    inside = [tokens // count for tokens, count in zip(grid, blocks)]
    return ((q @ mixed) / den).view(B, H, *blocks, *inside, D).permute(back).reshape(B, N, H, D)


def backends():
    """What softmax attention can be made to use, by name. Older versions decide alone."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {"default": contextlib.nullcontext}
    return {
        "default": contextlib.nullcontext,
        "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        "math": lambda: sdpa_kernel(SDPBackend.MATH),
    }


def softmax_variants(q, k, v, *_):
    """Name and (call, inputs, context) of each way to compute it; the answer is [B, H, N, D]."""
    views = [x.transpose(1, 2) for x in (q, k, v)]
    contiguous = [x.detach().contiguous().requires_grad_() for x in views]
    for name, use in backends().items():
        yield f"{name}, views", (F.scaled_dot_product_attention, views, use)
        yield f"{name}, contiguous", (F.scaled_dot_product_attention, contiguous, use)


def plain_variants(q, k, v, mix, grid, blocks):
    inputs = [q, k, v, mix]
    eager = lambda *x: plain_attention(*x, grid, blocks)
    yield "eager", (eager, inputs, contextlib.nullcontext)
    yield "compiled", (torch.compile(eager, dynamic=False), inputs, contextlib.nullcontext)


def median_ms(call, seconds):
    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def fastest(rival, shape, backward, seconds):
    """(milliseconds, name) of the fastest variant."""
    B, H, grid, D, blocks = shape
    q, k, v = (torch.randn(B, math.prod(grid), H, D, requires_grad=True) for _ in range(3))
    mix = torch.rand(math.prod(blocks), math.prod(blocks), requires_grad=True)
    variants = {"softmax": softmax_variants, "plain": plain_variants}[rival]
    found, expected = [], None
    for name, (function, inputs, use) in variants(q, k, v, mix, grid, blocks):
        with use():
            try:
                with torch.no_grad():
                    out = function(*inputs)
            except RuntimeError:  # this backend does not take the problem
                continue
            expected = out if expected is None else expected
            off = ((out - expected).norm() / expected.norm()).item()
            assert off < 1e-5, f"{name} is off by {off}"
            if backward:
                dout = torch.randn_like(out)
                ms = median_ms(lambda: torch.autograd.grad(function(*inputs), inputs, dout), seconds)
            else:
                with torch.no_grad():
                    ms = median_ms(lambda: function(*inputs), seconds)
            found.append((ms, name))
    return min(found)


def mhla_ms(options, shape, which):
    """The median of the operator, by the program."""
    B, H, grid, D, blocks = shape
    sides = lambda sizes: "x".join(map(str, sizes))
    words = ["bench", "op", "--json", "--batch", B, "--h", H, "--d", D, "--grid", sides(grid), "--blocks", sides(blocks),
             "--pass", which, "--threads", options.threads]  # fmt: skip
    run = subprocess.run([options.mhla, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         env={name: value for name, value in os.environ.items() if name not in KEEP_MEMORY})  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])["ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--rival", default="softmax", help="softmax, plain, or both joined by a comma")
    parser.add_argument("--pass", dest="passes", default="fwd", help="fwd, fwd+bwd, or both joined by a comma")
    parser.add_argument("--batch", type=int, help="instead of that of the shape, where it is smaller")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each variant")
    parser.add_argument("--mhla", help="the program to compare with")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, f32")
    for name in options.shapes or ["tokens_4096"]:
        shape = SHAPES[name]
        if options.batch:
            shape = (min(options.batch, shape[0]), *shape[1:])
        for which in options.passes.split(","):
            before = mhla_ms(options, shape, which) if options.mhla else None
            for rival in options.rival.split(","):
                ms, variant = fastest(rival, shape, which != "fwd", options.seconds)
                line = f"{name} B{shape[0]} {which}: {rival} {ms:.2f} ms ({variant})"
                if options.mhla:
                    own = statistics.mean([before, mhla_ms(options, shape, which)])
                    line += f", mhla {own:.2f} ms: {ms / own:.1f} times as long"
                print(line, flush=True)


if __name__ == "__main__":
    main()
