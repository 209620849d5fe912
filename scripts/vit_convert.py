#!/usr/bin/env python3
"""What converting a trained softmax model costs: a ViT of timm on Fashion-MNIST, with mhla.replace_attention.

    scripts/vit_convert.py [--device cuda] [--out build/vit_convert] [--svg docs/images/vit_convert.svg]

A softmax ViT is trained to accuracy A. A copy of it gets MHLA in one line and is fine-tuned for one epoch; the softmax model
gets the same extra epoch for comparison. Prints a table and one line of JSON with both curves, writes result.json, and with
--svg the curves. Exit code 1 where the converted model ends more than 0.5 points below A. docs/migrating.md has the result.

Needs torch, timm, numpy, the mhla package with its library (MHLA_LIBRARY) or --backend torch, and the four files of
Fashion-MNIST (Debian: dataset-fashion-mnist; --data elsewhere). Sizes are for one H200, where it takes about 90 s; a small
run on a CPU: --dim 64 --depth 4 --heads 4 --patch 4 --epochs 3 --images 12000."""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import sys
import time
from pathlib import Path

import numpy
import timm
import torch
import torch.nn.functional as F

import mhla

MEAN, SPREAD = 0.286, 0.353  # of the pixels


def read(folder: Path, part: str, count: int | None, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[n, 1, 28, 28]``, scaled, and labels ``[n]``."""
    images, labels = (numpy.frombuffer(gzip.decompress((folder / f"{part}-{name}-ubyte.gz").read_bytes()), numpy.uint8, offset=skip)
                      for name, skip in (("images-idx3", 16), ("labels-idx1", 8)))  # fmt: skip
    x = torch.from_numpy(images.copy()).view(-1, 1, 28, 28)[:count].to(device).float().div_(255).sub_(MEAN).div_(SPREAD)
    return x, torch.from_numpy(labels.copy()).long()[:count].to(device)


def varied(x: torch.Tensor) -> torch.Tensor:
    """Each image flipped or not, and moved by up to two pixels."""
    x = torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(-1), x)
    padded = F.pad(x, (2, 2, 2, 2), value=-MEAN / SPREAD)
    rows, columns = (torch.randint(5, (len(x), 1), device=x.device) + torch.arange(28, device=x.device) for _ in range(2))
    return padded[torch.arange(len(x), device=x.device)[:, None, None], 0, rows[:, :, None], columns[:, None]][:, None]


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, device = options, options.device
        self.train_set = read(options.data, "train", options.images, device)
        self.test_set = read(options.data, "t10k", options.test_images, device)
        self.cuda = device.startswith("cuda")

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.options.device.split(":")[0], torch.bfloat16, enabled=self.cuda)

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module) -> float:
        """In per cent."""
        model.eval()
        right = torch.zeros((), dtype=torch.long, device=self.options.device)
        with self.autocast():
            for x, y in zip(*(part.split(1000) for part in self.test_set)):
                right += (model(x).argmax(-1) == y).sum()
        model.train()
        return 100 * right.item() / len(self.test_set[1])

    def train(self, model: torch.nn.Module, epochs: int, lr: float, points: int = 1) -> list[tuple[int, float]]:
        """(step, accuracy) at so many points, the last at the end."""
        x, y = self.train_set
        batch, per_epoch = self.options.batch, len(x) // self.options.batch
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05, fused=self.cuda)
        if any(name.endswith(".mix") for name, _ in model.named_parameters()):
            mhla.constrain_after_step(optimizer, model)
        steps = epochs * per_epoch
        warmup = max(1, steps // 10)
        rate = lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * max(0, step - warmup) / max(1, steps - warmup)))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        marks = {round(steps * (i + 1) / points) for i in range(points)}
        curve, step = [], 0
        model.train()
        for _ in range(epochs):
            order = torch.randperm(len(x), device=x.device)
            for rows in order[: per_epoch * batch].split(batch):
                with self.autocast():
                    loss = F.cross_entropy(model(varied(x[rows])), y[rows], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                step += 1
                if step in marks:
                    curve.append((step, self.accuracy(model)))
        return curve


def make(options: argparse.Namespace) -> torch.nn.Module:
    return timm.models.vision_transformer.VisionTransformer(
        img_size=28, patch_size=options.patch, in_chans=1, num_classes=10, embed_dim=options.dim, depth=options.depth,
        num_heads=options.heads,
    ).to(options.device)  # fmt: skip


def drawn(result: dict) -> str:
    """The accuracy during fine-tuning, and A."""
    curves = {"mhla, converted": (result["mhla"], "#2166ac"), "softmax, the same epoch": (result["softmax"], "#b2182b")}
    last, A = max(step for points, _ in curves.values() for step, _ in points), result["A"]
    low = min(value for points, _ in curves.values() for _, value in points) - 2
    high = min(100.0, max(value for points, _ in curves.values() for _, value in points) + 4)
    at = lambda step, value: (60 + 520 * step / last, 250 - 220 * (value - low) / (high - low))
    parts = [f'<line x1="60" y1="{at(0, A)[1]:.1f}" x2="580" y2="{at(0, A)[1]:.1f}" stroke="#777" stroke-dasharray="5 4"/>',
             f'<text x="580" y="{at(0, A)[1] - 6:.1f}" text-anchor="end" fill="#555">A = {A:.2f} % (softmax, trained)</text>']  # fmt: skip
    for i, (name, (points, color)) in enumerate(curves.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="300" y="{205 + 20 * i}" fill="{color}">{name}: {points[-1][1]:.2f} %</text>')
    marks = [round(low + (high - low) * i / 4, 1) for i in range(5)]
    parts += [f'<text x="52" y="{at(0, m)[1] + 4:.1f}" text-anchor="end" fill="#555">{m}</text>' for m in marks]
    parts += [f'<text x="{at(s, low)[0]:.0f}" y="270" text-anchor="middle" fill="#555">{s}</text>' for s in (0, last // 2, last)]
    parts.append('<text x="320" y="290" text-anchor="middle" fill="#555">steps of fine-tuning (one epoch)</text>')
    parts.append('<text x="60" y="20" fill="#333">test accuracy in %, Fashion-MNIST</text>')
    return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" font-family="sans-serif" font-size="13">'
            f'<rect width="600" height="300" fill="#fff"/>{"".join(parts)}</svg>\n')  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="folder of the four files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=["kernels", "torch"], default="kernels")
    parser.add_argument("--epochs", type=int, default=12, help="of the softmax model, before its attention is replaced")
    parser.add_argument("--images", type=int, help="training images; all unless told")
    parser.add_argument("--test-images", type=int, help="all unless told")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3, help="of the softmax model")
    parser.add_argument("--tune-lr", type=float, default=5e-4, help="of the epoch after it")
    parser.add_argument("--patch", type=int, default=2)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=7, help="along each axis")
    parser.add_argument("--points", type=int, default=8, help="of the curves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/vit_convert"), help="folder of result.json")
    parser.add_argument("--svg", type=Path, help="the curves")
    options = parser.parse_args()
    mhla.set_backend(options.backend)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    trainer, softmax = Trainer(options), make(options)
    A = trainer.train(softmax, options.epochs, options.lr)[-1][1]
    print(f"softmax: A = {A:.2f} % after {options.epochs} epochs, {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    model, report = mhla.replace_attention(copy.deepcopy(softmax), blocks=(options.blocks, options.blocks))
    assert len(report.replaced) == options.depth, report
    start, between = trainer.accuracy(model), time.time()
    curve = [(0, start), *trainer.train(model, 1, options.tune_lr, options.points)]
    seconds = time.time() - between
    twin = [(0, A), *trainer.train(softmax, 1, options.tune_lr, options.points)]

    rows = [("softmax, trained (A)", A), ("mhla, as converted", start), ("mhla, one epoch later", curve[-1][1]),
            ("softmax, one epoch later", twin[-1][1])]  # fmt: skip
    print(f"{'':26}  accuracy  against A")
    for name, value in rows:
        print(f"{name:26}  {value:7.2f} %  {value - A:+9.2f}")
    tokens = (28 // options.patch) ** 2
    device = torch.cuda.get_device_name() if trainer.cuda else options.device
    result = dict(
        A=A, mhla=curve, softmax=twin, epochs=options.epochs, images=len(trainer.train_set[0]), tokens=tokens, blocks=options.blocks**2,
        dim=options.dim, depth=options.depth, heads=options.heads, batch=options.batch, tune_seconds=round(seconds, 1),
        seconds=round(time.time() - begin, 1), seed=options.seed, device=device, torch=torch.__version__, timm=timm.__version__,
    )  # fmt: skip
    print(json.dumps(result))
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(drawn(result))
    if curve[-1][1] < A - 0.5:
        sys.exit(f"vit_convert: {curve[-1][1]:.2f} % after fine-tuning, expected at least A - 0.5 = {A - 0.5:.2f} %")


if __name__ == "__main__":
    main()
