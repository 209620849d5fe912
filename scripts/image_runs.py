#!/usr/bin/env python3
"""image_runs.py CONFIG --data SET --out DIR [RUN ...]: trains one recipe of `mhla train diffusion` with several
attentions and seeds, samples from every run and measures the samples.

    scripts/image_runs.py recipes/dit_t32_cifar.json main --data folder:cifar10 --out runs/cifar --jobs 4 --mps

A RUN is a part (main, adapt, ablate), an arm of scripts/image_arms.py, or NAME=FLAGS; ablate@0 has only seed 0. Each run
is trained, then gets --samples images by DDIM, and a line in DIR/results.jsonl:
  the held-out denoising error of the averaged weights, with that of every image, so that runs can be paired;
  the Frechet distance, precision and recall against the test images in the features of two classifiers, which are
  trained first (DIR/judge-conv, DIR/judge-softmax), and the share of samples in which they find the class asked for;
  the distance to the nearest training image, over that of held-out images.
Runs are begun in the order of seeds, and of arms for each seed; after the word `then` come runs that begin when all seeds
of those before have begun: `mhla linear softmax then adapt`. Runs of the part adapt start from the run of another arm with the same
seed. A run with a line is not made again; one that was cut short goes on. With --minutes the script ends in time, begins
no run that cannot end by then, and the same command goes on later. --plan only says what is left and how long it takes.
--table prints the tables (scripts/image_table.py), as every call does at its end. --summary FILE writes all results, the
tables and what is left as one JSON; --known FILE takes the results of such a file over. report-SEED.html shows the runs
side by side. --pack DIR writes the results, the judges and the weights that adapt starts from as files of at most 16 MB;
unpacked into --out on another machine, the work goes on there. --samples 0 makes no samples and no classifiers: the held-out
error is all. After --, flags for all trainings. Python 3 only, without
packages.
"""

import argparse
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import image_arms
import image_table
import runs

NEAREST = 1000  # samples, and held-out images of class folders, of the comparison with training images


class Work(runs.Work):
    """What runs wait for, and the lines of those that are done."""

    def __init__(self, options):
        super().__init__(options)
        for row in json.loads(options.known.read_text())["runs"] if options.known else []:
            if row["run"] != "judges" and (row["run"], row["seed"]) not in self.known:  # judges are needed themselves
                self.keep(row)
        self.ready = {}  # (arm, seed): an event, set when that run is over
        self.judges_over = threading.Event()

    def expected(self, name):
        """Seconds of a run from its start to its line, by those that are over: the slowest of as many steps and jobs, or as
        much longer; 0 where none is over."""
        steps, jobs = image_arms.steps_of(name, self.options), self.options.jobs
        over = [row for row in self.known.values() if "steps" in row]
        return max((row["seconds"] * max(1.0, steps / row["steps"]) * jobs / row.get("jobs", jobs) for row in over), default=0.0)

    def wait_for_judges(self):
        while not self.judges_over.wait(1.0):
            if time.time() > self.end:
                raise runs.OutOfTime
        if ("judges", "") not in self.known:
            raise runs.OutOfTime if time.time() + self.options.spare > self.end else runs.Failed("there are no judges")


def held_out_images(options):
    """Of class folders a folder with NEAREST of the test images, made of links; of other sets all."""
    if options.held_out:
        return options.held_out
    kind, _, place = options.data.partition(":")
    folders = sorted((pathlib.Path(place) / "test").glob("*/")) if kind == "folder" else []
    if not folders:
        return f"{options.data}@test"
    some = options.out / "held-out"
    if not some.exists():
        part = options.out / "held-out.part"
        shutil.rmtree(part, ignore_errors=True)
        for folder in folders:
            (part / folder.name).mkdir(parents=True)
            for image in sorted(folder.iterdir())[: max(1, NEAREST // len(folders))]:
                (part / folder.name / image.name).symlink_to(image.resolve())
        part.rename(some)
    return str(some)


def make_judges(work):
    """The classifiers, and what they find in the training images: how near real images come."""
    options = work.options

    def make(name):
        folder = options.out / f"judge-{name}"
        log = f"{folder}.log"
        if not (folder / "model.safetensors").exists():
            work.call(["train", "classify", "--config", options.judge_config, *image_arms.split(image_arms.JUDGES[name]), "--data",
                       options.data, "--epochs", options.judge_epochs, "--device", options.device, *options.machine, "--resume",
                       *image_arms.split(options.judge_flags), "--out", folder], log)
        top1 = [row for row in runs.rows_of(folder / "log.jsonl") if row["kind"] == "eval"][-1]["top1"]
        found = judged(work, name, options.data, log, [])
        return {"top1": top1, **values(found)}

    if ("judges", "") in work.known:
        return
    with ThreadPoolExecutor(len(image_arms.JUDGES)) as pool:
        made = dict(zip(image_arms.JUDGES, pool.map(make, image_arms.JUDGES)))
    with work.writing:
        work.keep({"run": "judges", "seed": "", "judges": made})
    print("judges: " + ", ".join(f"{name} {100 * one['top1']:.1f} %" for name, one in made.items()), flush=True)


def judged(work, judge, samples, log, more):
    options = work.options
    rows = work.call(["eval", "images", "--samples", samples, "--reference", f"{options.data}@test", "--features",
                      f"classifier:{options.out / f'judge-{judge}'}", "--metrics", "fid,precision,recall", "--batch", 500,
                      "--device", options.device, *options.machine, "--json", *more], log, needed=options.spare)
    return [row for row in rows if row["kind"] == "metric"]


def values(rows):
    return {row["metric"]: row["value"] for row in rows}


def start_of(work, arm, name, seed):
    """Where a run starts: the folder that `mhla convert` made of the base, or none."""
    options = work.options
    if not arm.base:
        return []
    base = options.out / f"base-{arm.base}-{seed}"
    ready = work.ready.get((arm.base, seed))
    while ready and not (base / "config.json").exists() and not ready.wait(1.0):
        if time.time() > work.end:
            raise runs.OutOfTime
    if not (base / "config.json").exists():
        raise runs.Failed(f"starts from {arm.base} with seed {seed}, which is not there: train it first")
    if not arm.convert:
        return ["--init", base]
    start = options.out / f"start-{name}-{seed}"
    if not (start / "config.json").exists():
        work.call(["convert", base, start, *image_arms.split(arm.convert)], f"{start}.log")
    return ["--init", start]


def trained(work, arm, name, seed, common):
    """Trains; the rows of its log. Of a run that starts from another also a row for step 0: one step of no length."""
    options, folder = work.options, work.options.out / f"{name}-{seed}"
    steps = image_arms.steps_of(name, options)
    start = start_of(work, arm, name, seed)
    if not (folder / "checkpoints").exists() and time.time() + work.expected(name) > work.end:
        raise runs.OutOfTime
    words = ["--config", options.config, "--seed", seed, "--device", options.device, *options.machine, "--keep", 1, "--log-every", 50,
             "--data", options.data, *common, *image_arms.split(arm.flags), *start]
    rows = []
    if start:
        zero = options.out / f"zero-{name}-{seed}"
        if not (zero / "model.safetensors").exists():
            work.call(["train", "diffusion", *runs.once([*words, "--max-steps", 1, "--lr", 1e-30, "--warmup-steps", 0, "--sample-every", 0, "--checkpoint-every", 0,
                                                    "--out", zero, "--overwrite"])], f"{zero}.log")
        rows = [{**row, "step": 0} for row in runs.rows_of(zero / "log.jsonl") if row["kind"] == "eval"]
    if not (folder / "model.safetensors").exists():
        more = ["--max-steps", steps, "--eval-steps", max(1, steps // options.evals), "--sample-every", max(1, steps // options.sheets),
                "--checkpoint-every", max(500, steps // 4), "--resume", "--out", folder]
        work.call(["train", "diffusion", *runs.once([*words, *more])], f"{folder}.log")
    return rows + runs.rows_of(folder / "log.jsonl")


def keep_base(work, name, seed):
    """The averaged weights as f16, 11 MB: the same start on this machine and on others."""
    folder = work.options.out / f"base-{name}-{seed}"
    if name in image_arms.BASES and not (folder / "config.json").exists():
        work.call(["convert", work.options.out / f"{name}-{seed}", folder, "--weights", "ema", "--dtype", "f16"], f"{folder}.log")


def measured(work, name, seed, log, lap):
    """Samples of a run and what is measured of them; nothing with --samples 0."""
    options, folder = work.options, work.options.out / f"{name}-{seed}"
    if not options.samples:
        return {}
    images = options.out / f"images-{name}-{seed}"
    sampled = work.call(["sample", "--run", folder, "--weights", "ema", "--classes", "all", "--per-class", options.samples // options.classes,
                         "--guidance", options.guidance, "--sampler", "ddim", "--steps", options.sampler_steps, "--batch", options.batch,
                         "--device", options.device, *options.machine, *(["--precision", "bf16"] if options.device == "cuda" else []),
                         "--sheet", f"8x{options.classes}", "--resume", "--json", "--out", images], log)[-1]
    lap("sample")
    work.wait_for_judges()
    lap("wait for judges")
    judges = {judge: judged(work, judge, images, log, ["--classes", "from-names"]) for judge in image_arms.JUDGES}
    few = options.out / f"nearest-{name}-{seed}"
    few.mkdir(exist_ok=True)
    for image in sorted((images / "images").iterdir())[:NEAREST]:
        if not (few / image.name).exists():
            os.link(image, few / image.name)
    near = work.call(["eval", "images", "--samples", few, "--reference", options.data, "--held-out", held_out_images(options),
                      "--features", "pixels", "--metrics", "nearest", "--sheet", f"{folder}/nearest.png", *options.machine, "--json"],
                     log, needed=options.spare)
    nearest = next(row for row in near if row["kind"] == "metric")
    lap("measure")
    metrics = [row for found in judges.values() for row in found] + [nearest]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))  # for mhla report
    shutil.copy(images / "sheet.png", folder / "sheet.png")
    return {"samples": sampled["images"] + sampled["kept"], "sampled_per_s": sampled["images_per_s"], "guidance": options.guidance,
            "judges": {judge: values(found) for judge, found in judges.items()}, "nearest": nearest["value"], "copies": nearest["copies"]}


def run(work, arm, name, seed, common):
    options, folder = work.options, work.options.out / f"{name}-{seed}"
    log, begun, stages = f"{folder}.log", time.time(), {}

    def lap(stage):
        stages[stage] = time.time() - begun - sum(stages.values())

    rows = trained(work, arm, name, seed, common)
    keep_base(work, name, seed)
    lap("train")
    score = work.call(["eval", "diffusion", "--run", folder, "--weights", "ema", "--each", "--json"], log, needed=5)[-1]
    samples = measured(work, name, seed, log, lap)
    steps = [row for row in rows if row["kind"] == "step"]
    keep = ("step", "mse", "mse_se", "ema_mse", "ema_mse_se", "vb", "ema_vb")
    work.add({
        "run": name, "seed": seed, "steps": image_arms.steps_of(name, options), "flags": arm.flags, "base": arm.base,
        "mse": score["mse"], "mse_se": score["mse_se"], "vb": score.get("vb"), "held_out_images": score["images"], "each": score["each"],
        "curve": [{key: row[key] for key in keep if key in row} for row in rows if row["kind"] == "eval"],
        "images_per_s": sorted(row["images_per_s"] for row in steps)[len(steps) // 2], **samples, "seconds": time.time() - begun, "stages": stages,
        "jobs": options.jobs,
    })
    for kind in ["nearest"] if options.keep_images else ["nearest", "images"]:
        shutil.rmtree(options.out / f"{kind}-{name}-{seed}", ignore_errors=True)


def pack(out, target):
    """results.tar, judge-*.tar, base-*.tar: unpacked into --out elsewhere, they are enough to go on."""
    target.mkdir(parents=True, exist_ok=True)
    small = [out / "results.jsonl", *out.glob("*.log")]
    for folder in out.glob("*/"):
        small += [folder / name for name in ("log.jsonl", "train.json", "config.json", "sheet.png", "nearest.png", "metrics.jsonl") if (folder / name).exists()]
        small += sorted(folder.glob("samples/*.png"))
    whole = {"results": small}
    for folder in [*out.glob("judge-*/"), *out.glob("base-*/")]:
        names = ("model.safetensors", "config.json", "generation.json", "classes.json", "preprocess.json", "train.json", "log.jsonl")
        whole[folder.name] = [folder / name for name in names if (folder / name).exists()]
    for name, files in whole.items():
        with tarfile.open(target / f"{name}.tar", "w") as tar:
            for file in files:
                if file.exists():
                    tar.add(file, file.relative_to(out))
    (target / "tables.md").write_text(image_table.tables(out / "results.jsonl"))
    for page in out.glob("report-*.html"):
        shutil.copy(page, target)


def report(work, arms):
    """report-SEED.html: the page of the runs that are complete, by seed."""
    for seed in work.options.seeds.split(","):
        folders = [work.options.out / f"{name}-{seed}" for name in arms if (work.options.out / f"{name}-{seed}" / "metrics.jsonl").exists()]
        if folders:
            words = [work.options.mhla, "report", "--run", *folders, "--out", work.options.out / f"report-{seed}.html"]
            subprocess.run(list(map(str, words)), check=False, stdout=subprocess.DEVNULL)


def summary(work, left, failed):
    """Everything that was measured, in one JSON: runs with their held-out errors by image, in five digits."""
    known = work.known.values()
    rounded = [{**row, "each": [None if one is None else float(f"{one:.5g}") for one in row["each"]]} if "each" in row else row for row in known]
    return {"runs": rounded, "left": left, "failed": failed, "jobs": work.options.jobs,
            "tables": image_table.tables(work.options.out / "results.jsonl")}


def begin_mps():
    """Whether several processes share the card now; where the service is missing or refused, they take turns."""
    try:
        return subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False).returncode == 0
    except OSError as error:
        print(f"image_runs: no multi-process service, runs take turns on the card: {error}", file=sys.stderr, flush=True)
        return False


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runs.add_arguments(parser, ["main"])
    parser.add_argument("--data", default="folder:cifar10", help="as mhla train diffusion takes it; with test images")
    parser.add_argument("--held-out", help="images for the comparison with training images (default: of the test images)")
    parser.add_argument("--known", type=pathlib.Path, help="a JSON of --summary: its results are taken over")
    parser.add_argument("--classes", type=int, default=10, help="of the data")
    parser.add_argument("--steps", type=int, default=8000, help="of a training")
    parser.add_argument("--adapt-steps", type=int, default=5000, help="of a training of the part adapt")
    parser.add_argument("--evals", type=int, default=10, help="points of a curve")
    parser.add_argument("--sheets", type=int, default=4, help="sheets of samples in a training")
    parser.add_argument("--samples", type=int, default=10000, help="of every run; 0: none")
    parser.add_argument("--sampler-steps", type=int, default=50)
    parser.add_argument("--guidance", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=1000, help="samples at a time")
    parser.add_argument("--judge-config", default="recipes/vit_256_conv.json")
    parser.add_argument("--judge-epochs", type=int, default=30)
    parser.add_argument("--judge-flags", default="", help="more flags for their training, as one text")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after these; 0: when all is done")
    parser.add_argument("--spare", type=float, default=20.0, help="with --minutes: seconds before the end in which nothing more is measured")
    parser.add_argument("--rate", type=float, default=25000.0, help="for --plan: images a second in training")
    parser.add_argument("--mps", action="store_true", help="start NVIDIA's multi-process service, so that runs share the card")
    parser.add_argument("--keep-images", action="store_true", help="keep the samples; otherwise a sheet of each run stays")
    parser.add_argument("--plan", action="store_true", help="only say what is left and how long it takes")
    parser.add_argument("--table", action="store_true", help="only print the tables of the results")
    parser.add_argument("--summary", type=pathlib.Path, help="at the end, write all results as this JSON file")
    parser.add_argument("--pack", type=pathlib.Path, help="at the end, write the results and what adapt needs as files here")
    return runs.parse(parser)


def main():
    options, common = arguments()
    options.machine = ["--threads", max(1, (os.cpu_count() or 1) // options.jobs)]
    work, groups = Work(options), image_arms.grouped(options.runs)
    arms = {name: arm for group in groups for name, arm in group.items()}
    if options.plan or options.table:
        if options.plan:
            image_arms.print_plan(arms, options, work.known)
        else:
            print(image_table.tables(options.out / "results.jsonl"), end="")
        return
    lock = open(options.out / ".lock", "w")  # held until the script ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"image_runs: another one works in {options.out}")
    shares = options.mps and begin_mps()
    todo = [key for key in image_arms.in_order(groups, options.seeds.split(",")) if key not in work.known]
    work.ready = {key: threading.Event() for key in todo}
    held_out_images(options)
    left, failed = [], []

    def guarded(key, call):
        try:
            call()
        except runs.OutOfTime:
            left.append(" ".join(key))
        except runs.Failed as error:
            failed.append(" ".join(key))
            print(f"{' '.join(key)}: {error}", file=sys.stderr, flush=True)

    def one(key):
        try:
            guarded(key, lambda: run(work, arms[key[0]], *key, common))
        finally:
            work.ready[key].set()

    def judges():
        try:
            guarded(("judges",), lambda: make_judges(work))
        finally:
            work.judges_over.set()

    try:
        with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(options.jobs) as pool:
            others = [*([beside.submit(judges)] if options.samples else []), *(pool.submit(one, key) for key in todo)]
            for job in others:
                job.result()
    finally:
        if shares:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
    report(work, arms)
    print(image_table.tables(options.out / "results.jsonl"), end="", flush=True)
    if options.summary:
        options.summary.parent.mkdir(parents=True, exist_ok=True)
        options.summary.write_text(json.dumps(summary(work, left, failed)))
    if options.pack:
        pack(options.out, options.pack)
    if left:
        print(f"left: {', '.join(left)}; the same command goes on", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
