#!/usr/bin/env python3
"""The metrics of `mhla eval images` against torch-fidelity on the same images and the same Inception-v3.

    python3 -m venv /tmp/fidelity && /tmp/fidelity/bin/pip install torch torchvision torch-fidelity==0.4.0 safetensors
    /tmp/fidelity/bin/python scripts/metrics_check.py --folder /tmp/fidelity/run

Published weights are not needed: both sides get weights made by a formula (mhla/models/inception/inception.h). Makes
two sets of images (`--images` of each) in FOLDER, writes the weights for both programs, measures, and prints a table.
Exit code 1 when a value differs by more than `--tolerance`, relative to the larger of its size and 0.001.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import zlib

import numpy as np

NAMES = {  # ours: torch-fidelity's
    "fid": ("frechet_inception_distance", None),
    "is-shuffled": ("inception_score_mean", "inception_score_std"),
    # No deviation: subsets of 1,000 are the whole of 1,000 images, and what is left is torch-fidelity's f32.
    "kid-subsets": ("kernel_inception_distance_mean", None),
    "precision": ("precision", None),
    "recall": ("recall", None),
}


def formula_values(name, shape):
    """Element i of the tensor `name`, as the README of the recorded cases gives it."""
    count = int(np.prod(shape)) if shape else 1
    h = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(zlib.crc32(name.encode()))
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    u = h / 2.0**32
    if name.endswith(("running_var", "bn.weight")):
        value = 0.5 + u
    elif name.endswith(("bn.bias", "running_mean")):
        value = 0.2 * (2 * u - 1)
    elif name == "fc.bias":
        value = 0.1 * (2 * u - 1)
    else:
        value = (2 * u - 1) * np.sqrt(6 / (count // shape[0]))
    return value.astype(np.float32).reshape(shape)


def make_images(count, seed, contrast):
    """Waves of random colour, direction and length, with noise: u8 [count, 32, 32, 3]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:32, 0:32] / 32
    images = np.empty((count, 32, 32, 3), np.uint8)
    for image in images:
        waves = np.zeros((32, 32, 3))
        for _ in range(4):
            fx, fy, phase = random.normal(0, 3), random.normal(0, 3), random.uniform(0, 2 * np.pi)
            waves += np.sin(2 * np.pi * (fx * x + fy * y) + phase)[..., None] * random.normal(0, 1, 3)
        levels = 128 + contrast * waves + random.normal(0, 6, waves.shape)
        image[:] = np.clip(levels, 0, 255)
    return images


def make_inputs(folder, count):
    import torch
    from PIL import Image
    from safetensors.torch import save_file
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    for name, seed, contrast in (("samples", 1, 40), ("reference", 2, 48)):
        images = make_images(count, seed, contrast)
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{i:05d}.png")
        np.savez(folder / f"{name}.npz", images)
    # The class wants a file: shapes come from a network that never loads one.
    torch.save({}, folder / "empty.pth")
    load = torch.nn.Module.load_state_dict
    torch.nn.Module.load_state_dict = lambda self, state, **_: None
    state = FeatureExtractorInceptionV3("shapes", ["2048"], str(folder / "empty.pth")).state_dict()
    torch.nn.Module.load_state_dict = load
    weights = {name: torch.from_numpy(formula_values(name, tuple(value.shape)))
               for name, value in state.items() if not name.endswith("num_batches_tracked")}
    save_file(weights, folder / "inception.safetensors")
    counts = {name: value for name, value in state.items() if name not in weights}
    torch.save({**weights, **counts}, folder / "inception.pth")


def measure_theirs(folder):
    import torch
    import torch_fidelity

    class Images(torch.utils.data.Dataset):
        def __init__(self, name):
            self.images = torch.from_numpy(np.load(folder / f"{name}.npz")["arr_0"]).permute(0, 3, 1, 2).contiguous()

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return self.images[index]

    torch.backends.cudnn.allow_tf32 = False  # f32, as mhla computes
    # Precision and recall count images: rounding of f32 distances moves one of 2,000 into a ball or out of it.
    cdist = torch.cdist
    torch.cdist = lambda one, other: cdist(one.double(), other.double())
    sets = [Images("samples"), Images("reference")]
    count = min(len(one) for one in sets)
    return torch_fidelity.calculate_metrics(
        input1=sets[0], input2=sets[1], cuda=torch.cuda.is_available(), isc=True, fid=True, kid=True, prc=True,
        feature_extractor="inception-v3-compat",  # precision and recall take VGG-16 otherwise
        kid_subset_size=min(1000, count), batch_size=50, cache=False, verbose=True, save_cpu_ram=True,
        feature_extractor_weights_path=str(folder / "inception.pth"))


def measure_ours(folder, program, device):
    output = subprocess.run(
        [program, "eval", "images", "--samples", folder / "samples", "--reference", folder / "reference", "--features",
         f"inception:{folder / 'inception.safetensors'}", "--metrics", ",".join(NAMES), "--device", device, "--json"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def compare(ours, theirs, tolerance):
    """Prints the table; the number of values that differ."""
    wrong = 0
    by_name = {row["metric"]: row for row in ours if "metric" in row}
    print(f"{'metric':14} {'mhla':>16} {'torch-fidelity':>16} {'difference':>12}")
    for name, keys in NAMES.items():
        for field, key in zip(("value", "deviation"), keys):
            if key is None:
                continue
            got, want = by_name[name][field], theirs[key]
            difference = abs(got - want) / max(abs(want), 1e-3)
            bad = not difference <= tolerance
            wrong += bad
            label = name if field == "value" else f"{name} +-"
            print(f"{label:14} {got:16.9g} {want:16.9g} {difference:12.2e}{'  WRONG' if bad else ''}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where images, weights and results go")
    parser.add_argument("--images", type=int, default=1000, help="images of each set (default 1000)")
    parser.add_argument("--program", default="build/release/bin/mhla", help="the mhla program")
    parser.add_argument("--device", default="cpu", help="for mhla: cpu or cuda; torch-fidelity takes a GPU where there is one")
    parser.add_argument("--ours", type=pathlib.Path, help="read our values from this file of JSON lines instead")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="allowed relative difference (default 1e-4)")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.images < 1000:  # for trying the script: subsets have 1,000
        del NAMES["kid-subsets"]
    if not (folder / "inception.pth").exists():
        make_inputs(folder, options.images)
    if not (folder / "torch_fidelity.json").exists():
        (folder / "torch_fidelity.json").write_text(json.dumps(measure_theirs(folder)))
    theirs = json.loads((folder / "torch_fidelity.json").read_text())
    if options.ours:
        ours = [json.loads(line) for line in options.ours.read_text().splitlines()]
    else:
        ours = measure_ours(folder, options.program, options.device)
    wrong = compare(ours, theirs, options.tolerance)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
