#!/usr/bin/env python3
"""A DiT-S/2 of diffusers, as it is and converted by mhla.replace_attention, on a GPU: forward and training step, compiled.

    scripts/gpu_diffusers.py --collect peers          # where diffusers is installed: its Python files, and torch-fidelity's
    PYTHONPATH=python:peers MHLA_LIBRARY=.../libmhla_torch.so scripts/gpu_diffusers.py [--json]

The second machine needs torch with CUDA, and libmhla_torch.so for that torch (BUILD=... scripts/gpu_torch.sh build). Of
diffusers only the model runs: packages that it imports for loading and saving (huggingface_hub, transformers, PIL, ...) are
replaced by empty ones. A forward pass is in bf16 without gradients, as a CUDA graph (mode="reduce-overhead"). A training
step has bf16 autocast, clipping and fused AdamW; for mhla also the constraint on mixing matrices. Median wall times.
Exit code 1 where mhla is slower than softmax by more than 5 % at 256 tokens, or slower at all from 1,024 tokens on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

from gpu_timing import median_ms

SIZES = {256: 64, 512: 32, 1024: 8}  # pixels: batch
BLOCKS = (4, 4)


class Anything(type):
    """A class whose every attribute is another."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return "" if name.isupper() else Anything(name, (Exception,), {})


class Empty(types.ModuleType):
    """A package that is not there: whatever is asked of it is a class that can be called, inherited and raised."""

    __path__: list = []
    __version__ = "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = "" if name.isupper() else Anything(name, (Exception,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class EmptyPackages:
    """An importer that comes first, for packages of diffusers that only loading and saving need: what is installed of them may
    be of any version, or want others that are not."""

    NAMES = {"huggingface_hub", "safetensors", "PIL", "requests", "regex", "filelock", "yaml", "tqdm", "httpx", "accelerate",
             "importlib_metadata", "transformers", "tokenizers", "peft"}  # fmt: skip

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, cls) if name.split(".")[0] in cls.NAMES else None

    @staticmethod
    def create_module(spec):
        return Empty(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def import_model():
    """DiTTransformer2DModel, without the check of versions that diffusers makes first."""
    import torch.hub  # noqa: F401  (asks for tqdm, and can do without)

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in EmptyPackages.NAMES}
    sys.meta_path.insert(0, EmptyPackages)
    checks = types.ModuleType("diffusers.dependency_versions_check")
    checks.dep_version_check = lambda *_: None
    sys.modules[checks.__name__] = checks
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    sys.meta_path.remove(EmptyPackages)
    for name in [name for name, module in sys.modules.items() if isinstance(module, Empty)]:
        del sys.modules[name]
    sys.modules.update(before)
    return DiTTransformer2DModel


def collect(folder: Path) -> None:
    source = Path(importlib.util.find_spec("diffusers").origin).parent
    shutil.rmtree(folder, ignore_errors=True)
    # Pipelines are half of the files; those of gpu_sampling.py and what they import.
    wanted = {"__init__.py", "dit", "sana", "pixart_alpha"}
    keep = lambda path, names: [n for n in names if n == "__pycache__" or not (n.endswith(".py") or "." not in n) or
                                (Path(path) == source / "pipelines" and n not in wanted and not n.endswith("utils.py")) or
                                (Path(path) == source / "modular_pipelines" and "." not in n)]  # fmt: skip
    shutil.copytree(source, folder / "diffusers", ignore=keep)
    for package in ("packaging", "torch_fidelity"):  # the second is for metrics_check.py
        if found := importlib.util.find_spec(package):
            shutil.copytree(Path(found.origin).parent, folder / package, ignore=keep)
    size = sum(f.stat().st_size for f in folder.rglob("*.py")) / 1e6
    print(f"{folder}: {size:.1f} MB")


def measure(make, attention: str, pass_name: str, pixels: int, batch: int, options) -> float:
    import torch
    import torch.nn.functional as F

    import mhla

    torch.manual_seed(0)
    side, device = pixels // 8, options.device
    model = make(side).to(device)
    if attention == "mhla":
        model, report = mhla.replace_attention(model, blocks=BLOCKS)
        assert len(report.replaced) == options.layers and not report.left, report
    x = torch.randn(batch, 4, side, side, device=device)
    t = torch.randint(1000, (batch,), device=device)
    labels = torch.randint(1000, (batch,), device=device)
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    call = lambda x: run(x, timestep=t, class_labels=labels, return_dict=False)[0]
    how = {} if options.compile else {"disable": True}
    if pass_name == "fwd":
        model.eval().bfloat16()
        for name, parameter in model.named_parameters():  # mixing matrices stay f32
            if name.endswith("mix"):
                parameter.data = parameter.data.float()
        x = x.bfloat16()
        run = torch.compile(model, mode="reduce-overhead" if options.compile else None, **how)

        def step():
            with torch.no_grad():
                call(x)
            synchronize()
    else:
        model.train()
        run = torch.compile(model, **how)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=device.startswith("cuda"))
        noise = torch.randn_like(x)

        def step():
            with torch.autocast(device.split(":")[0], torch.bfloat16):
                loss = F.mse_loss(call(x)[:, :4].float(), noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if attention == "mhla":
                mhla.constrain_(model)
            optimizer.zero_grad()
            synchronize()

    return median_ms(step, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="copy the Python files of diffusers, and end")
    parser.add_argument("--pixels", default="256,512,1024")
    parser.add_argument("--batch", help="one for every size; 64, 32 and 8 unless told")
    parser.add_argument("--pass", dest="passes", default="fwd,train")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="a measurement")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json", action="store_true", help="one JSON object per row on stdout")
    options = parser.parse_args()
    if options.collect:
        collect(options.collect)
        return
    model_class = import_model()
    import torch

    make = lambda side: model_class(num_attention_heads=6, attention_head_dim=64, in_channels=4, out_channels=8,
                                    num_layers=options.layers, sample_size=side, patch_size=2, num_embeds_ada_norm=1000)  # fmt: skip
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    print(f"{name}, torch {torch.__version__}, DiT-S/2 of diffusers, {BLOCKS[0]}x{BLOCKS[1]} blocks", file=sys.stderr, flush=True)
    sizes = [int(word) for word in options.pixels.split(",")]
    batches = [int(word) for word in options.batch.split(",")] if options.batch else [SIZES.get(size, 4) for size in sizes]
    slow = []
    for pixels, batch in zip(sizes, batches):
        tokens = (pixels // 16) ** 2
        for pass_name in options.passes.split(","):
            ms = {}
            for attention in ("softmax", "mhla"):
                torch.compiler.reset()
                ms[attention] = measure(make, attention, pass_name, pixels, batch, options)
            ratio = ms["softmax"] / ms["mhla"]
            if ratio < (0.95 if tokens < 1024 else 1.0):
                slow.append(f"{pixels} px {pass_name}: {ratio:.2f}")
            if options.json:
                row = dict(pixels=pixels, tokens=tokens, batch=batch, softmax_ms=ms["softmax"], mhla_ms=ms["mhla"], ratio=ratio)
                print(json.dumps({"pass": pass_name, **row}), flush=True)
            else:
                print(f"{pixels:5} px {tokens:5} tokens batch {batch:3} {pass_name:6} softmax {ms['softmax']:8.2f} ms  "
                      f"mhla {ms['mhla']:8.2f} ms  {ratio:5.2f} times as fast", flush=True)  # fmt: skip
    if slow:
        sys.exit("gpu_diffusers: slower than asked: " + "; ".join(slow))


if __name__ == "__main__":
    main()
