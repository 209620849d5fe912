#!/usr/bin/env python3
"""Other attentions at the named shapes, for comparison with `mhla bench op --backend gpu` on the same card.

    scripts/gpu_peers.py [--seconds 0.2] [SHAPE ...]

bf16, median device time in ms with the L2 cache flushed between runs, forward and forward + backward: softmax attention of
PyTorch by kernel (cuDNN, flash), and linear attention of flash-linear-attention at causal shapes where Python finds that
package (its files in a folder of PYTHONPATH are enough), the faster of its chunked forms. Causal shapes of softmax
attention have E = D = 128: these kernels take no wider values. Linear attention has E = 256, as MHLA.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# B, H, N, D, causal; as in docs/benchmarks.md.
SHAPES = {
    "deit_t_224": (128, 3, 256, 64, False),
    "dit_s_256": (64, 6, 256, 64, False),
    "dit_xl_512": (16, 16, 1024, 72, False),
    "sana_1024": (8, 36, 1024, 32, False),
    "dit_s_4096": (1, 6, 65536, 64, False),
    "wan_480p": (1, 12, 31500, 128, False),
    "lm_2048": (16, 4, 2048, 128, True),
    "lm_16384": (2, 4, 16384, 128, True),
    "lm_65536": (1, 4, 65536, 128, True),
}
KERNELS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def milliseconds(call, seconds):
    """Median over runs, each behind a write of 256 MiB that empties the L2 cache."""
    flush = torch.empty(64 << 20, device="cuda")
    for _ in range(3):
        call()
    times, end = [], time.time() + seconds
    while time.time() < end or len(times) < 5:
        flush.zero_()
        begin, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(begin.elapsed_time(stop))
    return statistics.median(times)


def linear_forms():
    """The chunked forms of flash-linear-attention without a normaliser; none where the package is missing."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn, fused_chunk_linear_attn
    except ImportError:
        return []
    return [lambda q, k, v, form=form: form(q, k, v, normalize=False)[0] for form in (chunk_linear_attn, fused_chunk_linear_attn)]


def inputs(B, N, H, *sizes):
    return [torch.randn(B, N, H, size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for size in sizes]


def softmax(backend, causal, q, k, v):
    heads = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*heads, is_causal=causal)


def both_passes(attend, q, k, v, seconds):
    """Forward, and forward with backward; none where the kernel does not take this shape."""
    try:
        with torch.no_grad():
            dout = torch.randn_like(attend(q, k, v))
            forward = milliseconds(lambda: attend(q, k, v), seconds)
        return forward, milliseconds(lambda: attend(q, k, v).backward(dout), seconds)
    except RuntimeError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--seconds", type=float, default=0.2, help="a row and kernel")
    options = parser.parse_args()
    for name in options.shapes:
        if name not in SHAPES:
            parser.error(f"{name}: no such shape, expected one of {', '.join(SHAPES)}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    linear = linear_forms()
    columns = [*KERNELS, *(["fla linear"] if linear else [])]
    print(f"{'shape':12}" + "".join(f" {column + ' fwd':>14} {'fwd+bwd':>9}" for column in columns))
    for name in options.shapes:
        B, H, N, D, causal = SHAPES[name]
        x = inputs(B, N, H, D, D, D)
        found = [both_passes(lambda *qkv, kernel=kernel: softmax(kernel, causal, *qkv), *x, options.seconds) for kernel in KERNELS.values()]
        if linear and causal:
            x = inputs(B, N, H, D, D, 2 * D)
            forms = [row for row in (both_passes(form, *x, options.seconds) for form in linear) if row]
            found.append(tuple(map(min, zip(*forms))) if forms else None)
        cells = [f" {row[0]:14.4f} {row[1]:9.4f}" if row else f" {'-':>14} {'-':>9}" for row in found]
        print(f"{name:12}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
