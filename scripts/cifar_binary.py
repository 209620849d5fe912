#!/usr/bin/env python3
"""cifar_binary.py ARCHIVE FOLDER: CIFAR-10 as image files in an archive (train/CLASS/NAME, test/CLASS/NAME) to the binary
version that `cifar10:FOLDER` reads: 6 files instead of 60,000, which a program opens at once.

    scripts/cifar_binary.py cifar10_jpeg.tar.xz cifar/

Images of a split come in an order fixed by a seed, so that any part of a file has all classes. held_out.npz has the
first 1,000 test images, as --held-out of `mhla eval images` takes them. Needs Pillow and NumPy.
"""

import argparse
import io
import pathlib
import random
import tarfile

import numpy
from PIL import Image

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
HELD_OUT = 1000


def records_of(archive):
    """{split: records of a label and three planes, shuffled}."""
    found = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = pathlib.PurePosixPath(member.name).parts
            if not member.isfile() or len(parts) < 3 or parts[-3] not in found:
                continue
            if parts[-2] not in CLASSES:
                raise SystemExit(f"cifar_binary: {member.name}: class {parts[-2]}, expected one of {', '.join(CLASSES)}")
            pixels = numpy.asarray(Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB"))
            if pixels.shape != (32, 32, 3):
                raise SystemExit(f"cifar_binary: {member.name}: {pixels.shape[0]} x {pixels.shape[1]} pixels, expected 32 x 32")
            found[parts[-3]].append((member.name, bytes([CLASSES.index(parts[-2])]) + pixels.transpose(2, 0, 1).tobytes()))
    for split, records in found.items():
        if not records:
            raise SystemExit(f"cifar_binary: {archive} has no images in {split}/CLASS/")
        records.sort()  # whatever the order in the archive
        random.Random(0).shuffle(records)
    return {split: [record for _, record in records] for split, records in found.items()}


def write(folder, found):
    train, test = found["train"], found["test"]
    each = len(train) // 5
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(b"".join(train[i * each : (i + 1) * each]))
    (folder / "test_batch.bin").write_bytes(b"".join(test))
    some = numpy.stack([numpy.frombuffer(record[1:], numpy.uint8).reshape(3, 32, 32).transpose(1, 2, 0) for record in test[:HELD_OUT]])
    numpy.savez(folder / "held_out.npz", some)
    print(f"{folder}: {5 * each} training images, {len(test)} test images")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    found = records_of(options.archive)
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, found)


if __name__ == "__main__":
    main()
