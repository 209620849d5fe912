"""scripts/vit_convert.py on images of noise: recipes are compared by held-out training images, and test images decide nothing."""

import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy
import pytest

pytest.importorskip("timm")
sys.path.append(str(Path(__file__).parents[3] / "scripts"))
import vit_convert  # noqa: E402

ARGUMENTS = ["--device", "cpu", "--backend", "torch", "--dim", "16", "--depth", "1", "--heads", "2", "--patch", "7", "--blocks", "2", "--epochs", "1",
             "--batch", "16", "--valid", "64", "--points", "1"]  # fmt: skip
RECIPES = ["lr=1e-6 batch=16", "lr=3e-2 batch=8 distill=0.5 hidden=0.5", "lr=1e-2 batch=16 ema=0.5 mix=exp"]


def write(folder: Path, part: str, count: int, turned: int) -> None:
    """Images whose brightness is their class; ``turned`` labels say another one."""
    rng = numpy.random.default_rng(0)
    labels = rng.integers(10, size=count).astype(numpy.uint8)
    images = (labels[:, None] * 20 + rng.integers(20, size=(count, 784))).astype(numpy.uint8)
    labels[:turned] = (labels[:turned] + 1) % 10
    (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes()))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))


def run(monkeypatch, folder: Path, turned: int, *more: str) -> dict:
    folder.mkdir()
    write(folder, "train", 256, 0)
    write(folder, "t10k", 100, turned)
    recipes = [word for recipe in RECIPES for word in ("--recipe", recipe)]
    monkeypatch.setattr(sys, "argv", ["vit_convert.py", *ARGUMENTS, *recipes, "--data", str(folder), "--out", str(folder), *more])
    try:
        vit_convert.main()
    except SystemExit as end:
        assert "expected at least A - 0.5" in str(end)
    finally:
        vit_convert.mhla.set_backend(None)
    return json.loads((folder / "result.json").read_text())


def test_held_out_images_decide(monkeypatch, tmp_path):
    plain = run(monkeypatch, tmp_path / "plain", 0, "--softmax", str(tmp_path / "softmax.pt"), "--svg", str(tmp_path / "curves.svg"))
    assert (plain["images"], list(plain["held_out"])) == (192, RECIPES)
    assert plain["recipe"] == max(RECIPES, key=plain["held_out"].get)
    assert plain["mhla"][-1][1] == plain["held_out"][plain["recipe"]]
    assert f"A = {plain['A']:.2f} %" in (tmp_path / "curves.svg").read_text()
    turned = run(monkeypatch, tmp_path / "turned", 100, "--softmax", str(tmp_path / "softmax.pt"))
    assert (turned["recipe"], turned["held_out"]) == (plain["recipe"], plain["held_out"])
    assert turned["A"] != plain["A"] and turned["mhla"][-1][2] != plain["mhla"][-1][2]


@pytest.mark.parametrize("text", ["rate=1", "lr=fast", "text=x", "lr"])
def test_words_that_are_no_settings(text):
    with pytest.raises(argparse.ArgumentTypeError, match=text.partition("=")[0]):
        vit_convert.Recipe.parse(text)
