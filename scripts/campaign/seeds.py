"""Valid inputs, made by the program itself on models that are tiny: what the cases of a campaign change and kill.

    images/    class folders with train/ and val/       idx/         the same kind of thing as IDX files
    text.jsonl text.txt prompts.txt                     tokens/      of `data tokenize`, two shards
    classifier/  lm/   finished runs with checkpoints    plain/       the classifier as `convert` writes it
    published.safetensors   under published names        state.safetensors   of `generate --save-state`
    golden/    one recorded file for each family
"""

import pathlib
import shutil
import struct
import subprocess
import zlib

REPO = pathlib.Path(__file__).resolve().parents[2]

# Words that make a training tiny: of seconds, most of which LibTorch takes to start.
TINY_CLASSIFIER = ["--model", "vit_demo", "--batch", "8", "--threads", "1", "--set", "dims=[16]", "--set", "heads=[2]",
                   "--set", "depths=[1]"]  # fmt: skip
TINY_DENOISER = ["--model", "dit_d32", "--batch", "8", "--threads", "1", "--set", "dim=16", "--set", "heads=2", "--set",
                 "depth=1", "--ema", "0.5", "--eval-times", "1", "--sample-every", "5", "--sample-steps", "2",
                 "--sample-columns", "1"]  # fmt: skip
TINY_LM = ["--model", "mhla_10m", "--batch", "4", "--threads", "1", "--set", "dim=32", "--set", "layers=1", "--set", "mlp=64",
           "--set", "chunk=16", "--context", "64", "--valid", "0.1", "--warmup-steps", "1"]  # fmt: skip


def png(rows, columns, value):
    """A grey PNG; `value` says the byte of a row and column."""
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    lines = b"".join(b"\0" + bytes(value(row, column) for column in range(columns)) for row in range(rows))
    head = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def make_images(folder):
    """Bright rows against bright columns; in the first class also a file of every format that has a fuzzer's corpus."""
    for split, count in (("train", 12), ("val", 4)):
        for name in ("columns", "rows"):
            to = folder / split / name
            to.mkdir(parents=True)
            for i in range(count):
                value = lambda r, c, rows=name == "rows", i=i: 200 if (r if rows else c) % 6 < 2 else (7 * i + r * c) % 90
                (to / f"{i:02}.png").write_bytes(png(28, 28, value))
    for file in sorted((REPO / "mhla/io/codecs/fuzz_corpus/image").iterdir()):
        if file.suffix and "damaged" not in file.name:
            shutil.copyfile(file, folder / "train" / "columns" / f"z-{file.name}")


def make_idx(folder):
    folder.mkdir()
    for name, count in (("train", 40), ("t10k", 10)):
        pixels = bytes((i * 31 + p * 17) % 90 + (150 if p // 78 == i % 10 else 0) for i in range(count) for p in range(784))
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pixels)
        labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def make_text(folder):
    words = "the sea was calm and the ship went on to be or not to be that is the question of a long night".split()
    documents = [" ".join(words[(i * j) % len(words)] for j in range(1, 40 + i)) for i in range(60)]
    (folder / "text.jsonl").write_text("".join(f'{{"text": "{document}"}}\n' for document in documents))
    (folder / "text.txt").write_text("\n".join(documents) + "\n")
    (folder / "prompts.txt").write_text("the sea\nto be\n")


class Seeds:
    """The folder of the inputs. Made once for each build of the program."""

    def __init__(self, mhla, folder):
        self.mhla, self.folder = str(mhla), pathlib.Path(folder)

    def path(self, name):
        return self.folder / name

    def run(self, *words):
        run = subprocess.run([self.mhla, *map(str, words)], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"campaign: a valid command failed: mhla {' '.join(map(str, words))}\n{run.stderr}")

    def built(self):
        """What tells one build of the program from another: it and its libraries."""
        program = pathlib.Path(self.mhla)
        files = [program, *sorted((program.parent.parent / "lib").glob("*.so"))]
        return "".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in files)

    def make(self):
        complete, built = self.folder / "complete", self.built()
        if complete.exists() and complete.read_text() == built:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        at = self.path
        make_images(at("images"))
        make_idx(at("idx"))
        make_text(self.folder)
        at("golden").mkdir()
        for file in sorted((REPO / "tests/golden").glob("*.safetensors")):
            shutil.copyfile(file, at("golden") / file.name)
        self.run("data", "tokenize", "--data", at("text.jsonl"), "--tokenizer", "train:300", "--valid", "0.1",
                 "--shard-tokens", "1000", "--out", at("tokens"))  # fmt: skip
        self.run("train", "classify", *TINY_CLASSIFIER, "--data", at("images"), "--out", at("classifier"), "--ema", "0.5",
                 "--max-steps", "4", "--checkpoint-every", "2")  # fmt: skip
        self.run("train", "lm", *TINY_LM, "--data", at("text.jsonl"), "--tokenizer", "train:300", "--out", at("lm"),
                 "--max-steps", "4", "--checkpoint-every", "2")  # fmt: skip
        self.run("convert", at("classifier"), at("plain"))
        self.run("convert", at("classifier"), at("published.safetensors"), "--to", "published")
        self.run("generate", "--run", at("lm"), "--prompt", "the sea", "--max-tokens", "8", "--greedy", "--threads", "1",
                 "--save-state", at("state.safetensors"))  # fmt: skip
        complete.write_text(built)
