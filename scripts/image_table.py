#!/usr/bin/env python3
"""image_table.py RESULTS [--against ARM] [--svg FILE]: the tables of docs/experiments/dit_t32.md from the results.jsonl of
image_runs.py, or from the JSON of its --summary. --svg draws the curves of fast adaptation.

Several seeds of an arm are one row: the mean, and the least and the most. The difference in the held-out error is
paired, image by image and seed by seed; its standard error is that of the mean over images, averaged over seeds. What is measured of samples is of the seeds that have some.
Python 3 only, without packages.
"""

import argparse
import json
import math
import pathlib
import statistics

import curves
import image_arms
import runs

GROUPS = {
    "Attention": image_arms.PARTS["main"],
    "Convolution and gate (Table 12 of the paper)": ["mhla", "mhla-cpe", "mhla-gate", "mhla-both"],
    "Blocks M": ["mhla-m4", "mhla", "mhla-m64"],
    "Start of the mixing matrix, learned or frozen (Table 7 of the paper)": ["mhla", "mhla-local-frozen", "mhla-uniform-learned", "mhla-uniform"],
    "Fast adaptation, at the end": image_arms.PARTS["adapt"],
}


def paired(mine, other):
    """Mean difference of two runs over the held-out images, and its standard error."""
    each = [a - b for a, b in zip(mine["each"], other["each"], strict=True) if a is not None and b is not None]
    return statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))


def difference(rows, name, against):
    """Paired differences of the seeds that both arms have, as text."""
    found = [paired(rows[name, seed], rows[against, seed]) for arm, seed in rows if arm == name and (against, seed) in rows]
    if not found or name == against:
        return ""
    means, error = [mean for mean, _ in found], math.sqrt(statistics.mean(error**2 for _, error in found))
    return f"{runs.spread(means, 5)} +- {error:.5f}"


def table(rows, names, against):
    names = [name for name in names if any(arm == name for arm, _ in rows)]
    if not names:
        return ""
    judges = list(image_arms.JUDGES)
    columns = ["arm", "seeds", "held-out error", "its standard error", f"against {against}",
               *(f"{what}, {judge}" for what in ("Frechet distance", "precision", "recall", "class found, %") for judge in judges),
               "nearest", "copies, %"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name in names:
        mine = [row for (arm, _), row in rows.items() if arm == name]
        sampled = [row for row in mine if "judges" in row]
        shown = lambda values, digits: runs.spread(values, digits) if values else ""
        of_judges = lambda key, digits, scale=1.0: [shown([scale * row["judges"][judge][key] for row in sampled], digits) for judge in judges]
        cells = [name, str(len(mine)), runs.spread([row["mse"] for row in mine], 5), f"{statistics.mean(row['mse_se'] for row in mine):.5f}",
                 difference(rows, name, against), *of_judges("fid", 3), *of_judges("precision", 3), *of_judges("recall", 3),
                 *of_judges("accuracy", 1, 100.0), shown([row["nearest"] for row in sampled], 3),
                 shown([100 * row["copies"] for row in sampled], 2)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def rows_of(path):
    """{(run, seed): row} of lines, or of a summary."""
    rows = json.loads(path.read_text())["runs"] if path.suffix == ".json" else runs.rows_of(path)
    return {(row["run"], row["seed"]): row for row in rows}


def adaptation(rows):
    """{arm: {step: held-out error}}, the mean of its seeds: the runs that start from another, and their controls."""
    found = {name: {} for name in image_arms.PARTS["adapt"] if any(arm == name for arm, _ in rows)}
    for (arm, _), row in rows.items():
        for point in row["curve"] if arm in found else []:
            found[arm].setdefault(point["step"], []).append(point["mse"] if point["step"] == 0 else point["ema_mse"])
    return {arm: {step: statistics.mean(values) for step, values in sorted(points.items())} for arm, points in found.items()}


def by_step(rows):
    found = adaptation(rows)
    if not found:
        return ""
    steps = sorted({step for points in found.values() for step in points})
    lines = ["| steps | " + " | ".join(found) + " |", "|" + "---|" * (len(found) + 1)]
    for step in steps:
        lines.append(f"| {step} | " + " | ".join(f"{points[step]:.5f}" if step in points else "" for points in found.values()) + " |")
    return "\n".join(lines) + "\n"


def drawn(rows):
    shown = {name: list(points.items()) for name, points in adaptation(rows).items()}
    least = min(value for points in shown.values() for _, value in points)
    return curves.drawn(shown, "held-out denoising error", "steps of fine-tuning", round(least, 3) - 0.001, 0.05, value="{:.4f}", mark="{:.3f}",
                        legend=(430, 22))  # fmt: skip


def tables(path, against="softmax"):
    all_rows = rows_of(path)
    judges = all_rows.pop(("judges", ""), None)
    out = []
    if judges:
        out.append("## Judges\n\n| judge | accuracy, % | Frechet distance of the training images | precision | recall |\n|---|---|---|---|---|\n" + "".join(
            f"| {name} | {100 * one['top1']:.1f} | {one['fid']:.3f} | {one['precision']:.3f} | {one['recall']:.3f} |\n"
            for name, one in judges["judges"].items()))
    for title, names in GROUPS.items():
        text = table(all_rows, names, against if title != "Blocks M" else "mhla")
        if text:
            out.append(f"## {title}\n\n{text}")
    others = [name for name in dict.fromkeys(arm for arm, _ in all_rows) if not any(name in names for names in GROUPS.values())]
    if others:
        out.append(f"## Other arms\n\n{table(all_rows, others, against)}")
    if by_step(all_rows):
        out.append(f"## Fast adaptation: held-out error by step, averaged weights (step 0: as converted)\n\n{by_step(all_rows)}")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--against", default="softmax", help="arm that the others are compared with")
    parser.add_argument("--svg", type=pathlib.Path, help="draw the curves of fast adaptation")
    options = parser.parse_args()
    if options.svg:
        options.svg.write_text(drawn(rows_of(options.results)))
    print(tables(options.results, options.against), end="")


if __name__ == "__main__":
    main()
