"""The order and the end of scripts/image_runs.py, with a program in mhla's place that answers at once."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import image_arms  # noqa: E402

# Notes every command in calls.txt, makes the files that the script looks for, and sleeps in a training of `slow`.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(1))
words = sys.argv[1:]
of = lambda flag, otherwise="": words[words.index(flag) + 1] if flag in words else otherwise
with open(pathlib.Path(__file__).parent / "calls.txt", "a") as calls:
    calls.write(" ".join(words) + "\\n")
out = pathlib.Path(of("--out", words[2] if words[0] == "convert" else "."))
if words[0] == "train":
    if "slow" in out.name:
        time.sleep(60)
    out.mkdir(parents=True, exist_ok=True)
    mse = 0.04 if of("--attention") == "mhla" else 0.05
    rows = [{"kind": "step", "images_per_s": 9.0}, {"kind": "eval", "step": 4, "top1": 0.9, "mse": mse, "ema_mse": mse}]
    (out / "log.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    (out / "model.safetensors").write_text("")
elif words[0] == "convert":
    out.mkdir()
    (out / "config.json").write_text("{}")
elif words[:2] == ["eval", "diffusion"]:
    print(json.dumps({"mse": 0.04, "mse_se": 0.001, "images": 2, "each": [0.0312345678, 0.05]}))
elif words[0] == "sample":
    (out / "images").mkdir(parents=True)
    (out / "images" / "000000.png").write_text("")
    (out / "sheet.png").write_text("")
    print(json.dumps({"images": 1, "kept": 0, "images_per_s": 1.0}))
elif words[:2] == ["eval", "images"]:
    for metric in of("--metrics").split(",") + ["accuracy"]:
        print(json.dumps({"kind": "metric", "metric": metric, "value": 1.0, "copies": 0.0}))
"""


class ImageRuns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)
        self.program = self.place / "mhla"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.place / "recipe.json").write_text("{}")

    def run_script(self, *words):
        return subprocess.run(
            [sys.executable, "-B", ROOT / "scripts" / "image_runs.py", self.place / "recipe.json", "--samples", "10", *words, "--out", self.place / "runs", "--mhla",
             self.program, "--data", "mnist:x", "--summary", self.place / "summary.json", "--device", "cpu", "--steps", "8"],
            capture_output=True, text=True, timeout=60)

    def trained(self):
        lines = (self.place / "calls.txt").read_text().splitlines()
        names = [line.split("--out ")[1].split()[0] for line in lines if line.startswith("train diffusion")]
        return [Path(name).name for name in names]

    def test_groups_wait_for_all_seeds_of_those_before(self):
        groups = image_arms.grouped(["mhla", "linear", "then", "main", "then", "mine=--lr 1"])
        self.assertEqual([list(group) for group in groups], [["mhla", "linear"], ["softmax", "mhla-uniform", "mhla-cpe"], ["mine"]])
        self.assertEqual(image_arms.in_order(groups[:1], ["0", "1"]), [("mhla", "0"), ("linear", "0"), ("mhla", "1"), ("linear", "1")])

    def test_some_seeds(self):
        groups = image_arms.grouped(["mhla", "then", "linear@1", "main@0"])
        keys = image_arms.in_order(groups, ["0", "1"])
        self.assertEqual(keys[:2], [("mhla", "0"), ("mhla", "1")])
        self.assertEqual(sorted(keys[2:]), [("linear", "0"), ("mhla-cpe", "0"), ("mhla-uniform", "0"), ("softmax", "0")])

    def test_one_json_has_everything_and_the_tables_are_printed(self):
        done = self.run_script("mhla", "linear", "then", "softmax", "--seeds", "0,1", "--jobs", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.trained(), ["mhla-0", "linear-0", "mhla-1", "linear-1", "softmax-0", "softmax-1"])
        self.assertIn("| mhla | 2 | 0.04000 (0.04000 to 0.04000)", done.stdout)
        found = json.loads((self.place / "summary.json").read_text())
        runs = {(row["run"], row["seed"]): row for row in found["runs"]}
        self.assertEqual(len(runs), 7)  # and the judges
        self.assertEqual(runs["mhla", "0"]["each"], [0.031235, 0.05])
        self.assertEqual(set(runs["mhla", "0"]["stages"]), {"train", "sample", "wait for judges", "measure"})
        self.assertEqual((found["left"], found["failed"]), ([], []))
        before = len(self.trained())
        self.assertEqual(self.run_script("mhla", "linear", "then", "softmax", "--seeds", "0,1", "--jobs", "1").returncode, 0)
        self.assertEqual(len(self.trained()), before)  # nothing is made again
        (self.place / "summary.json").rename(self.place / "earlier.json")
        (self.place / "runs" / "results.jsonl").unlink()  # another machine, to which only the summary came
        more = self.run_script("mhla", "mhla-cpe", "--seeds", "0", "--jobs", "1", "--known", self.place / "earlier.json")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertEqual(self.trained()[before:], ["mhla-cpe-0"])
        self.assertIn("| linear | 2 |", more.stdout)

    def test_without_samples_the_held_out_error_is_all(self):
        self.assertEqual(self.run_script("mhla", "--seeds", "0", "--jobs", "1").returncode, 0)
        done = self.run_script("mhla", "linear", "--seeds", "0,1", "--jobs", "1", "--samples", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = (self.place / "calls.txt").read_text()
        self.assertEqual(calls.count("train classify"), 2)  # of the first call
        self.assertEqual(calls.count("\nsample "), 1)
        self.assertIn("| linear | 2 | 0.04000 (0.04000 to 0.04000) | 0.00100 |  |  |", done.stdout)
        self.assertIn("| mhla | 2 |", done.stdout)
        found = json.loads((self.place / "summary.json").read_text())
        self.assertEqual(["judges" in row for row in found["runs"] if row["run"] == "mhla"], [True, False])

    def test_ends_in_time_and_says_what_is_left(self):
        done = self.run_script("mhla", "then", "slow=--attention mhla", "--seeds", "0", "--jobs", "1", "--minutes", "0.1", "--spare", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left: slow 0", done.stderr)
        found = json.loads((self.place / "summary.json").read_text())
        self.assertEqual(found["left"], ["slow 0"])
        self.assertIn("mhla", [row["run"] for row in found["runs"]])

    def test_a_run_that_cannot_end_in_time_is_not_begun(self):
        self.assertEqual(self.run_script("mhla", "--seeds", "0", "--jobs", "1").returncode, 0)
        rows = [json.loads(line) for line in (self.place / "runs" / "results.jsonl").read_text().splitlines()]
        rows = [{**row, "seconds": 3600.0} if row["run"] == "mhla" else row for row in rows]
        (self.place / "runs" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = self.run_script("linear", "--seeds", "0", "--jobs", "1", "--minutes", "5")
        self.assertIn("left: linear 0", done.stderr)
        self.assertEqual(self.trained(), ["mhla-0"])
        rows = [{**row, "jobs": 60} if row["run"] == "mhla" else row for row in rows]  # 60 at once: one takes a minute
        (self.place / "runs" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.assertEqual(self.run_script("linear", "--seeds", "0", "--jobs", "1", "--minutes", "5").returncode, 0)
        self.assertEqual(self.trained(), ["mhla-0", "linear-0"])

    def test_tables_and_curves_of_the_documents(self):
        results, svg = ROOT / "docs" / "experiments" / "dit_t32_cifar.json", self.place / "curves.svg"
        done = subprocess.run([sys.executable, ROOT / "scripts" / "image_table.py", results, "--svg", svg], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| softmax-to-mhla | 1 | 0.03684 |", done.stdout)
        self.assertIn("| 0 | 0.10373 | 0.03578 |", done.stdout)
        self.assertEqual(svg.read_text().count("<polyline"), 6)
        self.assertEqual(svg.read_text(), (ROOT / "docs" / "images" / "dit_t32_adapt.svg").read_text())


if __name__ == "__main__":
    unittest.main()
