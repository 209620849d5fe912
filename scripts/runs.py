"""What image_runs.py, video_runs.py, classify_runs.py and lm_runs.py share: runs of `mhla train` by name, made once, some of them at a time."""

import functools
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ABLATIONS = {
    "uniform": "--attention mhla --set mix_init=uniform",
    "frozen": "--attention mhla --set learn_mix=false",
}


def add_arguments(parser, runs):
    parser.add_argument("config")
    parser.add_argument("runs", nargs="*", default=runs)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--mhla", default="build/release/bin/mhla")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=3)


def parse(parser):
    """Options of the script, and behind -- the flags for all runs."""
    own, common = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, common = own[:at], own[at + 1 :]
    options = parser.parse_intermixed_args(own)
    options.out.mkdir(parents=True, exist_ok=True)
    return options, common


def named(run):
    """NAME or NAME=FLAGS: the name and its flags."""
    name, _, flags = run.partition("=")
    return name, shlex.split(flags or ABLATIONS.get(name, f"--attention {name}"))


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def train(mhla, task, config, folder, flags):
    """The rows of the log of the run in `folder`, made now unless it is complete; or what failed.

    One that was cut short goes on from its newest checkpoint, or begins again where it has none."""
    if not (folder / "model.safetensors").exists():
        command = [mhla, "train", task, "--resume", "--config", config, "--out", str(folder), *flags]
        log = pathlib.Path(f"{folder}.log")
        with open(log, "w") as to:
            status = subprocess.run(command, stdout=to, stderr=subprocess.STDOUT).returncode
        if status != 0:
            lines = log.read_text().strip().splitlines()
            return {"failed": f"exit {status}: {lines[-1] if lines else ''}"}
    return {"log": rows_of(folder / "log.jsonl")}


def by_seed(options, task, common):
    """{(name, seed): a call that trains it} for every run and seed that was asked for."""
    work = {}
    for seed in options.seeds.split(","):
        for name, flags in map(named, options.runs):
            folder = options.out / f"{name}-{seed}"
            work[name, seed] = functools.partial(
                train, options.mhla, task, options.config, folder, [*flags, "--seed", seed, *common]
            )
    return work


def together(jobs, work):
    """What the calls of {key: call} return, `jobs` at a time; those that failed are reported and left out.

    Ctrl-C reaches the runs as well, which save and end; no other one is begun."""
    with ThreadPoolExecutor(jobs) as pool:
        made = {key: pool.submit(call) for key, call in work.items()}
        try:
            results = {key: job.result() for key, job in made.items()}
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            sys.exit("stopped: the same command goes on")
    for key, result in results.items():
        if "failed" in result:
            print(f"{' '.join(key)}: {result['failed']}", file=sys.stderr)
    return {key: result for key, result in results.items() if "failed" not in result}


class OutOfTime(Exception):
    pass


class Failed(Exception):
    pass


class Work:
    """Commands of mhla, none after options.minutes are over; the lines of results.jsonl in options.out by (run, seed)."""

    def __init__(self, options):
        self.options, self.writing = options, threading.Lock()
        self.end = time.time() + 60 * options.minutes if options.minutes else float("inf")
        self.known = {(row["run"], row["seed"]): row for row in rows_of(options.out / "results.jsonl")}

    def call(self, words, log, needed=0.0):
        """The lines of its output as JSON. `needed`: seconds without which it is not begun. At the end of the time it
        gets Ctrl-C, upon which mhla saves what it has."""
        if time.time() + needed > self.end:
            raise OutOfTime
        words = [self.options.mhla, *map(str, words)]
        with open(log, "a") as errors, open(f"{log}.out", "w") as out:
            print("$", *words, file=errors, flush=True)
            process = subprocess.Popen(words, stdout=out, stderr=errors, start_new_session=True)
            stopped = False
            while True:
                try:
                    process.wait(min(1.0, max(0.05, self.end - time.time())))
                    break
                except subprocess.TimeoutExpired:
                    if time.time() >= self.end + (30 if stopped else 0):
                        os.killpg(process.pid, signal.SIGKILL if stopped else signal.SIGINT)
                        stopped = True
        lines = pathlib.Path(f"{log}.out").read_text()
        os.unlink(f"{log}.out")
        if stopped:
            raise OutOfTime
        if process.returncode != 0:
            last = pathlib.Path(log).read_text().strip().splitlines()[-1:]
            raise Failed(f"{words[1]} {words[2]}: exit {process.returncode}: {''.join(last)}")
        return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]

    def keep(self, row):
        self.known[row["run"], row["seed"]] = row
        with open(self.options.out / "results.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    def add(self, row):
        with self.writing:
            self.keep(row)
            print(f"{row['run']} {row['seed']}: held-out error {row['mse']:.5f}", flush=True)


def once(words):
    """Words of a command line in which the last of several equal flags counts; --set is repeatable."""
    flags = []
    for word in map(str, words):
        if word.startswith("--"):
            flags.append([word])
        else:
            flags[-1].append(word)
    last = {flag[0] if flag[0] != "--set" else tuple(flag): flag for flag in flags}
    return [word for flag in last.values() for word in flag]


def spread(values, digits=2):
    """The mean, and the least and the most of several."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def print_table(columns, rows):
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)
