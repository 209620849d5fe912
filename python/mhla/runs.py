"""Runs that ``mhla train`` wrote: their task, options, log, checkpoints and weights.

run = mhla.Run("runs/first")
run.task                        # "classify", "lm", "diffusion" or "video"
run.log("eval")["loss"]         # a column of the log; pandas.DataFrame(run.log()) for all
run.checkpoints()[-1].step      # 2000
run.weights().file              # where model.safetensors is
run.model(), run.tokenizer()    # of transformers
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


class Run:
    """The folder of a run. Raises RuntimeError with the reason where it is none."""

    def __init__(self, folder: str | Path) -> None:
        _backend.kernels()
        self.folder = Path(folder)
        self.task: str = torch.ops.mhla.run_task(str(folder))

    def options(self) -> dict[str, Any]:
        """Every option of the training, as ``train.json`` has them."""
        return json.loads((self.folder / "train.json").read_text())

    def log(self, kind: str | None = "step") -> dict[str, list[Any]]:
        """The log as a table: its columns by name, with None where a row does not have one.

        Args:
            kind: rows of ``"step"`` (loss, learning rate, ...), ``"eval"``, ``"checkpoint"``, ...; None: all of them.
        """
        file = self.folder / "log.jsonl"
        if not file.is_file():
            raise RuntimeError(f"Run.log: {file} is missing, expected the log of a training")
        lines = file.read_text().splitlines()
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                if number == len(lines):  # a training that was killed leaves half a line
                    break
                raise RuntimeError(f"Run.log: {file}: line {number} is not JSON") from None
            if kind is None or row.get("kind") == kind:
                rows.append(row)
        names = dict.fromkeys(name for row in rows for name in row if kind is None or name != "kind")
        return {name: [row.get(name) for row in rows] for name in names}

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

    def model(self, which: str = "model") -> Any:
        """The network with its weights, in evaluation mode: a model of transformers (:mod:`mhla.hf`).

        Args:
            which: as in :meth:`weights`.
        """
        from safetensors.torch import load_file

        from . import hf

        kinds: dict[str, Any] = {"lm": (hf.MhlaConfig, hf.MhlaForCausalLM),
                                 "classify": (hf.MhlaImageConfig, hf.MhlaForImageClassification)}  # fmt: skip
        if self.task not in kinds:
            raise RuntimeError(f"Run.model: {self.folder} is a run of {self.task}, expected lm or classify")
        config_class, model_class = kinds[self.task]
        found = self.weights(which)
        beside = found.file.parent / "config.json"
        fields = json.loads((beside if beside.is_file() else self.folder / "config.json").read_text())
        model = model_class(config_class(**{key: value for key, value in fields.items() if key != "model_type"}))
        weights = load_file(str(found.file))
        model.load_state_dict({key[len(found.prefix) :]: value for key, value in weights.items() if key.startswith(found.prefix)})
        return model.eval()

    def tokenizer(self) -> Any:
        """The tokenizer of a language model: a ``PreTrainedTokenizerFast`` of transformers."""
        from .hf import MhlaTokenizer

        return MhlaTokenizer.from_pretrained(self.folder)

    def __repr__(self) -> str:
        return f"mhla.Run({str(self.folder)!r}, task={self.task!r})"


def open_run(folder: str | Path) -> Run:
    """``mhla.Run(folder)``."""
    return Run(folder)
