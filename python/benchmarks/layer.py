"""Times the operator and the layer beside plain torch code and softmax attention, forward and backward.

    python python/benchmarks/layer.py [--device cuda] [--batch 64]

Shape of DiT-S/2 at 256 px: 16 x 16 tokens, 384 channels, 6 heads, 4 x 4 blocks. Every candidate gets the same inputs and is
checked against plain code before it is timed; median of CUDA events, or of wall time on the CPU. On a GPU the layer is also timed
as a CUDA graph, without what Python and autograd cost on the host.
"""

import argparse
import os
import statistics
import time

# torch's workers spin after their work and the kernels have workers of their own: on a busy machine they take turns.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F
from torch import nn

import mhla

GRID, BLOCKS, DIM, HEADS = (16, 16), (4, 4), 384, 6


def plain_attention(q, k, v, mix):
    """The formula in torch operators, as one would write it: blocks gathered, summaries, mixing, read-out."""
    B, N, H, D = q.shape
    (rows, columns), (r, c) = GRID, BLOCKS
    cut = (
        lambda x: x.view(B, r, rows // r, c, columns // c, H, D)
        .permute(0, 5, 1, 3, 2, 4, 6)
        .reshape(B, H, r * c, -1, D)
    )
    q, k, v = cut(q.relu() + 1e-6), cut(k.relu() + 1e-6), cut(v)
    mix = mix.to(q.dtype)
    summaries = k.transpose(-1, -2) @ v
    mixed = (mix @ summaries.flatten(-2)).view_as(summaries)
    den = q @ (mix @ k.sum(-2)).unsqueeze(-1) + 1e-6
    out = ((q @ mixed) / den).view(B, H, r, c, rows // r, columns // c, D)
    return out.permute(0, 2, 4, 3, 5, 1, 6).reshape(B, N, H, D)


class Softmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            out = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.out(out.transpose(1, 2).flatten(-2))


class Plain(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.qkv, self.out, self.mix = layer.qkv, layer.out, layer.mix

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        return self.out(plain_attention(q, k, v, self.mix).flatten(-2))


def milliseconds(call, device, seconds=1.0):
    """Median time of one call."""
    for _ in range(3):
        call()
    times, end = [], time.time() + seconds
    while time.time() < end or len(times) < 5:
        if device == "cuda":
            begin, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(begin.elapsed_time(stop))
        else:
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def graphed(call):
    """The same work recorded once: replayed, the device does not wait for the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def mebibytes(call, dout):
    """The most memory of the device that a forward and backward pass holds beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call().backward(dout)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=0, help="4 on the CPU, 64 on CUDA")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    device = options.device
    batch = options.batch or (64 if device == "cuda" else 4)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    mhla.set_num_threads(options.threads or mhla.get_num_threads())
    torch.manual_seed(0)

    layer = mhla.nn.MHLA(DIM, HEADS, grid=GRID, blocks=BLOCKS).to(device, dtype)
    layers = {"mhla": layer, "plain": Plain(layer), "softmax": Softmax().to(device, dtype)}
    x = torch.randn(batch, GRID[0] * GRID[1], DIM, device=device, dtype=dtype, requires_grad=True)
    off = ((layers["mhla"](x) - layers["plain"](x)).float().norm() / layers["plain"](x).float().norm()).item()
    assert off <= 8 * torch.finfo(dtype).eps, f"mhla and plain code differ by {off}"

    q, k, v = (
        torch.randn(batch, GRID[0] * GRID[1], HEADS, DIM // HEADS, device=device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    )
    mix = layer.mix.detach().float().requires_grad_()
    heads = lambda y: y.transpose(1, 2)
    operators = {
        "mhla": lambda: mhla.attention(q, k, v, mix, grid=GRID, blocks=BLOCKS),
        "plain": lambda: plain_attention(q, k, v, mix),
    }
    if hasattr(F, "scaled_dot_product_attention"):
        operators["softmax"] = lambda: F.scaled_dot_product_attention(heads(q), heads(k), heads(v))

    print(f"torch {torch.__version__}, {device}, {dtype}, batch {batch}, {mhla.get_num_threads()} threads; ms")
    print(f"{'':10} {'op fwd':>9} {'op fwd+bwd':>11} {'layer fwd':>10} {'layer fwd+bwd':>14} {'in a graph':>11}")
    rows, peaks, nan = {}, {}, float("nan")
    for name in ("mhla", "plain", "softmax"):
        row = []
        for call in (operators.get(name), lambda: layers[name](x)):
            if call is None:
                row += [nan] * 2
                continue
            with torch.no_grad():
                row.append(milliseconds(call, device))
            dout = torch.randn_like(call())
            row.append(milliseconds(lambda: call().backward(dout), device))
        rows[name] = row
        if device == "cuda":
            peaks[name] = mebibytes(lambda: layers[name](x), dout)
            row.append(milliseconds(graphed(lambda: layers[name](x).backward(dout)), device))
        print(f"{name:10} {row[0]:9.3f} {row[1]:11.3f} {row[2]:10.3f} {row[3]:14.3f} {row[4] if len(row) > 4 else nan:11.3f}")
    for other in ("plain", "softmax"):
        print(f"{other + ' / mhla':16}" + "  ".join(f"{a / b:6.2f}" for a, b in zip(rows[other], rows["mhla"])))
    if peaks:
        print("layer fwd+bwd, MiB at the peak: " + ", ".join(f"{name} {peak:.1f}" for name, peak in peaks.items()))


if __name__ == "__main__":
    main()
