#!/usr/bin/env python3
"""image_runs.py CONFIG --out DIR [RUN ...]: trains one recipe of `mhla train diffusion` with several attentions and
seeds, and prints a table.

A run is NAME or NAME=FLAGS: `mhla softmax linear cpe='--attention mhla --variant cpe'`; a bare name is an attention of
the zoo. Some run at once (--jobs); their speed is then not that of a run alone. A run that is complete in DIR is not
made again. The table has the held-out denoising error of the averaged weights with its standard error over the images;
noise and times are the same for all runs, so that they can be compared. With --judge, a run of `mhla train classify`,
--samples images of every run are made and the share is told in which the judge finds the class that was asked for.
Behind --, flags for all runs. Python 3 alone, without packages.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time

import runs


def agreement(options, folder):
    """The share of samples in which the judge sees the class that was asked for; made now unless it is there."""
    made = folder / "samples-judged"
    shutil.rmtree(made, ignore_errors=True)
    sample = [options.mhla, "sample", "--run", str(folder), "--classes", "all", "--per-class", str(options.samples // options.classes),
              "--guidance", str(options.guidance), "--sampler", "ddim", "--steps", str(options.steps), "--batch", str(options.batch),
              "--device", options.device, "--out", str(made), "--sheet", "8x10"]
    subprocess.run(sample, check=True, stdout=subprocess.DEVNULL)
    judge = [options.mhla, "predict", "--run", options.judge, "--json", "--top", "1", "--batch", "500", "--device", options.device,
             str(made / "images")]
    rows = map(json.loads, subprocess.run(judge, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines())
    found = [row for row in rows if row["kind"] == "image"]
    asked = [int(re.search(r"-class(\d+)\.png$", row["image"]).group(1)) for row in found]
    return sum(row["top"][0]["class"] == number for row, number in zip(found, asked)) / len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, ["mhla", "linear", "softmax"])
    parser.add_argument("--judge", help="a run of `mhla train classify` on the same classes")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=10, help="of the data")
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=500, help="samples at a time")
    parser.add_argument("--device", default="cuda")
    options, common = runs.parse(parser)
    started = time.time()

    work = runs.by_seed(options, "diffusion", common)
    made = runs.together(options.jobs, work)
    columns = ["run", "held-out error", "its standard error"] + (["asked class found, %"] if options.judge else [])
    rows = []
    for name in dict.fromkeys(name for name, _ in made):
        keys = [key for key in made if key[0] == name]
        last = [[row for row in made[key]["log"] if row["kind"] == "eval"][-1] for key in keys]
        cells = [name, runs.spread([row["ema_mse"] for row in last], 5), f"{last[0]['ema_mse_se']:.5f}"]
        if options.judge:
            cells.append(runs.spread([100 * agreement(options, options.out / "-".join(key)) for key in keys], 1))
        rows.append(cells)
    runs.print_table(columns, rows)
    print(f"{len(work)} runs, {time.time() - started:.0f} s", file=sys.stderr)
    sys.exit(0 if len(made) == len(work) else 1)


if __name__ == "__main__":
    main()
