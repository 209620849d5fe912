#!/usr/bin/env python3
"""Teams of processes whose members are killed or stopped at random, on this machine.

    scripts/team_faults.py --mhla build/release/bin/mhla --kills 20 --stops 5
    scripts/team_faults.py --context-parallel 2 --context-method heads --kills 3 --deaths 2 --stops 2

Kills: a small language model trains under `torchrun --max-restarts`; a random rank is killed with -9 after every few
checkpoints, as often as --kills says. The run must end by itself, with the weights and the optimiser of a run that nobody
killed, byte for byte. Deaths and stops: a random rank of a run with `--nproc` is killed with -9, or stopped with SIGSTOP.
All others must be gone within --timeout and one second, with exit code 1 and one line that names the rank and a
checkpoint; after that, `--resume` must end with the bytes of the run that nobody disturbed. With --context-parallel the
ranks share sequences, so that they mostly wait for parts of sequences. Everything is drawn from --seed; the table tells
what was seen. Python 3 without packages; without torchrun the kills are skipped, and that is said.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

STEPS = "checkpoints/step-"


def command(options, out, steps, more):
    """The words of a training on eight leaves, a checkpoint every second step."""
    words = [options.mhla, "train", "lm", "--model", "mhla_10m", "--data", options.work / "text.jsonl", "--out", out]
    flags = {
        "batch": 8, "threads": 1, "context": 64, "valid": 0.1, "tokenizer": "bytes", "max-steps": steps, "ema": 0.9,
        "checkpoint-every": 2, "eval-every": 0, "lr": 0.01, "warmup-steps": 2,
    }  # fmt: skip
    for name, value in flags.items():
        words += [f"--{name}", value]
    for field in ("dim=32", "layers=1", "mlp=64", "chunk=16"):
        words += ["--set", field]
    if options.context_parallel > 1:
        words += ["--packing", "concatenate", "--context-parallel", options.context_parallel]
        words += ["--context-method", options.context_method]
    return [str(word) for word in [*words, "--deterministic-reduce", *more]]


def write_text(path):
    with path.open("w") as file:
        for i in range(40):
            file.write(json.dumps({"text": ("to be " if i % 2 == 0 else "or not ") * (10 + i)}) + "\n")


def ranks_of(out):
    """Processes of the run in the folder `out`, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"train" not in words or str(out).encode() not in words or b"--nproc" in words:
            continue
        if any(b"torchrun" in word for word in words):
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = int(entry.name)
    return found


def newest_step(out):
    steps = [int(path.name[5:]) for path in out.glob(STEPS + "*")]
    return max(steps, default=0)


def wait_for(what, seconds, reason):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.02)
    raise SystemExit(f"team_faults: {reason}")


def differing(one, other, steps):
    names = ["model.safetensors", "ema.safetensors", f"{STEPS}{steps:08}/trainer.safetensors"]
    return [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]


def unbroken(options, steps):
    """The folder of a run of so many steps that nobody disturbs."""
    out = options.work / f"whole{steps}"
    if not out.exists():
        subprocess.run(command(options, out, steps, ["--nproc", options.nproc]), check=True, stdout=subprocess.DEVNULL)
    return out


def kill_ranks(options, torchrun):
    """How often a rank was killed, and what differs then."""
    steps = options.steps_between * (options.kills + 1)
    whole, broken = unbroken(options, steps), options.work / "broken"
    # Debian's torchrun 1.13 fails on Python 3.11 unless it redirects something.
    words = [torchrun, "--nproc_per_node", str(options.nproc), "--max_restarts", str(options.kills + 2),
             "--monitor_interval", "0.1", "-r", "1", "-t", "1", "--log_dir", str(options.work / "torchrun"),
             "--master_port", str(options.port), "--no_python"]  # fmt: skip
    more = ["--shard-optimizer"] if options.shard_optimizer else []
    log = (options.work / "torchrun.log").open("w")
    job = subprocess.Popen(words + command(options, broken, steps, more), stdout=log, stderr=log)
    killed = []
    try:
        for number in range(options.kills):
            # At a checkpoint, up to one step later: in the middle of anything.
            wait_for(lambda n=number: newest_step(broken) >= options.steps_between * n + 2 or job.poll() is not None, 300,
                     f"no checkpoint came after kill {number}; see {log.name}")  # fmt: skip
            time.sleep(options.random.uniform(0, 0.2))
            ranks = wait_for(lambda: ranks_of(broken) or job.poll() is not None, 60, "no process of the run is there")
            if job.poll() is not None or ranks is True:
                break
            rank = options.random.choice(sorted(ranks))
            os.kill(ranks[rank], signal.SIGKILL)
            killed.append((rank, newest_step(broken)))
            wait_for(lambda r=ranks: all(ranks_of(broken).get(k) != v for k, v in r.items()) or job.poll() is not None, 90,
                     "the others did not leave")  # fmt: skip
        code = job.wait(timeout=600)
    finally:
        if job.poll() is None:
            job.terminate()
    if code != 0:
        raise SystemExit(f"team_faults: torchrun ended with {code}; see {log.name}")
    return killed, differing(whole, broken, steps)


def disturb_rank(options, number, name):
    """The rank that got the signal, seconds until all others were gone, what is wrong, and the line."""
    out, steps = options.work / f"{name}{number}", 60
    words = command(options, out, steps, ["--nproc", options.nproc, "--timeout", options.timeout])
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    reader = threading.Thread(target=lambda: said.append(job.stderr.read()))
    reader.start()
    try:
        wait_for(lambda: newest_step(out) >= 4, 120, "the run did not begin")
        ranks = wait_for(lambda: len(found := ranks_of(out)) == options.nproc and found, 60, "ranks are missing")
        rank = options.random.choice(sorted(ranks))
        os.kill(ranks[rank], signal.SIGSTOP if name == "stop" else signal.SIGKILL)
        start = time.monotonic()
        others = {other: process for other, process in ranks.items() if other != rank}
        wait_for(lambda: not any(ranks_of(out).get(k) == v for k, v in others.items()), 60 + options.timeout,
                 "the others did not leave")  # fmt: skip
        seconds = time.monotonic() - start
        code = job.wait(timeout=60)
    finally:
        if job.poll() is None:
            job.kill()
    reader.join()
    lines = said[0].strip().splitlines()
    wrong = [] if code == 1 and len(lines) == 1 else [f"exit code {code} and {len(lines)} lines"]
    reason = " does not answer" if name == "stop" else " failed: it was ended by signal 9"
    for part in (f"rank {rank}{reason}", f"last good checkpoint: {out}/{STEPS}"):
        if part not in said[0]:
            wrong.append(f"no '{part}'")
    if seconds > options.timeout + options.slack:
        wrong.append("late")
    words = [options.mhla, "train", "lm", "--resume", "--out", out, "--nproc", options.nproc]
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
    wrong += [f"{name} differs after --resume" for name in differing(unbroken(options, steps), out, steps)]
    return rank, seconds, wrong, " / ".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mhla", type=pathlib.Path, default="build/release/bin/mhla", help="the program")
    parser.add_argument("--work", type=pathlib.Path, default="build/team_faults", help="folder for the runs; emptied first")
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--deaths", type=int, default=0, help="kills of a rank of a run with --nproc")
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--context-parallel", type=int, default=1, help="processes that share every sequence")
    parser.add_argument("--context-method", default="summaries", help="what they exchange: summaries or heads")
    parser.add_argument("--steps-between", type=int, default=6, help="steps from one kill to the next")
    parser.add_argument("--timeout", type=float, default=5, help="of the runs with deaths and stops, in seconds")
    parser.add_argument("--slack", type=float, default=1, help="seconds beyond --timeout until all others are gone")
    parser.add_argument("--shard-optimizer", action="store_true", help="for the run whose ranks are killed")
    parser.add_argument("--port", type=int, default=29611, help="of torchrun")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.mhla, options.work = options.mhla.resolve(), options.work.resolve()
    options.random = random.Random(options.seed)
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    write_text(options.work / "text.jsonl")
    failures = 0
    torchrun = shutil.which("torchrun")
    if options.kills > 0 and torchrun is None:
        print("kills       left out: there is no torchrun")
    elif options.kills > 0:
        killed, differ = kill_ranks(options, torchrun)
        ranks = ", ".join(f"{rank} at {step}" for rank, step in killed)
        print(f"kills       {len(killed)} of {options.kills} (rank at step: {ranks})")
        print(f"            {'equal to the unbroken run' if not differ else 'DIFFER: ' + ', '.join(differ)}")
        failures += bool(differ) + (len(killed) < options.kills)
    for name, count in (("death", options.deaths), ("stop", options.stops)):
        for number in range(count):
            rank, seconds, wrong, line = disturb_rank(options, number, name)
            print(f"{name:11} rank {rank}: all others gone after {seconds:.2f} s (timeout {options.timeout:g}): {line}")
            print(f"            {'resumed to equal bytes' if not wrong else 'WRONG: ' + ', '.join(wrong)}", flush=True)
            failures += bool(wrong)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
