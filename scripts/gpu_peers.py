#!/usr/bin/env python3
"""Softmax attention of PyTorch at the named shapes, for comparison with `mhla bench op --backend gpu` on the same card.

    scripts/gpu_peers.py [--seconds 0.2] [SHAPE ...]

bf16, median device time in ms with the L2 cache flushed between runs, forward and forward + backward, by kernel (cuDNN,
flash). Causal shapes have E = D = 128: these kernels take no wider values.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), metavar="SHAPE")
    parser.add_argument("--seconds", type=float, default=0.2, help="a row and kernel")
    options = parser.parse_args()
    for name in options.shapes:
        if name not in SHAPES:
            parser.error(f"{name}: no such shape, expected one of {', '.join(SHAPES)}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'shape':12}" + "".join(f" {kernel + ' fwd':>12} {'fwd+bwd':>9}" for kernel in KERNELS))
    for name in options.shapes:
        B, H, N, D, causal = SHAPES[name]
        q, k, v = (torch.randn(B, N, H, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        dout = torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16)
        row = f"{name:12}"
        for backend in KERNELS.values():

            def attend():
                heads = (x.transpose(1, 2) for x in (q, k, v))
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(*heads, is_causal=causal)

            try:
                with torch.no_grad():
                    forward = milliseconds(attend, options.seconds)
                row += f" {forward:12.4f} {milliseconds(lambda: attend().backward(dout), options.seconds):9.4f}"
            except RuntimeError:  # the kernel does not take this shape
                row += f" {'-':>12} {'-':>9}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
