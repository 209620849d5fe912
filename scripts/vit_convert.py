#!/usr/bin/env python3
"""vit_convert.py [--epochs 3] [--images N] [--out build/vit_convert] [--svg FILE]: what converting a trained model costs.

A softmax ViT of timm is trained on Fashion-MNIST to accuracy A. mhla.replace_attention puts MHLA in it, and one epoch of
fine-tuning follows; the softmax model gets the same extra epoch for comparison. Writes result.json, and the curve as SVG.
Needs timm and Debian's dataset-fashion-mnist; docs/migrating.md has the result. One core takes about 20 minutes."""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import sys
import time
from pathlib import Path

import numpy
import timm
import torch
import torch.nn.functional as F

import mhla

DATA = Path("/usr/share/datasets/fashion-mnist")


def read(part: str, count: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    images = numpy.frombuffer(gzip.decompress((DATA / f"{part}-images-idx3-ubyte.gz").read_bytes()), numpy.uint8, offset=16)
    labels = numpy.frombuffer(gzip.decompress((DATA / f"{part}-labels-idx1-ubyte.gz").read_bytes()), numpy.uint8, offset=8)
    x = torch.from_numpy(images.copy()).view(-1, 1, 28, 28).float().div_(255).sub_(0.286).div_(0.353)
    return x[:count], torch.from_numpy(labels.copy()).long()[:count]


def make() -> torch.nn.Module:
    return timm.models.vision_transformer.VisionTransformer(
        img_size=28, patch_size=4, in_chans=1, num_classes=10, embed_dim=64, depth=4, num_heads=4, class_token=False, global_pool="avg"
    )


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    right = sum((model(a).argmax(-1) == b).sum().item() for a, b in zip(x.split(500), y.split(500)))
    model.train()
    return 100 * right / len(y)


def train(model, data, test, epochs, lr, measure_every=0, batch=128):
    """Accuracy after every `measure_every` steps, as (step, accuracy), and at the end."""
    x, y = data
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    if any(name.endswith("mix") for name, _ in model.named_parameters()):
        mhla.constrain_after_step(optimizer, model)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    order = torch.Generator().manual_seed(0)
    curve, step = [], 0
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order)[: len(x) // batch * batch].split(batch):
            loss = F.cross_entropy(model(x[rows]), y[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if measure_every and step % measure_every == 0 and step < steps:
                curve.append((step, accuracy(model, *test)))
    return [*curve, (steps, accuracy(model, *test))]


def drawn(result: dict) -> str:
    """The accuracy during fine-tuning, and A."""
    curves = {"mhla, converted": (result["mhla"], "#2166ac"), "softmax, the same epoch": (result["softmax"], "#b2182b")}
    last = max(step for points, _ in curves.values() for step, _ in points)
    low = min(min(value for _, value in points) for points, _ in curves.values())
    low, high = min(low, result["A"]) - 2, 100.0 if result["A"] > 95 else result["A"] + 4
    at = lambda step, value: (60 + 520 * step / last, 250 - 220 * (value - low) / (high - low))
    parts = [f'<line x1="60" y1="{at(0, result["A"])[1]:.1f}" x2="580" y2="{at(0, result["A"])[1]:.1f}" stroke="#777" stroke-dasharray="5 4"/>',
             f'<text x="580" y="{at(0, result["A"])[1] - 6:.1f}" text-anchor="end" fill="#555">A = {result["A"]:.2f} % (softmax, trained)</text>']
    for i, (name, (points, color)) in enumerate(curves.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="300" y="{205 + 20 * i}" fill="{color}">{name}: {points[-1][1]:.2f} %</text>')
    marks = [round(low + (high - low) * i / 4, 1) for i in range(5)]
    parts += [f'<text x="52" y="{at(0, m)[1] + 4:.1f}" text-anchor="end" fill="#555">{m}</text>' for m in marks]
    parts += [f'<text x="{at(s, low)[0]:.0f}" y="270" text-anchor="middle" fill="#555">{s}</text>' for s in (0, last // 2, last)]
    parts.append('<text x="320" y="290" text-anchor="middle" fill="#555">steps of fine-tuning (one epoch)</text>')
    parts.append('<text x="60" y="20" fill="#333">test accuracy in %, Fashion-MNIST</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" font-family="sans-serif" font-size="13"><rect width="600" height="300" fill="#fff"/>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="of the softmax model")
    parser.add_argument("--images", type=int, help="training images; all unless told")
    parser.add_argument("--out", type=Path, default=Path("build/vit_convert"))
    parser.add_argument("--svg", type=Path, help="the curve")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    begin = time.time()
    data, test = read("train", arguments.images), read("t10k", None)
    softmax = make()
    A = train(softmax, data, test, arguments.epochs, 1e-3)[-1][1]
    print(f"softmax: A = {A:.2f} % after {arguments.epochs} epochs, {time.time() - begin:.0f} s", flush=True)
    model, report = mhla.replace_attention(copy.deepcopy(softmax), blocks=(3, 3))
    print(report)
    start = accuracy(model, *test)
    every = max(1, len(data[0]) // 128 // 8)
    curve = [(0, start), *train(model, data, test, 1, 5e-4, every)]
    print(f"mhla: {start:.2f} % as converted, {curve[-1][1]:.2f} % after one epoch, {time.time() - begin:.0f} s", flush=True)
    twin = [(0, A), *train(softmax, data, test, 1, 5e-4, every)]
    result = dict(A=A, epochs=arguments.epochs, images=len(data[0]), mhla=curve, softmax=twin, seconds=time.time() - begin, torch=torch.__version__)
    (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if arguments.svg:
        arguments.svg.write_text(drawn(result))
    print(f"softmax with the same epoch: {twin[-1][1]:.2f} %; mhla against A: {curve[-1][1] - A:+.2f} points")
    sys.exit(0 if curve[-1][1] >= A - 0.5 else 1)


if __name__ == "__main__":
    main()
