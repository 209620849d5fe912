#!/usr/bin/env python3
"""What converting a trained softmax model costs: a ViT of timm on Fashion-MNIST, with mhla.replace_attention.

    scripts/vit_convert.py [--device cuda] [--recipe "lr=1e-3 batch=64"]... [--out build/vit_convert] [--svg curves.svg]

A softmax ViT is trained to accuracy A. A copy of it gets MHLA in one line and is fine-tuned for one epoch; the softmax model
gets the same epoch for comparison. With several recipes, the one that does best on held-out training images (--valid) is
reported: test images decide nothing. Prints a table and one line of JSON with all curves, writes result.json, and with --svg
the curves. Exit code 1 where the converted model ends more than 0.5 points below A. docs/migrating.md has the result.

A recipe is a list of settings, separated by spaces:

    lr=5e-4         peak learning rate
    batch=128
    warmup=0.1      share of the steps; cosine decay after it
    distill=0       weight of the divergence from the softmax model's answers; 1 less it is that of the labels
    hidden=0        weight of the squared distance to the softmax model's tokens after each layer
    mix=linear      initial mixing matrices, as in mhla.init_mix
    mix_lr=1        learning rate of the mixing matrices, relative to lr
    ema=0           decay of the averaged weights that are evaluated; 0: the last ones
    smooth=0.1      label smoothing
    features=relu_eps

Needs torch, timm, numpy, the mhla package with its library (MHLA_LIBRARY) or --backend torch, and the four files of
Fashion-MNIST (Debian: dataset-fashion-mnist; --data elsewhere). Sizes are for one GPU, where steps are CUDA graphs; a small
run on a CPU: --dim 64 --depth 4 --heads 4 --patch 4 --epochs 3 --images 12000."""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
import timm
import torch
import torch.nn.functional as F

import curves
import mhla
from gpu_timing import Recorded

BEST = "lr=5e-4 batch=16 distill=0.9 hidden=1 ema=0.999"  # recipe
MEAN, SPREAD = 0.286, 0.353  # of the pixels
Point = tuple[int, float, float]  # step, accuracy on held-out and on test images in per cent


@dataclass
class Recipe:
    """How an epoch of fine-tuning goes."""

    lr: float = 5e-4
    batch: int = 128
    warmup: float = 0.1
    distill: float = 0.0
    hidden: float = 0.0
    mix: str = "linear"
    mix_lr: float = 1.0
    ema: float = 0.0
    smooth: float = 0.1
    features: str = "relu_eps"
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Recipe:
        recipe = cls(text=text or "defaults")
        for word in text.split():
            name, _, value = word.partition("=")
            if name == "text" or name not in cls.__dataclass_fields__:
                raise argparse.ArgumentTypeError(f"{word!r}: expected one of {', '.join(cls.__dataclass_fields__)[:-6]}")
            try:
                setattr(recipe, name, type(getattr(recipe, name))(value))
            except ValueError:
                raise argparse.ArgumentTypeError(f"{word!r}: expected a number") from None
        return recipe


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


def layers_of(model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The answers, and the tokens after each layer."""
    found: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: found.append(out)) for block in model.blocks]
    try:
        return model(x), found
    finally:
        for hook in hooks:
            hook.remove()


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, device = options, options.device
        x, y = read(options.data, "train", options.images, device)
        held = options.valid or len(x) // 12
        self.train_set, self.valid_set = (x[:-held], y[:-held]), (x[-held:], y[-held:])
        self.test_set = read(options.data, "t10k", options.test_images, device)
        self.cuda = device.startswith("cuda")

    def autocast(self, cache: bool = True) -> torch.autocast:
        return torch.autocast(self.options.device.split(":")[0], torch.bfloat16, enabled=self.cuda, cache_enabled=cache)

    @torch.no_grad()
    def accuracies(self, model: torch.nn.Module) -> tuple[float, float]:
        """On held-out and on test images."""
        model.eval()
        found = []
        for images, labels in (self.valid_set, self.test_set):
            right = torch.zeros((), dtype=torch.long, device=self.options.device)
            with self.autocast():
                for x, y in zip(images.split(1000), labels.split(1000)):
                    right += (model(x).argmax(-1) == y).sum()
            found.append(100 * right.item() / len(labels))
        model.train()
        return found[0], found[1]

    def loss(self, model: torch.nn.Module, teacher: torch.nn.Module | None, recipe: Recipe, rows: torch.Tensor) -> torch.Tensor:
        x, y = varied(self.train_set[0][rows]), self.train_set[1][rows]
        if teacher is None or not (recipe.distill or recipe.hidden):
            return F.cross_entropy(model(x).float(), y, label_smoothing=recipe.smooth)
        with torch.no_grad():
            wanted, theirs = layers_of(teacher, x)
        answers, ours = layers_of(model, x)
        total = (1 - recipe.distill) * F.cross_entropy(answers.float(), y, label_smoothing=recipe.smooth)
        divergence = F.kl_div(answers.float().log_softmax(-1), wanted.float().log_softmax(-1), log_target=True, reduction="batchmean")
        total = total + recipe.distill * divergence
        if recipe.hidden:
            far = [F.mse_loss(a.float(), b.float()) / b.float().var() for a, b in zip(ours, theirs)]
            total = total + recipe.hidden * torch.stack(far).mean()
        return total

    def train(
        self, model: torch.nn.Module, epochs: int, recipe: Recipe, points: int = 1, teacher: torch.nn.Module | None = None
    ) -> list[Point]:
        """The curve at so many points, the last at the end; the model has its last weights then."""
        batch, count = recipe.batch, len(self.train_set[1])
        per_epoch = count // batch
        mixes = [p for name, p in model.named_parameters() if name.endswith(".mix")]
        others = [p for name, p in model.named_parameters() if not name.endswith(".mix")]
        groups = [dict(params=others, lr=recipe.lr)]
        if mixes:
            groups.append(dict(params=mixes, lr=recipe.lr * recipe.mix_lr, weight_decay=0.0))
        graphed = self.cuda and self.options.graph
        optimizer = torch.optim.AdamW(groups, weight_decay=0.05, fused=self.cuda, capturable=graphed)
        if mixes:
            mhla.constrain_after_step(optimizer, model)
        peaks = [group["lr"] for group in optimizer.param_groups]
        if graphed:
            for group in optimizer.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=self.options.device)
        rows = torch.zeros(batch, dtype=torch.long, device=self.options.device)

        def learn() -> None:
            with self.autocast(cache=not graphed):
                loss = self.loss(model, teacher, recipe, rows)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        work = Recorded(learn) if graphed else learn
        steps = epochs * per_epoch
        warmup = max(1, round(steps * recipe.warmup))
        average = copy.deepcopy(model) if recipe.ema else model
        weights = [list(m.parameters()) for m in (average, model)]
        marks = {round(steps * (i + 1) / points) for i in range(points)}
        curve, step = [], 0
        model.train()
        for _ in range(epochs):
            order = torch.randperm(count, device=self.options.device)
            for chosen in order[: per_epoch * batch].split(batch):
                rate = min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * max(0, step - warmup) / max(1, steps - warmup)))
                for group, peak in zip(optimizer.param_groups, peaks):
                    if graphed:
                        group["lr"].fill_(peak * rate)
                    else:
                        group["lr"] = peak * rate
                rows.copy_(chosen)
                work()
                step += 1
                if recipe.ema:
                    with torch.no_grad():
                        torch._foreach_lerp_(*weights, 1 - min(recipe.ema, step / (step + 10)))
                if step in marks:
                    curve.append((step, *self.accuracies(average)))
        return curve


def make(options: argparse.Namespace) -> torch.nn.Module:
    return timm.models.vision_transformer.VisionTransformer(
        img_size=28, patch_size=options.patch, in_chans=1, num_classes=10, embed_dim=options.dim, depth=options.depth,
        num_heads=options.heads,
    ).to(options.device)  # fmt: skip


def softmax_model(trainer: Trainer, options: argparse.Namespace) -> torch.nn.Module:
    """Trained here, or read from --softmax."""
    model = make(options)
    if options.softmax and options.softmax.is_file():
        model.load_state_dict(torch.load(options.softmax, map_location=options.device))
        return model
    trainer.train(model, options.epochs, Recipe(lr=options.lr, batch=options.batch))
    if options.softmax:
        torch.save(model.state_dict(), options.softmax)
    return model


def drawn(result: dict) -> str:
    """The test accuracy during fine-tuning, and A."""
    shown = {"mhla, converted": result["mhla"], "softmax, the same epoch": result["softmax"]}
    shown = {name: [(step, test) for step, _, test in points] for name, points in shown.items()}
    values = [value for points in shown.values() for _, value in points]
    return curves.drawn(shown, "test accuracy in %, Fashion-MNIST", "steps of fine-tuning (one epoch)", min(values) - 2,
                        min(100.0, max(values) + 4), value="{:.2f} %", lines=[(result["A"], f"A = {result['A']:.2f} % (softmax, trained)")])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"), help="folder of the four files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=["kernels", "torch"], default="kernels")
    parser.add_argument("--recipe", type=Recipe.parse, action="append", help="of the epoch of fine-tuning; repeatable")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="a step on a GPU is not a CUDA graph")
    parser.add_argument("--softmax", type=Path, help="weights of the softmax model: read if the file is there, else written")
    parser.add_argument("--epochs", type=int, default=12, help="of the softmax model, before its attention is replaced")
    parser.add_argument("--images", type=int, help="training images, --valid included; all by default")
    parser.add_argument("--valid", type=int, help="the last so many of them are held out; a twelfth by default")
    parser.add_argument("--test-images", type=int, help="all by default")
    parser.add_argument("--batch", type=int, default=128, help="of the softmax model")
    parser.add_argument("--lr", type=float, default=1e-3, help="of the softmax model")
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
    recipes = options.recipe or [Recipe.parse(BEST)]
    mhla.set_backend(options.backend)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    trainer = Trainer(options)
    softmax = softmax_model(trainer, options)
    before = trainer.accuracies(softmax)
    A = before[1]
    note = lambda text: print(f"{text}, {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    note(f"softmax: A = {A:.2f} % after {options.epochs} epochs, {before[0]:.2f} % of the held-out images")

    tried: list[tuple[float, Recipe, list[Point], float]] = []
    for recipe in recipes:
        torch.manual_seed(options.seed + 1)
        model, report = mhla.replace_attention(copy.deepcopy(softmax), blocks=(options.blocks, options.blocks), mix=recipe.mix,
                                               feature_map=recipe.features)  # fmt: skip
        assert len(report.replaced) == options.depth, report
        start, between = trainer.accuracies(model), time.time()
        curve = [(0, *start), *trainer.train(model, 1, recipe, options.points, softmax)]
        tried.append((curve[-1][1], recipe, curve, time.time() - between))
        note(f"{recipe.text}: {curve[-1][1]:.2f} % of the held-out images ({curve[-1][1] - before[0]:+.2f})")
    _, best, curve, seconds = max(tried, key=lambda entry: entry[0])
    torch.manual_seed(options.seed + 1)
    teacher = copy.deepcopy(softmax)
    twin = [(0, *before), *trainer.train(softmax, 1, best, options.points, teacher)]

    rows = [("softmax, trained (A)", before), ("mhla, as converted", curve[0][1:]), ("mhla, one epoch later", curve[-1][1:]),
            ("softmax, one epoch later", twin[-1][1:])]  # fmt: skip
    print(f"{'':26}  held out      test  against A   (recipe: {best.text})")
    for name, (valid, test) in rows:
        print(f"{name:26} {valid:7.2f} % {test:7.2f} %  {test - A:+9.2f}")
    tokens = (28 // options.patch) ** 2
    device = torch.cuda.get_device_name() if trainer.cuda else options.device
    result = dict(
        A=A, mhla=curve, softmax=twin, recipe=best.text, held_out={recipe.text: valid for valid, recipe, _, _ in tried},
        epochs=options.epochs, images=len(trainer.train_set[0]), tokens=tokens, blocks=options.blocks**2, dim=options.dim,
        depth=options.depth, heads=options.heads, batch=options.batch, tune_seconds=round(seconds, 1),
        seconds=round(time.time() - begin, 1), seed=options.seed, device=device, torch=torch.__version__, timm=timm.__version__,
    )  # fmt: skip
    print(json.dumps(result))
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(drawn(result))
    if curve[-1][2] < A - 0.5:
        sys.exit(f"vit_convert: {curve[-1][2]:.2f} % after fine-tuning, expected at least A - 0.5 = {A - 0.5:.2f} %")


if __name__ == "__main__":
    main()
