"""mhla.hf.MhlaForImageClassification: runs of `mhla train classify` in transformers, and back, against `mhla predict`."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

Image = pytest.importorskip("PIL.Image")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("mhla.hf")
PROGRAM = Path(os.environ.get("MHLA_PROGRAM", Path(__file__).parents[3] / "build/release/bin/mhla"))
VLT = ["--model", "vlt_tiny", *(word for field in ("dims=[16,16,32,32]", "depths=[1,2,1,1]", "heads=[2,2,4,4]", "channels=1",
                                                   "classes=10", "image=[32,32]") for word in ("--set", field))]  # fmt: skip
CASES = {
    "deit": ["--model", "vit_demo", "--set", "cpe=3", "--set", "lepe=5"],
    "deit softmax": ["--model", "vit_demo", "--attention", "softmax"],
    "deit linear": ["--model", "vit_demo", "--attention", "linear"],
    "vlt": [*VLT, "--set", "blocks=[[4,4],[2,2]]"],
    "vlt softmax": [*VLT, "--attention", "softmax"],
    "vlt linear": [*VLT, "--attention", "linear"],
}


def probabilities(run, images):
    said = subprocess.run([PROGRAM, "predict", "--run", run, "--top", "10", "--threads", "1", "--json", *images],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    rows = [json.loads(line) for line in said.splitlines()]
    found = [sorted(row["top"], key=lambda p: p["class"]) for row in rows if row["kind"] == "image"]
    return torch.tensor([[p["probability"] for p in one] for one in found])


@pytest.mark.skipif(not PROGRAM.is_file(), reason="no build/release/bin/mhla, or MHLA_PROGRAM")
@pytest.mark.parametrize("name", list(CASES))
def test_a_run_opens_and_gives_the_same_classes(name, tmp_path):
    run = tmp_path / "run"
    subprocess.run([PROGRAM, "train", "classify", "--out", run, "--train-images", "64", "--test-images", "20", "--batch", "16",
                    "--max-steps", "3", "--threads", "1", *CASES[name]], check=True, capture_output=True)  # fmt: skip
    model, loading = transformers.AutoModelForImageClassification.from_pretrained(run, output_loading_info=True)
    assert isinstance(model, hf.MhlaForImageClassification) and not any(loading.values()), loading
    assert not model.training
    side = model.config.image[0]
    grey = torch.randint(256, (3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    images = []
    for i, one in enumerate(grey):
        images.append(tmp_path / f"{i}.png")
        Image.fromarray(one.numpy()).save(images[-1])
    scaled = json.loads((run / "preprocess.json").read_text())
    pixels = (grey[:, None] / 255 - scaled["mean"][0]) / scaled["std"][0]
    with torch.no_grad():
        out = model(pixel_values=pixels, labels=torch.tensor([0, 1, 2]))
    want = probabilities(run, images)
    torch.testing.assert_close(out.logits.softmax(-1), want, rtol=1e-4, atol=2e-6)
    assert torch.isfinite(out.loss)

    model.save_pretrained(tmp_path / "back")
    (tmp_path / "back/preprocess.json").write_bytes((run / "preprocess.json").read_bytes())
    assert torch.equal(probabilities(tmp_path / "back", images), want)
    model.train()
    model(pixel_values=pixels, labels=torch.tensor([0, 1, 2])).loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)
    with pytest.raises(RuntimeError, match=r"pixel_values has shape \[3, 1, 5, 5\], expected \[B, 1,"):
        model(pixel_values=torch.zeros(3, 1, 5, 5))


def test_other_attentions_are_named():
    with pytest.raises(RuntimeError, match="attention is 'gla', expected deit or vlt, and mhla, linear or softmax"):
        hf.MhlaImageConfig(attention="gla")
