"""scripts/cifar_binary.py on an archive of 30 images made here."""

import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
try:
    import numpy
    from PIL import Image
except ImportError:
    numpy = None


@unittest.skipIf(numpy is None, "needs NumPy and Pillow")
class CifarBinary(unittest.TestCase):
    def test_records_have_the_label_and_planes_of_their_image(self):
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            for split, count in (("train", 5), ("test", 2)):
                for label, kind in enumerate(("airplane", "truck")):
                    (place / "set" / split / kind).mkdir(parents=True)
                    for i in range(count):
                        pixels = numpy.zeros((32, 32, 3), numpy.uint8)
                        pixels[..., 0], pixels[..., 1], pixels[3, 5, 2] = 9 * label, i, 200
                        Image.fromarray(pixels).save(place / "set" / split / kind / f"{i}.png")
            with tarfile.open(place / "set.tar.xz", "w:xz") as tar:
                tar.add(place / "set", "set")
            made = subprocess.run([sys.executable, "-B", ROOT / "scripts" / "cifar_binary.py", place / "set.tar.xz", place / "out"],
                                  capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stderr)
            bytes_of = lambda file: numpy.fromfile(place / "out" / file, numpy.uint8).reshape(-1, 3073)
            train = numpy.concatenate([bytes_of(f"data_batch_{i}.bin") for i in range(1, 6)])
            self.assertEqual(sorted((row[0], row[1], row[1 + 1024]) for row in train),
                             sorted((9 * label, 9 * label, i) for label in (0, 1) for i in range(5)))
            self.assertTrue((train[:, 1 + 2048 + 3 * 32 + 5] == 200).all())
            self.assertEqual(numpy.load(place / "out" / "held_out.npz")["arr_0"].shape, (4, 32, 32, 3))
            self.assertEqual(len(bytes_of("test_batch.bin")), 4)


if __name__ == "__main__":
    unittest.main()
