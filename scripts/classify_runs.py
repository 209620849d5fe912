#!/usr/bin/env python3
"""classify_runs.py CONFIG --out DIR [RUN ...]: trains one recipe with several attentions and seeds, and prints a table.

A run is NAME or NAME=FLAGS: `mhla softmax linear uniform='--attention mhla --set mix_init=uniform'`; a bare name is
an attention of the zoo. Some run at once (--jobs), as one small model does not fill a GPU; their speed is then not that
of a run alone. A run that is complete in DIR is not made again. Behind --, flags for all runs. --rank also runs
`mhla analyze` on the first seed. Python 3 alone, without packages.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import runs


def means(mhla, folder):
    """Rank, singular values above 1 % and entropy, means over layers and heads, as `mhla analyze` tells them."""
    command = [mhla, "analyze", "--run", str(folder), "--device", "cpu", "--json", "--maps", "0"]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    heads = [row for row in map(json.loads, out.splitlines()) if row["kind"] == "head"]
    return [statistics.mean(row[key]["mean"] for row in heads) for key in ("rank", "rank_1pc", "entropy")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, ["mhla", "linear", "softmax"])
    parser.add_argument("--rank", action="store_true")
    options, common = runs.parse(parser)
    started = time.time()

    seeds = options.seeds.split(",")
    work = runs.by_seed(options, "classify", common)
    made = runs.together(options.jobs, work)
    columns = ["run", "top-1, %", "test loss"] + (["rank", "above 1 %", "entropy"] if options.rank else [])
    rows = []
    for name in dict.fromkeys(name for name, _ in made):
        last = [[row for row in made[key]["log"] if row["kind"] == "eval"][-1] for key in made if key[0] == name]
        cells = [name, runs.spread([100 * row["top1"] for row in last]), runs.spread([row["loss"] for row in last])]
        if options.rank and (name, seeds[0]) in made:
            rank, above, entropy = means(options.mhla, options.out / f"{name}-{seeds[0]}")
            cells += [f"{rank:.0f}", f"{above:.1f}", f"{entropy:.3f}"]
        rows.append(cells)
    runs.print_table(columns, rows)
    print(f"{len(work)} runs, {time.time() - started:.0f} s", file=sys.stderr)
    sys.exit(0 if len(made) == len(work) else 1)


if __name__ == "__main__":
    main()
