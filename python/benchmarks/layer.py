"""Times the operator and the layer beside plain torch code and softmax attention, forward and backward.

    python python/benchmarks/layer.py [--device cuda] [--batch 64]

Shape of DiT-S/2 at 256 px: 16 x 16 tokens, 384 channels, 6 heads, 4 x 4 blocks. Every candidate gets the same inputs and is
checked against plain code before it is timed; median of CUDA events, or of wall time on the CPU, in turns. On a GPU the layer is also timed
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


def milliseconds(calls, device, seconds=1.0):
    """Median time of each call. They take turns: a host that is slow for a while is slow for all of them."""
    for call in calls.values():
        for _ in range(3):
            call()
    times, end = {name: [] for name in calls}, time.time() + seconds * len(calls)
    while time.time() < end or len(times["mhla"]) < 5:
        for name, call in calls.items():
            if device == "cuda":
                begin, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                stop.record()
                stop.synchronize()
                times[name].append(begin.elapsed_time(stop))
            else:
                start = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


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


def mebibytes(call):
    """The most memory of the device that a call holds beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
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

    layer = mhla.nn.MHLA(DIM, HEADS, grid=GRID, blocks=BLOCKS, device=device, dtype=dtype)  # mix stays float32
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

    forward = {name: (lambda layer=layer: layer(x)) for name, layer in layers.items()}
    backward = lambda calls: {
        name: (lambda call=call, dout=torch.randn_like(call()): call().backward(dout)) for name, call in calls.items()
    }
    columns, peaks = {}, {}
    with torch.no_grad():
        columns["op fwd"], columns["layer fwd"] = milliseconds(operators, device), milliseconds(forward, device)
    columns["op fwd+bwd"] = milliseconds(backward(operators), device)
    columns["layer fwd+bwd"] = milliseconds(backward(forward), device)
    if device == "cuda":
        peaks = {name: mebibytes(call) for name, call in backward(forward).items()}
        columns["in a graph"] = milliseconds({name: graphed(call) for name, call in backward(forward).items()}, device)

    print(f"torch {torch.__version__}, {device}, {dtype}, batch {batch}, {mhla.get_num_threads()} threads; ms")
    line = lambda name, cells: print(f"{name:15}" + "".join(f"{cell:>15}" for cell in cells))
    nan = float("nan")
    line("", columns)
    for name in layers:
        line(name, (f"{column.get(name, nan):.3f}" for column in columns.values()))
    for other in ("plain", "softmax"):
        line(other + " / mhla", (f"{column.get(other, nan) / column['mhla']:.2f}" for column in columns.values()))
    if peaks:
        print("layer fwd+bwd, MiB at the peak: " + ", ".join(f"{name} {peak:.1f}" for name, peak in peaks.items()))


if __name__ == "__main__":
    main()
