#!/usr/bin/env python3
"""Checks an exported classifier with onnxruntime: onnx.checker, then its answers against those of `mhla predict`.

    mhla export --run RUN --out model.onnx --with-normalize
    scripts/onnx_check.py --mhla build/release/bin/mhla --run RUN --model model.onnx IMAGE...

Needs onnx, onnxruntime, numpy and Pillow. Images must have the size that the model takes: nothing is resized here, so that
the difference is that of the graph alone. Prints one JSON object; exit code 1 above --tolerance.
"""
import argparse
import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
from PIL import Image


def pixels_of(path, channels):
    image = np.asarray(Image.open(path).convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    return image[None] if channels == 1 else image.transpose(2, 0, 1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mhla", default="mhla")
    parser.add_argument("--run", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("images", nargs="+")
    a = parser.parse_args()

    model = onnx.load(a.model)
    onnx.checker.check_model(model, full_check=True)
    facts = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    session = onnxruntime.InferenceSession(a.model, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    channels = given.shape[1]
    images = np.stack([pixels_of(path, channels) for path in a.images])
    if given.name == "images":
        column = lambda key: np.array(facts["mhla.preprocess"][key], dtype=np.float32).reshape(-1, 1, 1)
        images = (images - column("mean")) / column("std")
    logits = session.run(None, {given.name: images})[0]
    alone = session.run(None, {given.name: images[:1]})[0]  # another size of the batch

    classes = logits.shape[1]
    command = [a.mhla, "predict", "--run", a.run, "--json", "--top", str(classes), *a.images]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    expected = np.zeros_like(logits)
    for row, line in zip(expected, said.splitlines()):
        for one in json.loads(line)["top"]:
            row[one["class"]] = one["probability"]
    # Logits up to a constant, which softmax takes away: log p.
    got = np.log(softmax(logits.astype(np.float64)))
    seen = expected > 1e-6
    difference = float(np.abs(got - np.log(np.maximum(expected, 1e-30)))[seen].max())
    result = {
        "model": facts["mhla.config"]["model"],
        "attention": facts["mhla.config"]["attention"],
        "input": given.name,
        "images": len(a.images),
        "max_difference": difference,
        "max_difference_alone": float(np.abs(alone[0] - logits[0]).max()),
        "same_top1": bool((got.argmax(-1) == expected.argmax(-1)).all()),
    }
    print(json.dumps(result))
    good = difference <= a.tolerance and result["max_difference_alone"] <= a.tolerance and result["same_top1"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
