"""Runs that ``mhla train`` wrote: their task, options, checkpoints and weights.

run = mhla.open_run("runs/first")
run.task                        # "classify", "lm" or "diffusion"
run.checkpoints()[-1].step      # 2000
run.weights().file              # where model.safetensors is
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import _backend


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run."""

    path: Path
    step: int


@dataclass(frozen=True)
class RunWeights:
    """A safetensors file of a run. ``prefix`` opens the names of its tensors ("ema." inside a checkpoint)."""

    file: Path
    prefix: str
    warnings: list[str]


@dataclass(frozen=True)
class Run:
    """The folder of a run; :func:`open_run` makes it."""

    folder: Path
    task: str

    def options(self) -> dict[str, Any]:
        """Every option of the training, as ``train.json`` has them."""
        return json.loads((self.folder / "train.json").read_text())

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        paths, steps = torch.ops.mhla.run_checkpoints(str(self.folder))
        return [Checkpoint(Path(path), step) for path, step in zip(paths, steps)]

    def weights(self, which: str = "model") -> RunWeights:
        """The final weights, or those of the newest sound checkpoint, which is a warning.

        Args:
            which: ``"model"``, ``"ema"`` (the running average) or ``"best"`` (of the best evaluation).
        """
        file, prefix, warnings = torch.ops.mhla.run_weights(str(self.folder), which)
        return RunWeights(Path(file), prefix, list(warnings))


def open_run(folder: str | Path) -> Run:
    """Opens the folder of a run. Raises RuntimeError with the reason where it is none."""
    _backend.kernels()
    return Run(Path(folder), torch.ops.mhla.run_task(str(folder)))
