#!/usr/bin/env python3
"""A DiT-S/2 of diffusers, as it is and converted by mhla.replace_attention, on a GPU: forward and training step, compiled.

    scripts/gpu_diffusers.py --collect peers     # where diffusers is installed: its Python files, timm's and torch-fidelity's
    PYTHONPATH=python:peers MHLA_LIBRARY=.../libmhla_torch.so scripts/gpu_diffusers.py [--pixels 1024,512,256] [--json]

The second machine needs torch with CUDA, and libmhla_torch.so for that torch (BUILD=... scripts/gpu_torch.sh build). Of
diffusers only the model runs: packages that it imports for loading and saving (huggingface_hub, transformers, PIL, ...) are
replaced by empty ones. A forward pass is in bf16 without gradients. A training step has bf16 autocast, clipping and fused
AdamW; for mhla also the constraint on mixing matrices. Both models run in the same mode (--mode), median wall times:

    reduce-overhead   torch.compile(mode="reduce-overhead"): the forward and the backward pass are CUDA graphs
    graph             torch.compile, and the whole step, optimiser included, recorded as one CUDA graph
    default           torch.compile: the host starts every kernel
    eager             not compiled

--regions compiles one transformer block and uses it for all (as compile_repeated_blocks of diffusers does), which is much
faster. What was compiled stays in --cache. A row that fails is reported, and the others still run.
Exit code 1 where mhla is slower than softmax by more than 5 % at 256 tokens, or slower at all from 1,024 tokens on.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import sys
import time
import types
from pathlib import Path

from gpu_timing import Recorded, median_ms

SIZES = {1024: 8, 512: 32, 256: 64}  # pixels: batch
MODES = ["reduce-overhead", "graph", "default", "eager"]
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


def import_model(module="transformers.dit_transformer_2d", name="DiTTransformer2DModel"):
    """A model of diffusers, without the check of versions that diffusers makes first."""
    import torch.hub  # noqa: F401  (asks for tqdm, and can do without)

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in EmptyPackages.NAMES}
    sys.meta_path.insert(0, EmptyPackages)
    checks = types.ModuleType("diffusers.dependency_versions_check")
    checks.dep_version_check = lambda *_: None
    sys.modules[checks.__name__] = checks
    model = getattr(importlib.import_module(f"diffusers.models.{module}"), name)
    sys.meta_path.remove(EmptyPackages)
    for name in [name for name, module in sys.modules.items() if isinstance(module, Empty)]:
        del sys.modules[name]
    sys.modules.update(before)
    return model


def collect(folder: Path) -> None:
    source = Path(importlib.util.find_spec("diffusers").origin).parent
    shutil.rmtree(folder, ignore_errors=True)
    # Pipelines are half of the files; those of gpu_sampling.py and what they import.
    wanted = {"__init__.py", "dit", "sana", "pixart_alpha"}
    keep = lambda path, names: [n for n in names if n == "__pycache__" or not (n.endswith(".py") or "." not in n) or
                                (Path(path) == source / "pipelines" and n not in wanted and not n.endswith("utils.py")) or
                                (Path(path) == source / "modular_pipelines" and "." not in n)]  # fmt: skip
    shutil.copytree(source, folder / "diffusers", ignore=keep)
    for package in ("packaging", "timm", "torch_fidelity"):  # the last two are for vit_convert.py and metrics_check.py
        if found := importlib.util.find_spec(package):
            shutil.copytree(Path(found.origin).parent, folder / package, ignore=keep)
    size = sum(f.stat().st_size for f in folder.rglob("*.py")) / 1e6
    print(f"{folder}: {size:.1f} MB")


def compiled(model, options, graphed: bool):
    """``graphed``: the caller records the whole step."""
    import torch

    if options.mode == "eager":
        return model
    how = dict(fullgraph=True, dynamic=False)
    if options.mode == "reduce-overhead" and not graphed:
        how["mode"] = "reduce-overhead"
    if not options.regions:
        return torch.compile(model, **how)
    for block in model.transformer_blocks:
        block.compile(**how)
    return model


def measure(make, attention: str, pass_name: str, pixels: int, batch: int, options) -> float:
    """Milliseconds of a step."""
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
    cuda = device.startswith("cuda")
    graphed = options.mode == "graph" and cuda
    call = lambda x: run(x, timestep=t, class_labels=labels, return_dict=False)[0]
    if pass_name == "fwd":
        model.eval().bfloat16()
        for name, parameter in model.named_parameters():  # mixing matrices stay f32
            if name.endswith("mix"):
                parameter.data = parameter.data.float()
        x = x.bfloat16()
        run = compiled(model, options, graphed)

        def step():
            with torch.no_grad():
                call(x)
    else:
        model.train()
        run = compiled(model, options, graphed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=cuda, capturable=graphed)
        noise = torch.randn_like(x)

        def step():
            with torch.autocast(device.split(":")[0], torch.bfloat16, cache_enabled=not graphed):
                loss = F.mse_loss(call(x)[:, :4].float(), noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if attention == "mhla":
                mhla.constrain_(model)
            optimizer.zero_grad()

    work = Recorded(step) if graphed else step

    def timed():
        work()
        if cuda:
            torch.cuda.synchronize()

    ms = median_ms(timed, options.seconds)
    if options.profile:
        with torch.profiler.profile() as profile:
            for _ in range(4):
                timed()
        where = "self_cuda_time_total" if cuda else "self_cpu_time_total"
        print(f"{attention}, {pass_name}, {pixels} px: {ms:.2f} ms; four steps:", file=sys.stderr)
        print(profile.key_averages().table(sort_by=where, row_limit=16, max_name_column_width=64), file=sys.stderr, flush=True)
    return ms


def row_of(make, pass_name: str, pixels: int, batch: int, options) -> dict:
    """Both models, one after the other."""
    import torch

    row = dict(pixels=pixels, tokens=(pixels // 16) ** 2, batch=batch, mode=options.mode, regions=options.regions)
    for attention in ("softmax", "mhla"):
        torch.compiler.reset()
        begin = time.time()
        row[f"{attention}_ms"] = measure(make, attention, pass_name, pixels, batch, options)
        row[f"{attention}_s"] = round(time.time() - begin, 1)  # compiling included
    return {"pass": pass_name, **row, "ratio": row["softmax_ms"] / row["mhla_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="copy the Python files of diffusers, and end")
    parser.add_argument("--pixels", default="1024,512,256", help="rows in this order")
    parser.add_argument("--batch", help="one for every size; 8, 32 and 64 by default")
    parser.add_argument("--pass", dest="passes", default="train,fwd")
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    parser.add_argument("--regions", action="store_true", help="compile one block for all")
    parser.add_argument("--cache", type=Path, default=Path("build/inductor"), help="folder of compiled code")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="a measurement")
    parser.add_argument("--profile", action="store_true", help="the operations that take longest, on stderr")
    parser.add_argument("--limit", type=float, default=0, help="start no further row after so many seconds; 0: no limit")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true", help="one JSON object per row on stdout")
    options = parser.parse_args()
    if options.collect:
        collect(options.collect)
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.cache.resolve()))
    begin = time.time()
    model_class = import_model()
    import torch

    make = lambda side: model_class(num_attention_heads=6, attention_head_dim=64, in_channels=4, out_channels=8,
                                    num_layers=options.layers, sample_size=side, patch_size=2, num_embeds_ada_norm=1000)  # fmt: skip
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    print(f"{name}, torch {torch.__version__}, DiT-S/2 of diffusers, {BLOCKS[0]}x{BLOCKS[1]} blocks", file=sys.stderr, flush=True)
    sizes = [int(word) for word in options.pixels.split(",")]
    batches = [int(word) for word in options.batch.split(",")] if options.batch else [SIZES.get(size, 4) for size in sizes]
    bad = []
    for pixels, batch, pass_name in [(*size, p) for size in zip(sizes, batches) for p in options.passes.split(",")]:
        what = f"{pixels} px {pass_name}"
        if options.limit and time.time() - begin > options.limit:
            bad.append(f"{what}: not started in {options.limit:g} s")
            continue
        try:
            row = row_of(make, pass_name, pixels, batch, options)
        except Exception as error:
            bad.append(f"{what}: {type(error).__name__}: {str(error)[:500]}")
            continue
        if row["ratio"] < (0.95 if row["tokens"] < 1024 else 1.0):
            bad.append(f"{what}: {row['ratio']:.2f}, slower than asked")
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{pixels:5} px {row['tokens']:5} tokens batch {batch:3} {pass_name:6} softmax {row['softmax_ms']:8.2f} ms  "
                  f"mhla {row['mhla_ms']:8.2f} ms  {row['ratio']:5.2f} times as fast  ({row['softmax_s']} + {row['mhla_s']} s)",
                  flush=True)  # fmt: skip
    if bad:
        sys.exit("gpu_diffusers: " + "\n  ".join(bad))


if __name__ == "__main__":
    main()
