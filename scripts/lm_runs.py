#!/usr/bin/env python3
"""lm_runs.py CONFIG --out DIR [RUN ...]: trains one recipe with several attentions, lengths and seeds, and prints tables.

A run is NAME or NAME=FLAGS: `mhla softmax gla conv='--attention mhla --set short_conv=4'`; a bare name is an attention
of the zoo. --lengths 512,2048 trains with each context; a batch has as many tokens as that of the recipe. For associative
recall (`"data": "mqar"`) a length may have its number of pairs: --lengths 64:4,256:16. With --lrs 1e-3,3e-3 every run is
made with each learning rate and the best one shown, by the figure of the table. Some run at once (--jobs), as one small
model does not fill a GPU; their speed is then not that of a run alone. What is complete in DIR is not made again, what was
cut short goes on. Behind --, flags for all runs. Python 3 alone, without packages.

Text: perplexity by length, speed and parameters, then perplexity by place in the context. Recall: accuracy.
"""

import argparse
import functools
import itertools
import json
import pathlib
import shlex
import statistics
import struct
import subprocess
import sys
import time

import runs

BATCH, CONTEXT = 8, 2048  # where the recipe does not say


def parameters(path):
    """Numbers in a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    count = 0
    for name, tensor in header.items():
        size = 1
        for axis in tensor["shape"] if name != "__metadata__" else [0]:
            size *= axis
        count += size
    return count


def evaluate(mhla, folder, task):
    """The row of `mhla eval lm`: kept beside the run."""
    file = folder / "eval.json"
    if not file.exists():
        command = [mhla, "eval", "lm", "--run", str(folder), "--json", *task]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            lines = run.stderr.strip().splitlines()
            return {"failed": f"eval: exit {run.returncode}: {lines[-1] if lines else ''}"}
        file.write_text(run.stdout)
    return {"eval": json.loads(file.read_text().splitlines()[-1])}


def train_and_evaluate(mhla, config, folder, flags, task):
    result = runs.train(mhla, "lm", config, folder, flags)
    if "failed" in result:
        return result
    steps = [row["tokens_per_s"] for row in result["log"] if row["kind"] == "step"]
    return {
        "tokens_per_s": statistics.median(steps),
        "parameters": parameters(folder / "model.safetensors"),
        **evaluate(mhla, folder, task),
    }


def best_of(made, recall):
    """Of runs that differ in their learning rate alone, the best: {(name, length, seed): result}."""
    score = lambda result: -result["eval"]["figures"]["acc"] if recall else result["eval"]["loss"]
    best = {}
    for (name, length, seed, lr), result in made.items():
        key = name, length, seed
        if key not in best or score(result) < score(best[key]):
            best[key] = {**result, "lr": lr}
    return best


def print_by_length(made, names, lengths, cell, first):
    """A row for each name, a column for each length; `cell` makes a text of results of several seeds."""
    rows = []
    for name in names:
        cells = [[made[key] for key in made if key[:2] == (name, length)] for length in lengths]
        rows.append([name, *(cell(results) if results else "" for results in cells)])
    runs.print_table([first, *lengths], rows)


def print_text(made, names, lengths):
    print("Perplexity on held-out text, by length of training and evaluation\n")
    perplexity = lambda results: runs.spread([result["eval"]["perplexity"] for result in results])
    print_by_length(made, names, lengths, perplexity, "attention")
    for length in lengths:
        found = {name: [made[key]["eval"]["buckets"] for key in made if key[:2] == (name, length)] for name in names}
        found = {name: results for name, results in found.items() if results}
        if not found:
            continue
        print(f"Perplexity by place in {length} tokens, the mean of seeds\n")
        places = [f"{bucket['first']} to {bucket['last']}" for bucket in next(iter(found.values()))[0]]
        mean = lambda same: f"{statistics.mean(bucket['perplexity'] for bucket in same):.2f}"
        rows = [[name, *(mean(same) for same in zip(*results))] for name, results in found.items()]
        runs.print_table(["attention", *places], rows)


def print_recall(made, names, lengths):
    print("Answers that are right, %, by length and pairs\n")
    accuracy = lambda results: runs.spread([100 * result["eval"]["figures"]["acc"] for result in results], 1)
    print_by_length(made, names, lengths, accuracy, "attention")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, ["mhla", "linear", "softmax", "gla", "gdn", "mamba2"])
    parser.add_argument("--lengths", default="", help="CONTEXT or CONTEXT:PAIRS, with commas; the recipe's")
    parser.add_argument("--lrs", default="", help="learning rates, with commas; the recipe's")
    parser.add_argument("--eval", default="", help="more flags of mhla eval lm, as one text")
    options, common = runs.parse(parser)
    recipe = json.loads(pathlib.Path(options.config).read_text())
    recall = recipe.get("data") == "mqar"
    context = recipe.get("context", CONTEXT)
    tokens = recipe.get("batch", BATCH) * context
    task = shlex.split(options.eval)
    if recall:
        task += ["--task", "mqar"] + ([] if "--items" in task else ["--items", "1000"])
    started = time.time()

    work = {}
    lengths = options.lengths.split(",") if options.lengths else [str(context)]
    lrs = options.lrs.split(",") if options.lrs else [""]
    names = [runs.named(run)[0] for run in options.runs]
    for seed, lr in itertools.product(options.seeds.split(","), lrs):
        for length in lengths:
            context, _, pairs = length.partition(":")
            shape = ["--context", context, "--set", f"context={context}"]
            if "--batch" not in common:
                shape += ["--batch", str(max(1, tokens // int(context)))]
            if pairs:
                shape += ["--mqar-pairs", pairs]
            for run in options.runs:
                name, flags = runs.named(run)
                folder = options.out / "-".join([name, length.replace(":", "x"), *([lr] if lr else []), seed])
                flags = [*flags, *shape, *(["--lr", lr] if lr else []), "--seed", seed, *common]
                work[name, length, seed, lr] = functools.partial(
                    train_and_evaluate, options.mhla, options.config, folder, flags, task
                )
    all_made = runs.together(options.jobs, work)
    made = best_of(all_made, recall)
    names = [name for name in names if any(key[0] == name for key in made)]
    (print_recall if recall else print_text)(made, names, lengths)
    if len(lrs) > 1:
        print(f"Learning rates of the best, of {', '.join(lrs)}\n")
        chosen = lambda results: ", ".join(dict.fromkeys(result["lr"] for result in results))
        print_by_length(made, names, lengths, chosen, "attention")
    print("Thousand tokens a second in training, the median of the log\n")
    speed = lambda results: runs.spread([result["tokens_per_s"] / 1e3 for result in results], 1)
    print_by_length(made, names, lengths, speed, "attention")
    print("Parameters, millions\n")
    size = lambda results: f"{results[0]['parameters'] / 1e6:.3f}"
    print_by_length(made, names, lengths, size, "attention")
    print(f"{len(work)} runs, {time.time() - started:.0f} s, {options.jobs} at once", file=sys.stderr)
    sys.exit(0 if len(all_made) == len(work) else 1)


if __name__ == "__main__":
    main()
