#!/usr/bin/env python3
"""Decoding with Wan's autoencoder on a GPU: `mhla bench model --model wan_vae` and AutoencoderKLWan of diffusers, one after the other.

    scripts/gpu_diffusers.py --collect peers          # where diffusers is installed: its Python files
    PYTHONPATH=peers scripts/gpu_wan_vae.py --mhla build/gpu_torch/bin/mhla [--json]

81 frames of 480 x 800 in bf16 with random weights. conv3d and conv2d are two ways of ours to convolve over frames. Median wall
times and the peak of allocated memory. Exit code 1 where the best of ours is slower than diffusers or takes more than 6 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from gpu_diffusers import import_model

MOST_MIB = 6e9 / 2**20


def ours(options) -> list[dict]:
    words = [options.mhla, "bench", "model", "--model", "wan_vae", "--pass", "decode", "--attention", options.ways, "--frames", options.frames,
             "--size", options.size, "--device", options.device, "--precision", options.precision, "--min-time", options.seconds, "--json"]  # fmt: skip
    made = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=False)
    rows = [json.loads(line) for line in made.stdout.decode().splitlines() if line.startswith("{")]
    return [{"decoder": f"mhla, {row['attention']}", "ms": row["ms"], "peak_mib": row.get("peak_mib")} for row in rows if "ms" in row]


def diffusers(options) -> dict:
    import torch

    rows, columns = map(int, options.size.split("x"))
    on_gpu = options.device.startswith("cuda")
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    model = import_model("autoencoders.autoencoder_kl_wan", "AutoencoderKLWan")().to(options.device, dtype).eval()
    z = torch.randn(1, 16, (options.frames - 1) // 4 + 1, rows // 8, columns // 8).to(options.device, dtype)

    @torch.no_grad()
    def once() -> float:
        begin = time.perf_counter()
        model.decode(z, return_dict=False)
        if on_gpu:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    once()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times, end = [], time.time() + options.seconds
    while time.time() < end or len(times) < 3:
        times.append(once())
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    return {"decoder": "diffusers", "ms": statistics.median(times), "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mhla", default="build/release/bin/mhla")
    parser.add_argument("--ways", default="conv3d,conv2d", help="of ours, joined by commas: plain, conv3d, conv2d")
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--size", default="480x800")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--seconds", type=float, default=4.0, help="of every row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [*ours(options), diffusers(options)]
    for row in rows:
        peak = f"{row['peak_mib']:.0f} MiB" if row["peak_mib"] else "-"
        print(json.dumps(row) if options.json else f"{row['decoder']:<16} {row['ms']:10.1f} ms  {peak:>10}", flush=True)
    best, other = min(rows[:-1], key=lambda row: row["ms"], default=None), rows[-1]
    sys.exit(0 if best and best["ms"] <= other["ms"] and (best["peak_mib"] or 0) <= MOST_MIB else 1)


if __name__ == "__main__":
    main()
