#!/usr/bin/env python3
"""classify_runs.py CONFIG --out DIR [RUN ...]: trains one recipe with several attentions and seeds, and prints a table.

A run is NAME or NAME=FLAGS: `mhla softmax linear uniform='--attention mhla --set mix_init=uniform'`; a bare name is
an attention of the zoo. Some run at once (--jobs), as one small model does not fill a GPU; their speed is then not that
of a run alone. A run that is complete in DIR is not made again. Behind --, flags for all runs. --rank also runs
`mhla analyze` on the first seed. Python 3 alone, without packages.
"""

import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

ABLATIONS = {
    "uniform": "--attention mhla --set mix_init=uniform",
    "frozen": "--attention mhla --set learn_mix=false",
}


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def train(mhla, config, folder, flags, log):
    """Returns the last evaluation of the run in `folder`, made now unless it is complete."""
    if not (folder / "model.safetensors").exists():
        command = [mhla, "train", "classify", "--config", config, "--out", str(folder), *flags]
        with open(log, "w") as to:
            status = subprocess.run(command, stdout=to, stderr=subprocess.STDOUT).returncode
        if status != 0:
            lines = pathlib.Path(log).read_text().strip().splitlines()
            return {"failed": f"exit {status}: {lines[-1] if lines else ''}"}
    rows = rows_of(folder / "log.jsonl")
    return [row for row in rows if row["kind"] == "eval"][-1]


def spread(values):
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def means(mhla, folder):
    """Rank, singular values above 1 % and entropy, means over layers and heads, as `mhla analyze` tells them."""
    command = [mhla, "analyze", "--run", str(folder), "--device", "cpu", "--json", "--maps", "0"]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    heads = [row for row in map(json.loads, out.splitlines()) if row["kind"] == "head"]
    return [statistics.mean(row[key]["mean"] for row in heads) for key in ("rank", "rank_1pc", "entropy")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    own, common = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, common = own[:at], own[at + 1 :]
    parser.add_argument("config")
    parser.add_argument("runs", nargs="*", default=["mhla", "linear", "softmax"])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--mhla", default="build/release/bin/mhla")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--rank", action="store_true")
    options = parser.parse_intermixed_args(own)
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.time()

    jobs = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for seed in options.seeds.split(","):
            for run in options.runs:
                name, _, flags = run.partition("=")
                flags = flags or ABLATIONS.get(name, f"--attention {name}")
                folder = options.out / f"{name}-{seed}"
                words = [*shlex.split(flags), "--seed", seed, *common]
                jobs[name, seed] = pool.submit(train, options.mhla, options.config, folder, words, f"{folder}.log")
    failed = False
    columns = ["run", "top-1, %", "test loss"] + (["rank", "above 1 %", "entropy"] if options.rank else [])
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in dict.fromkeys(name for name, _ in jobs):
        results = [job.result() for (of, _), job in jobs.items() if of == name]
        for result in results:
            if "failed" in result:
                failed = True
                print(f"{name}: {result['failed']}", file=sys.stderr)
        good = [result for result in results if "failed" not in result]
        if not good:
            continue
        cells = [name, spread([100 * result["top1"] for result in good]), spread([result["loss"] for result in good])]
        if options.rank and len(good) == len(results):
            rank, above, entropy = means(options.mhla, options.out / f"{name}-{options.seeds.split(',')[0]}")
            cells += [f"{rank:.0f}", f"{above:.1f}", f"{entropy:.3f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{len(jobs)} runs, {time.time() - started:.0f} s", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
