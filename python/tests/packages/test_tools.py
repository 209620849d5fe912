"""mhla.Run, mhla.analyze and mhla.bench; analyze against `mhla analyze` on the same images."""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from test_families import timm_vit

import mhla
from mhla import _backend
from mhla.analysis import statistics

hf = pytest.importorskip("mhla.hf")
PROGRAM = Path(os.environ.get("MHLA_PROGRAM", Path(__file__).parents[3] / "build/release/bin/mhla"))
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="no build/release/bin/mhla, or MHLA_PROGRAM")
needs_library = pytest.mark.skipif(not _backend.available(), reason="no compiled library for this torch (MHLA_LIBRARY)")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    subprocess.run([PROGRAM, "train", "classify", "--out", folder, "--model", "vit_demo", "--train-images", "64", "--test-images", "20",
                    "--batch", "16", "--max-steps", "6", "--log-every", "2", "--ema", "0.5", "--threads", "1"], check=True, capture_output=True)  # fmt: skip
    return folder


@needs_program
def test_analysis_has_the_figures_of_the_program(run, tmp_path):
    images = torch.randint(256, (10, 28, 28), dtype=torch.uint8)
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 10, 28, 28) + images.numpy().tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 10) + bytes(range(10)))
    said = subprocess.run([PROGRAM, "analyze", "--run", run, "--data", f"mnist:{tmp_path}", "--samples", "10", "--json", "--out", tmp_path / "page"],
                          check=True, capture_output=True, text=True).stdout  # fmt: skip
    heads = [row for row in map(json.loads, said.splitlines()) if row["kind"] == "head"]
    scaled = json.loads((run / "preprocess.json").read_text())
    pixels = (images[:, None] / 255 - scaled["mean"][0]) / scaled["std"][0]
    analysis = mhla.analyze(hf.MhlaForImageClassification.from_pretrained(run), pixels)
    assert [row["layer"] for row in analysis.rows] == [f"blocks.{i}.attn" for i in range(3)] == list(analysis.mixes)
    for row in analysis.rows:
        mean = lambda name: sum(head[name]["mean"] for head in heads if head["layer"] == row["layer"]) / 3
        assert row["attention"] == "mhla" and row["tokens"] == 196 and row["heads"] == 3
        assert abs(row["entropy_of_log_n"] - mean("entropy")) < 1e-5
        assert abs(row["effective_rank"] - mean("effective_rank")) < 1e-3 * row["effective_rank"]
        assert abs(row["stable_rank"] - mean("stable_rank")) < 1e-4 * row["stable_rank"]
        assert abs(row["rank_1pc"] - mean("rank_1pc")) < 0.2 and abs(row["rank"] - mean("rank")) < 1.0
    page = analysis.save(tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3 and "blocks.2.attn" in page
    assert len(analysis.table()["rank"]) == 3 and "effective_rank" in str(analysis)


def test_analysis_of_softmax_and_converted_layers():
    model, x = timm_vit(), torch.randn(2, 3, 32, 32)
    softmax = mhla.analyze(model, x)
    assert [row["attention"] for row in softmax.rows] == ["softmax"] * 3 and softmax.mixes == {} and model.training
    mhla.replace_attention(model, blocks=(4, 4), layers="every-3rd-kept")
    both = mhla.analyze(model, x, largest=16)
    assert [row["attention"] for row in both.rows] == ["mhla", "mhla", "softmax"] and both.rows[0]["tokens"] == 65
    assert both.rows[0]["rank"] is None and both.rows[0]["entropy"] > 0  # too large for singular values
    with pytest.raises(RuntimeError, match="called no attention"):
        mhla.analyze(torch.nn.Linear(2, 2), torch.randn(1, 2))


def test_statistics_of_known_matrices():
    eye = statistics(torch.eye(8)[None])
    assert eye["rank"] == eye["rank_1pc"] == 8 and abs(eye["effective_rank"] - 8) < 1e-9 and eye["entropy"] == 0
    ones = statistics(torch.full((2, 8, 8), 0.125))
    assert ones["rank"] == 1 and abs(ones["stable_rank"] - 1) < 1e-12 and abs(ones["entropy_of_log_n"] - 1) < 1e-12
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        statistics(torch.full((1, 2, 2), float("nan")))


@needs_program
@needs_library
def test_a_run_is_opened(run):
    opened = mhla.Run(run)
    assert opened.task == "classify" and repr(opened).startswith("mhla.Run(") and opened.options()["ema"] == 0.5
    steps = opened.log()
    assert steps["step"] == [2, 4, 6] and len(steps["loss"]) == 3 and "kind" not in steps
    assert opened.log("eval")["top1"] and set(opened.log(None)["kind"]) >= {"start", "step", "eval", "end"}
    assert opened.checkpoints()[-1].step == 6
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        want = hf.MhlaForImageClassification.from_pretrained(run)(x).logits
        assert torch.equal(opened.model()(x).logits, want)
        assert not torch.equal(opened.model("ema")(x).logits, want)
    with pytest.raises(RuntimeError, match="tokenizer.json is missing"):
        opened.tokenizer()


def test_bench_is_verified_and_timed():
    for options in (dict(), dict(backward=True, dtype=torch.bfloat16)):
        rows = mhla.bench(batch=1, heads=2, head_dim=16, grid=(8, 8), blocks=(2, 2), seconds=0.01, **options)
        assert [row["name"] for row in rows][-2:] == ["plain torch", "softmax"] and all(row["ms"] > 0 for row in rows)
        assert rows[-1]["of_softmax"] == 1 and rows[0]["error"] < 0.05 and "of_softmax" in str(rows)
