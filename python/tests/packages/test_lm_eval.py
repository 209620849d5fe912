"""A run of `mhla train lm` in the evaluation harness (python -m mhla.hf.harness --model hf) against `mhla eval lm --task` on the same file."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import mhla

pytest.importorskip("lm_eval")
pytest.importorskip("mhla.hf")
PROGRAM = Path(os.environ.get("MHLA_PROGRAM", Path(__file__).parents[3] / "build/release/bin/mhla"))
TEXT = "It was a dark and stormy night; the rain fell in torrents. "
TASK = """task: mhla_local
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@pytest.mark.skipif(not PROGRAM.is_file(), reason="no build/release/bin/mhla, or MHLA_PROGRAM")
def test_the_harness_has_the_figures_of_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT * 60)
    draw, words = random.Random(0), [word.strip(".;") for word in TEXT.split()] + ["sunny", "light"]
    starts = [TEXT[: TEXT.index(word)].strip() for word in ("dark", "night", "rain", "torrents")]
    rows = [dict(context=starts[i % 4], choices=draw.sample(sorted(set(words)), 4), gold=draw.randrange(4)) for i in range(60)]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/local.yaml").write_text(TASK.format(file=tmp_path / "task.jsonl"))

    def program(*flags):
        command = [PROGRAM, *flags, "--threads", "1"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    fields = (word for field in ("dim=64", "layers=2", "heads=2", "mlp=96", "chunk=8") for word in ("--set", field))
    program("train", "lm", "--data", "text.txt", "--tokenizer", "bytes", "--model", "mhla_10m", *fields, "--context", "128", "--max-steps", "30",
            "--batch", "4", "--lr", "1e-2", "--out", "run", "--eval-tokens", "64")  # fmt: skip
    want = json.loads(program("eval", "lm", "--run", "run", "--task", "choices=task.jsonl", "--json").splitlines()[0])["figures"]
    command = [sys.executable, "-m", "mhla.hf.harness", "--model", "hf", "--tasks", "mhla_local", "--include_path", tmp_path / "tasks", "--device", "cpu",
               "--model_args", f"pretrained={tmp_path / 'run'},dtype=float32,backend=causal,add_bos_token=True", "--output_path", tmp_path / "results"]  # fmt: skip
    places = {"PYTHONPATH": str(Path(mhla.__file__).parents[1]), "MHLA_BACKEND": os.environ.get("MHLA_TEST_BACKEND", "torch")}
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **places})
    assert said.returncode == 0, said.stderr
    got = json.loads(next((tmp_path / "results").rglob("results_*.json")).read_text())["results"]["mhla_local"]
    assert 0 < want["acc"] < 1 and abs(got["acc,none"] - want["acc"]) < 1e-3 and abs(got["acc_norm,none"] - want["acc_norm"]) < 1e-3
