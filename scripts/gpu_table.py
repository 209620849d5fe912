#!/usr/bin/env python3
"""gpu_table.py [--decode] FILE: the rows of `mhla bench op --json` on a GPU as one short table, a line per shape and
backend.

ms are medians of device time; floor is what the forward's bytes take at the measured copy bandwidth; host is how long
the forward call takes to return. With --decode the rows of `--form decode`: microseconds of one token for all sequences
and layers, the mean over a chunk and the median step that completes no chunk, and their share of that bandwidth.
"""
import json
import subprocess
import sys
import time


def commit():
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def decode(path):
    rows = [json.loads(line) for line in open(path) if line.strip()]
    print(f"{'decode':<12} {'dtype':<5} {'backend':<7} {'sequences':>9} {'layers':>6} {'level':<9} {'us a token':>10} "
          f"{'of copy':>8} {'no boundary':>11} {'of copy':>8} {'host us':>8}")
    for row in rows:
        name = f"{row['shape']:<12} {row['dtype']:<5} {row['backend']:<7} {row['sequences']:>9} {row['layers']:>6} " \
               f"{row['level']:<9}"
        if row.get("ms") is None:
            print(f"{name} WRONG {row.get('failure', '')}")
            continue
        quiet = row.get("quiet_ms")
        share = f"{100 * row['quiet_of_bandwidth']:.0f} %" if quiet else "-"
        print(f"{name} {1e3 * row['mean_ms']:>10.1f} {100 * row['of_bandwidth']:>6.0f} % "
              f"{f'{1e3 * quiet:.1f}' if quiet else '-':>11} "
              f"{share:>8} {1e3 * row['host_ms']:>8.1f}")
    return 0 if rows else 1


def main(path):
    rows = [json.loads(line) for line in open(path) if line.strip()]
    if not rows:
        print("no rows in " + path)
        return 1
    timed = [row for row in rows if row.get("ms") is not None]
    if timed:
        first = timed[0]
        print(f"{first['device']}, driver for {first['driver']}, copy {first['copy_gbytes_per_s']:.0f} GB/s, "
              f"commit {commit()}, {time.strftime('%Y-%m-%d')}")
    lines = {}
    for row in rows:
        key = (row["shape"], row["dtype"], row["backend"])
        lines.setdefault(key, {})[row["pass"]] = row
    print(f"{'shape':<12} {'dtype':<5} {'backend':<7} {'fwd':>8} {'floor':>7} {'of floor':>8} {'bwd':>8} "
          f"{'fwd+bwd':>8} {'host':>7} {'spread':>6} {'workspace':>10}")
    for (shape, dtype, backend), passes in lines.items():
        def ms(name):
            row = passes.get(name)
            if row is None:
                return "-"
            if row.get("ms") is None:
                return "aside" if row.get("reason") else "WRONG"
            return f"{row['ms']:.4f}" + ("*" if row.get("backward_by_list") else "")

        forward = passes.get("fwd") or {}
        have = [row for row in passes.values() if row.get("ms") is not None]
        floor = f"{forward['floor_ms']:.4f}" if forward.get("floor_ms") else "-"
        share = f"{forward['of_floor']:.2f}" if forward.get("of_floor") else "-"
        spread = f"{100 * max(row['spread'] for row in have):.0f} %" if have else "-"
        host = f"{forward['host_ms']:.4f}" if forward.get("host_ms") else "-"
        memory = f"{max(row['workspace_bytes'] for row in have) / 2**20:.1f} MiB" if have else "-"
        print(f"{shape:<12} {dtype:<5} {backend:<7} {ms('fwd'):>8} {floor:>7} {share:>8} {ms('bwd'):>8} "
              f"{ms('fwd+bwd'):>8} {host:>7} {spread:>6} {memory:>10}")
    if any(row.get("backward_by_list") for row in rows):
        print("* backward by the candidate that the list chooses")
    return 0


if __name__ == "__main__":
    sys.exit(decode(sys.argv[2]) if sys.argv[1] == "--decode" else main(sys.argv[1]))
