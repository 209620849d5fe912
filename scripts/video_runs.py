#!/usr/bin/env python3
"""video_runs.py CONFIG --out DIR [ARM ...]: the experiment of video generation: a base with softmax attention, copied into
arms with other attentions, each fine-tuned on the same clips, times and noise, evaluated and judged.

    scripts/video_runs.py recipes/video_garments.json --out runs/video --demo recipes/video_garments_demo.json --minutes 9

An ARM is softmax, mhla, hybrid, linear (the default: all four), one of them with -128 behind it (clips of 128 x 128, a
quarter of the steps), or NAME=FLAGS of `mhla train video`. Order: the base of the first seed; then for every seed all
arms. With --bases every seed has a base of its own, otherwise all arms start from the first one and the seed is that of
the fine-tuning. The judge is trained on real clips when the base is evaluated. At the end DIR/report.html has curves, clips
and metrics of the arms.
Every run gets a line in DIR/results.jsonl: the held-out loss with that of every clip (so that runs are paired), the
curve, the share of samples in which the judge finds the attributes of the caption, the Frechet distance, the motion. A
run with a line is not made again, one that was cut short goes on. With --minutes the script ends in time; the same
command goes on later. --demo RECIPE also trains the small model that comes with mhla, beside the base (one of them does
not fill a card), and writes it in bf16 to DIR/demo-model with a GIF. --base-seconds chooses the steps of the base by a
measurement. --base MODEL starts all arms from a folder that is there already, such as the base of another machine in bf16
(`mhla convert DIR/base-0 MODEL --dtype bf16`). --table only prints the tables. --pack FILE writes results, logs, sheets of samples and the small model as one
tar, without other weights. After --, flags for all trainings of the experiment. Python 3 only, without packages.
"""

import argparse
import fcntl
import json
import math
import os
import pathlib
import shlex
import statistics
import sys
import tarfile
import threading
import time

import runs

# The same module with one block is linear attention: nothing but the blocks differs.
ARMS = {
    "softmax": "--attention softmax",
    "hybrid": "--attention mhla --layers every-3rd-kept",
    "mhla": "--attention mhla",
    "linear": "--attention linear --set normalizer=none",
}
LONG = "--size 128x128 --batch 8 --set blocks=[4,4,8]"
PROMPTS = ["a color1 class7 moves dir1 fast on a ground2", "a color4 class1 moves dir6 slow on a ground0"]
ATTRIBUTES = ("class", "colour", "direction", "speed", "ground")


def chosen(words):
    """{name: flags} in their order."""
    arms = {}
    for word in words:
        name, equal, flags = word.partition("=")
        kind = name.removesuffix("-128")
        if equal:
            arms[name] = flags
        elif kind in ARMS:
            arms[name] = ARMS[kind] + (f" {LONG}" if name != kind else "")
        else:
            raise SystemExit(f"video_runs: '{word}' is no arm ({', '.join(ARMS)}), one of these with -128, or NAME=FLAGS")
    return arms


def train(work, name, seed, flags, steps, common):
    """The rows of the log of DIR/NAME-SEED, which is trained, goes on or is complete."""
    options, folder = work.options, work.options.out / f"{name}-{seed}"
    if not (folder / "model.safetensors").exists():
        words = ["--config", options.config, "--seed", seed, "--device", options.device, "--max-steps", steps, "--eval-steps",
                 max(1, steps // options.evals), "--sample-every", steps, "--checkpoint-every", max(100, steps // 4), "--keep", 1,
                 "--log-every", 25, "--test-clips", options.test_clips, "--threads", options.threads, *flags, *common, "--resume", "--out", folder]
        work.call(["train", "video", *runs.once(words)], f"{folder}.log", needed=10)
    return runs.rows_of(folder / "log.jsonl")


def evaluate(work, name, seed, rows, flags, steps, begun):
    options, folder = work.options, work.options.out / f"{name}-{seed}"
    long = name.endswith("-128")
    judge = options.out / ("judge-128" if long else "judge")
    samples = max(2, options.samples // 4) if long and options.samples else options.samples
    words = ["eval", "video", "--run", folder, "--each", "--json", "--threads", options.threads]
    if samples >= 2:
        words += ["--judge", judge, "--judge-steps", options.judge_steps, "--samples", samples, "--steps", options.sampler_steps,
                  "--guidance", options.guidance]
    score = work.call(words, f"{folder}.log", needed=5)[-1]
    metrics(folder, score.get("judged"))
    logged = [row for row in rows if row["kind"] == "step"]
    curve = [{key: row[key] for key in ("step", "mse", "mse_se")} for row in rows if row["kind"] == "eval"]
    rates = sorted(row["clips_per_s"] for row in logged)
    work.add({
        "run": name, "seed": seed, "steps": steps, "flags": " ".join(map(str, flags)), "mse": score["mse"], "mse_se": score["mse_se"],
        "by_time": score["by_time"], "clips": score["clips"], "each": score["each"], "curve": curve,
        "clips_per_s": rates[len(rates) // 2] if rates else None, "judged": score.get("judged"), "seconds": time.time() - begun,
    })


def page(work, names):
    """Moving pictures of some captions in samples/ of every run, and DIR/report.html with all of them side by side."""
    options = work.options
    folders = [options.out / name for name in names if (options.out / name / "model.safetensors").exists()]
    prompts = options.out / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    for folder in folders:
        (folder / "samples").mkdir(exist_ok=True)
        work.call(["sample", "video", "--model", folder, "--prompts", prompts, "--sampler", "euler", "--steps", options.sampler_steps, "--guidance",
                   options.guidance, "--fps", 8, "--device", options.device, "--precision", "f32", "--out", folder / "samples" / "clip.gif"],
                  f"{folder}.log", needed=5)  # fmt: skip
    if folders:
        work.call(["report", "--run", *folders, "--title", "Attentions of a video model", "--out", options.out / "report.html"], options.out / "report.log")


def metrics(folder, judged):
    """Rows for `mhla report`."""
    if not judged:
        return
    values = {"Frechet distance": judged["frechet"], "attributes found": judged["attribute_mean"], "jitter, px": judged["jitter"], "flicker": judged["flicker"]}
    lines = [{"kind": "metric", "metric": name, "features": "judge", "images": judged["samples"], "reference": "held-out clips", "value": value}
             for name, value in values.items()]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def one(work, name, seed, flags, steps, common):
    if (name, seed) in work.known:
        return
    begun = time.time()
    evaluate(work, name, seed, train(work, name, seed, flags, steps, common), flags, steps, begun)


def paired(mine, other):
    """Mean difference of two runs over the held-out clips, and its standard error."""
    each = [a - b for a, b in zip(mine["each"], other["each"], strict=True) if a is not None and b is not None]
    return statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0


def excess(rows, name, seed, tail):
    """Of the distance from softmax to linear attention, the share that is left."""
    three = [rows.get((arm + tail, seed)) for arm in (name, "softmax", "linear")]
    if None in three or three[2]["mse"] == three[1]["mse"]:
        return None
    return (three[0]["mse"] - three[1]["mse"]) / (three[2]["mse"] - three[1]["mse"])


def attribute(row, name):
    return next(one["samples"] for one in row["judged"]["attributes"] if one["name"] == name)


def table(rows, names, tail=""):
    columns = ["arm", "seeds", "held-out loss", "its standard error", "against softmax, paired", "excess of linear's",
               *(f"{name}, %" for name in ATTRIBUTES), "mean, %", "Frechet distance", "jitter, px", "flicker", "clips/s in training"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name in names:
        mine = [(seed, row) for (arm, seed), row in rows.items() if arm == name]
        if not mine:
            continue
        pairs = [paired(row, rows["softmax" + tail, seed]) for seed, row in mine if ("softmax" + tail, seed) in rows and name != "softmax" + tail]
        parts = [part for part in (excess(rows, name.removesuffix(tail), seed, tail) for seed, _ in mine if name != "base") if part is not None]
        judged = [row for _, row in mine if row["judged"]]
        of = lambda pick, digits, scale=1.0: runs.spread([scale * pick(row) for row in judged], digits) if judged else ""
        rates = [row["clips_per_s"] for _, row in mine if row["clips_per_s"]]
        cells = [name, str(len(mine)), runs.spread([row["mse"] for _, row in mine], 5), f"{statistics.mean(row['mse_se'] for _, row in mine):.5f}",
                 f"{runs.spread([mean for mean, _ in pairs], 5)} +- {math.sqrt(statistics.mean(error**2 for _, error in pairs)):.5f}" if pairs else "",
                 runs.spread(parts, 2) if parts else "", *(of(lambda row, key=key: attribute(row, key), 1, 100.0) for key in ATTRIBUTES),
                 of(lambda row: row["judged"]["attribute_mean"], 1, 100.0), of(lambda row: row["judged"]["frechet"], 2),
                 of(lambda row: row["judged"]["jitter"], 2), of(lambda row: row["judged"]["flicker"], 3),
                 runs.spread(rates, 0) if rates else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def curves(rows, names):
    by_step = {name: {} for name in names}
    for (arm, _), row in rows.items():
        for point in row["curve"] if arm in by_step else []:
            by_step[arm].setdefault(point["step"], []).append(point["mse"])
    steps = sorted({step for points in by_step.values() for step in points})
    lines = ["| steps | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for step in steps:
        lines.append(f"| {step} | " + " | ".join(f"{statistics.mean(by_step[name][step]):.5f}" if step in by_step[name] else "" for name in names) + " |")
    return "\n".join(lines) + "\n"


def tables(path):
    rows = {(row["run"], row["seed"]): row for row in runs.rows_of(path)}
    out = []
    judged = next((row["judged"] for row in rows.values() if row["judged"]), None)
    if judged:
        real = ", ".join(f"{one['name']} {100 * one['real']:.1f} % (by chance {100 * one['chance']:.1f})" for one in judged["attributes"])
        out.append(f"On real clips the judge finds {real}; Frechet distance of training clips {judged['frechet_real']:.2f}, "
                   f"jitter {judged['jitter_real']:.2f} px, flicker {judged['flicker_real']:.3f}.\n")
    names = list(dict.fromkeys(arm for arm, _ in rows))
    short, long = [name for name in names if not name.endswith("-128")], [name for name in names if name.endswith("-128")]
    for title, group, tail in (("64 x 64", short, ""), ("128 x 128", long, "-128")):
        if group:
            out.append(f"## Clips of {title}\n\n{table(rows, group, tail)}\nHeld-out loss by step of the fine-tuning:\n\n{curves(rows, [n for n in group if n != 'base'])}")
    return "\n".join(out)


def measured_steps(work, common):
    """Steps of the base that fit options.base_seconds, measured once and kept for a continuation."""
    options, kept = work.options, work.options.out / "base_steps.json"
    if not kept.exists():
        recipe = json.loads(pathlib.Path(options.config).read_text())
        words = runs.once(["--model", recipe["model"], "--batch", recipe["batch"], *common])
        own = dict(zip(words[::2], words[1::2], strict=True))
        row = work.call(["bench", "model", "--pass", "train", "--attention", "softmax", "--min-time", 3, "--frames", recipe["frames"],
                         "--size", recipe["size"], "--device", options.device, "--model", own["--model"], "--batch", own["--batch"], "--json"],
                        options.out / "base_steps.log", needed=10)[-1]  # fmt: skip
        steps = max(100, int(options.base_seconds / (1e-3 * row["ms"]) / 50) * 50)
        kept.write_text(json.dumps({"steps": steps, "ms": row["ms"]}) + "\n")
    return json.loads(kept.read_text())["steps"]


def demo(work):
    """The small model that comes with mhla, in bf16, and a GIF of its."""
    options, folder, target = work.options, work.options.out / "demo", work.options.out / "demo-model"
    log = options.out / "demo.log"
    if not (folder / "model.safetensors").exists():
        words = ["--config", options.demo, "--seed", 0, "--device", options.device, "--checkpoint-every", 1000, "--keep", 1, "--log-every", 100,
                 "--threads", options.threads, *shlex.split(options.demo_flags), "--resume", "--out", folder]
        work.call(["train", "video", *runs.once(words)], log, needed=20)
    if not (target / "config.json").exists():
        average = ["--weights", "ema"] if (folder / "ema.safetensors").exists() else []
        work.call(["convert", folder, target, "--dtype", "bf16", *average], log)
    if not (options.out / "demo.gif").exists():
        work.call(["sample", "video", "--model", target, "--prompt", PROMPTS[0], "--steps", options.sampler_steps, "--guidance", options.guidance,
                   "--device", options.device, "--precision", "f32", "--fps", 8, "--out", options.out / "demo.gif"], log)


def pack(out, target):
    with tarfile.open(target, "w") as tar:
        for pattern in ("results.jsonl", "base_steps.json", "*.log", "*/log.jsonl", "*/train.json", "*/config.json", "*/samples/*.png", "*/samples/*.gif", "*/metrics.jsonl", "report.html",
                        "demo-model/*", "demo.gif"):  # fmt: skip
            for file in sorted(out.glob(pattern)):
                tar.add(file, file.relative_to(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, list(ARMS))
    parser.set_defaults(seeds="0,1")
    parser.add_argument("--base-steps", type=int, default=1600, help="of the base")
    parser.add_argument("--base-seconds", type=float, default=0.0, help="measure a step, and choose the steps of the base by it")
    parser.add_argument("--demo", type=pathlib.Path, help="recipe of the small model that comes with mhla: train it, too")
    parser.add_argument("--demo-flags", default="", help="of its training, as one text")
    parser.add_argument("--steps", type=int, default=400, help="of an arm")
    parser.add_argument("--base", type=pathlib.Path, help="run or model that all arms start from, instead of a new one")
    parser.add_argument("--bases", action="store_true", help="a base for every seed")
    parser.add_argument("--base-flags", default="--attention softmax", help="of the base, as one text")
    parser.add_argument("--arm-flags", default="--lr 2e-4 --schedule constant --warmup-steps 50", help="of all arms, as one text")
    parser.add_argument("--evals", type=int, default=4, help="points of a curve")
    parser.add_argument("--test-clips", type=int, default=256)
    parser.add_argument("--samples", type=int, default=256, help="judged clips of every run; 0: none")
    parser.add_argument("--sampler-steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--judge-steps", type=int, default=600)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=0.0, help="end after these; 0: when all is done")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    parser.add_argument("--pack", type=pathlib.Path, help="at the end, write what was made as one tar file")
    options, common = runs.parse(parser)
    if options.table:
        print(tables(options.out / "results.jsonl"), end="")
        return
    lock = open(options.out / ".lock", "w")  # held until the script ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"video_runs: another one works in {options.out}")
    work, arms, seeds = runs.Work(options), chosen(options.runs), options.seeds.split(",")
    left, failed = [], []

    def guarded(name, seed, flags, steps):
        try:
            one(work, name, seed, flags, steps, common)
        except runs.OutOfTime:
            left.append(f"{name} {seed}")
        except runs.Failed as error:
            failed.append(f"{name} {seed}")
            print(f"{name} {seed}: {error}", file=sys.stderr, flush=True)

    def small():
        try:
            demo(work)
        except runs.OutOfTime:
            left.append("demo")
        except runs.Failed as error:
            failed.append("demo")
            print(f"demo: {error}", file=sys.stderr, flush=True)

    if options.base and not (options.base / "config.json").exists():
        sys.exit(f"video_runs: --base: {options.base} has no config.json, expected the folder of a run or of a model")
    if options.base_seconds and not options.base:
        try:
            options.base_steps = measured_steps(work, common)
        except (runs.OutOfTime, runs.Failed) as error:
            sys.exit(f"video_runs: no step could be timed: {error}")
    beside = threading.Thread(target=small)
    if options.demo:
        beside.start()
    for seed in seeds:
        own = seed if options.bases else seeds[0]
        if not options.base:
            guarded("base", own, shlex.split(options.base_flags), options.base_steps)
        base = options.base or options.out / f"base-{own}"
        if not options.base and not (base / "model.safetensors").exists():
            break
        for name, flags in arms.items():
            steps = max(1, options.steps // 4) if name.endswith("-128") else options.steps
            guarded(name, seed, [*shlex.split(flags), *shlex.split(options.arm_flags), "--init", base], steps)
    if options.demo:
        beside.join()
    try:
        page(work, [f"{name}-{seeds[0]}" for name in arms if not name.endswith("-128")])
    except runs.OutOfTime:
        left.append("report")
    except runs.Failed as error:
        failed.append("report")
        print(f"report: {error}", file=sys.stderr, flush=True)
    text = tables(options.out / "results.jsonl")
    (options.out / "tables.md").write_text(text)
    print(text, end="")
    if options.pack:
        pack(options.out, options.pack)
    if left:
        print(f"left: {', '.join(left)}; the same command goes on", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
