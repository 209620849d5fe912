"""Softmax attention of the installed PyTorch, for comparison with `mhla bench op`.

    venv/bin/python python/benchmarks/softmax.py --mhla build/release/bin/mhla

Times `torch.nn.functional.scaled_dot_product_attention` with each of its backends and two layouts of the inputs, and
reports the fastest: median of the calls, forward, float32. With --mhla the program is timed before and after it with as
many threads on the same shape, and the ratio of the medians is printed. The package mhla is not needed.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F


def backends():
    """What a call can be made to use, by name. Older versions decide alone."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {"default": contextlib.nullcontext}
    return {
        "default": contextlib.nullcontext,
        "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        "math": lambda: sdpa_kernel(SDPBackend.MATH),
    }


def median_ms(call, seconds):
    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def fastest_softmax(options, tokens):
    """(milliseconds, name) of the fastest backend and layout."""
    shape = options.batch, tokens, options.h, options.d
    token_first = [torch.randn(shape) for _ in range(3)]  # [B, N, H, D], as the operator of mhla takes them
    layouts = {
        "views": [x.transpose(1, 2) for x in token_first],
        "contiguous": [x.transpose(1, 2).contiguous() for x in token_first],
    }
    found = []
    with torch.no_grad():
        exact = F.scaled_dot_product_attention(*(x.double() for x in layouts["views"]))
        for backend, use in backends().items():
            for layout, qkv in layouts.items():
                call = lambda qkv=qkv: F.scaled_dot_product_attention(*qkv)
                with use():
                    try:
                        off = ((call() - exact).norm() / exact.norm()).item()
                    except RuntimeError:  # this backend does not take the problem
                        continue
                    assert off < 1e-5, f"{backend} is off by {off}"
                    found.append((median_ms(call, options.seconds), f"{backend}, {layout}"))
    return min(found)


def mhla_ms(options):
    """The median of the operator, by the program."""
    rows, columns = map(int, options.grid.split("x"))
    words = ["bench", "op", "--json", "--b", options.batch, "--h", options.h, "--d", options.d, "--grid", f"{rows}x{columns}",
             "--blocks", options.blocks, "--threads", options.threads]  # fmt: skip
    run = subprocess.run([options.mhla, *map(str, words)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(run.stdout.splitlines()[-1])["ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--h", type=int, default=6, help="heads")
    parser.add_argument("--d", type=int, default=64, help="size of a head")
    parser.add_argument("--grid", default="64x64", help="rows x columns of tokens")
    parser.add_argument("--blocks", default="4x4", help="of mhla")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each backend and layout")
    parser.add_argument("--mhla", help="the program to compare with")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, columns = map(int, options.grid.split("x"))
    before = mhla_ms(options) if options.mhla else None
    ms, name = fastest_softmax(options, rows * columns)
    line = f"softmax: torch {torch.__version__}, {options.threads} threads, f32, B {options.batch}, H {options.h}, "
    print(f"{line}N {rows * columns}, D {options.d}: {ms:.2f} ms ({name})")
    if options.mhla:
        own = statistics.mean([before, mhla_ms(options)])
        print(f"mhla: {own:.2f} ms; softmax takes {ms / own:.1f} times as long")


if __name__ == "__main__":
    main()
