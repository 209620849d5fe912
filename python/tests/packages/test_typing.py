"""mypy --strict of a user's program: what is right passes, what is wrong is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
RIGHT = '''
from __future__ import annotations

import torch
from torch import Tensor, nn

import mhla


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = mhla.nn.MHLA(dim, 4, grid=(8, 8), blocks=(4, 4), lepe=3, gate="silu")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attn(x)
        return out


def main() -> None:
    q = torch.randn(1, 64, 4, 8)
    mix: Tensor = mhla.init_mix([4, 4])
    out: Tensor = mhla.attention(q, q, q, mix, grid=(8, 8), blocks=(4, 4), feature_map="relu", normalizer="paper", backend="torch")
    causal: Tensor = mhla.attention(q, q, q, mhla.init_causal_mix(1), causal=True, chunk=64, beyond_mix="extend")
    model = Block(32)
    optimizer = torch.optim.AdamW(model.parameters())
    mhla.constrain_after_step(optimizer, model)
    count: int = mhla.constrain_(model)
    state: mhla.StreamingState = mhla.nn.MHLA.lm(32, 4).streaming_state(2)
    parts: list[mhla.StreamingState] = state.split()
    both: mhla.StreamingState = mhla.StreamingState.join(parts)
    converted, report = mhla.replace_attention(model, blocks=(2, 2), layers="every-3rd-kept")
    names: list[str] = report.replaced
    run = mhla.Run("run")
    losses = run.log()["loss"]
    rows = mhla.bench(grid=(8, 8), blocks=(2, 2))
    print(out, causal, count, both, converted, names, losses, rows[0]["ms"], mhla.analyze(model, q).table())
'''
WRONG = """
import mhla, torch

q = torch.randn(1, 64, 4, 8)
mhla.attention(q, q, q, mhla.init_mix([4, 4]), grid=(8, 8), blocks=(4, 4), feature_map="sine")
mhla.attention(q, q, q, mhla.init_mix([4, 4]), grid=16, blocks=(4, 4))
mhla.nn.MHLA(32, 4, block_size=8, gate="tanh")
mhla.init_mix(16)
text: str = mhla.attention(q, q, q, q)
"""


def test_a_program_of_a_user(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", "right.py", "wrong.py"]
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = [line for line in said.stdout.splitlines() if ": error: " in line]
    assert not [line for line in lines if line.startswith("right.py")] and not said.stderr, said.stdout + said.stderr
    assert {int(line.split(":")[1]) for line in lines} == {5, 6, 7, 8, 9}, said.stdout
