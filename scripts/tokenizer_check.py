#!/usr/bin/env python3
"""Compares how mhla and Hugging Face's tokenizers read tokenizer.json files: ids and decoded text, over odd texts.

    python3 -m venv venv && venv/bin/pip install tokenizers
    ninja -C build/release tokenizer_probe
    venv/bin/python scripts/tokenizer_check.py --novels novels.tar.xz

Three kinds of files are made: those of known projects (CLIP, GPT-2, Llama, Gemma, ...) with small vocabularies that are
trained here, files of one step each that are asked about every character of Unicode, and random ones. --golden DIR writes
small files with texts and what tokenizers makes of them, for pipeline_golden_test.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import unicodedata

from tokenizer_check_files import known_files, random_file, single_steps
from tokenizer_check_texts import Texts, every_character

try:
    import tokenizers
except ImportError:
    sys.exit("tokenizer_check: needs Hugging Face's tokenizers: pip install tokenizers")


def theirs(file, texts):
    """What tokenizers makes of texts: rows as tokenizer_probe writes them, None where it fails. A string: a refusal."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
    except BaseException as error:  # pyo3 panics are no Exceptions
        return str(error)
    rows = []
    for text in texts:
        row = {}
        try:
            for name, plain in (("plain", True), ("parsed", False)):
                tokenizer.encode_special_tokens = plain
                row[name] = tokenizer.encode(text, add_special_tokens=False).ids
                row[name + "_text"] = tokenizer.decode(row[name], skip_special_tokens=False) if row[name] else ""
        except BaseException:
            row = None
        rows.append(row)
    return rows


def ours(program, files, texts):
    """One list of rows per file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, file in enumerate(files):
            paths.append(os.path.join(folder, f"{i}.json"))
            with open(paths[-1], "w", encoding="utf-8") as out:
                json.dump(file, out, ensure_ascii=i % 2 == 0)
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        done = subprocess.run([program, *paths], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in done.stdout.split(b"\n") if line]
    return [rows[i :: len(files)] for i in range(len(files))]


def as_text(latin1):
    return latin1.encode("latin-1").decode("utf-8", "replace")


def compare(name, file, texts, mine, known, out):
    want = theirs(file, texts)
    if isinstance(want, str):
        out["both refuse" if "refused" in mine[0] else "only tokenizers refuses"] += 1
        return
    if mine and "refused" in mine[0] and all("refused" in row for row in mine):
        out["only mhla refuses"] += 1
        out["reasons"].setdefault(mine[0]["refused"].split(": ", 1)[1][:110], name)
        if known:
            out["wrong"] += 1
            print(f"{name}: refused: {mine[0]['refused']}")
        return
    out["files"] += 1
    wrong = 0
    for text, row, good in zip(texts, mine, want):
        if good is None:
            out["tokenizers fails"] += 1
            continue
        out["texts"] += 1
        bad = [key for key in ("plain", "parsed") if row.get(key) != good[key]]
        for key in ("plain_text", "parsed_text"):
            if not bad and as_text(row[key]) != good[key]:
                bad.append(key)
            shown = as_text(row.get(key[:-5] + "_shown", "")).strip(" ")
            if not bad and shown != good[key].strip(" ") and "\ufffd" not in good[key]:
                bad.append(key[:-5] + "_shown")
        if bad:
            wrong += 1
            if wrong <= out["show"]:
                print(f"{name}: {bad[0]} differs for {text!r}\n  tokenizers {good.get(bad[0])}\n  mhla       {row}")
    if wrong:
        out["wrong"] += wrong
        brief = {k: v for k, v in file.items() if k in ("normalizer", "pre_tokenizer", "decoder", "added_tokens")}
        print(f"{name}: {wrong} of {len(texts)} texts differ: {json.dumps(brief, ensure_ascii=False)[:1500]}")


def write_golden(folder, files, texts):
    for name, file in files.items():
        rows = [(text, row) for text, row in zip(texts, theirs(file, texts)) if row is not None]
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as out:
            json.dump(file, out, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, name + ".expected.json"), "w", encoding="utf-8") as out:
            lines = ",\n".join(json.dumps({"text": text, **row}, separators=(",", ":")) for text, row in rows)
            out.write(f'{{"made by":"tokenizers {tokenizers.__version__}","texts":[\n{lines}\n]}}\n')
        print(f"{name}: {os.path.getsize(os.path.join(folder, name + '.json'))} bytes, {len(rows)} texts")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/tests/tokenizer_probe")
    parser.add_argument("--novels", required=True, help="a .tar.xz of English text, to train on and to ask about")
    parser.add_argument("--texts", type=int, default=2000, help="for each known file (default 2000)")
    parser.add_argument("--random", type=int, default=300, help="random files (default 300)")
    parser.add_argument("--random-texts", type=int, default=100, help="for each of them (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=2, help="differing texts shown per file (default 2)")
    parser.add_argument("--golden", help="only write golden files into this folder")
    options = parser.parse_args()
    prose = ""
    with tarfile.open(options.novels) as archive:
        for member in archive:
            if member.isfile():
                prose += archive.extractfile(member).read(300_000).decode("utf-8", "ignore")
            if len(prose) > 3_000_000:
                break
    texts = Texts(prose, options.seed)
    print(f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}, seed {options.seed}")
    if options.golden:
        files = known_files(prose[:200_000], 800)
        names = ("clip", "llama", "gemma", "mistral", "qwen2", "openai_gpt", "bert_bpe", "metaspace", "bloom", "roberta")
        return write_golden(options.golden, {name: files[name] for name in names}, texts.some(60, longest=80))
    out = dict.fromkeys(("files", "texts", "wrong", "tokenizers fails", "both refuse", "only tokenizers refuses", "only mhla refuses"), 0)
    out.update(show=options.show, reasons={})
    for name, file in known_files(prose[:400_000], 1000).items():
        asked = texts.some(options.texts)
        compare(name, file, asked, ours(options.program, [file], asked)[0], True, out)
    asked = every_character()
    for name, file in single_steps().items():
        compare(name, file, asked, ours(options.program, [file], asked)[0], True, out)
    choice = random.Random(options.seed)
    for first in range(0, options.random, 10):
        files = [random_file(choice, prose) for _ in range(min(10, options.random - first))]
        asked = texts.some(options.random_texts)
        for i, rows in enumerate(ours(options.program, files, asked)):
            compare(f"random {first + i}", files[i], asked, rows, False, out)
    for reason, name in sorted(out["reasons"].items()):
        print(f"mhla refuses ({name}): {reason}")
    print(", ".join(f"{key}: {value}" for key, value in out.items() if key not in ("show", "reasons")))
    return 1 if out["wrong"] or out["only tokenizers refuses"] else 0


if __name__ == "__main__":
    sys.exit(main())
