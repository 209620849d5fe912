#!/usr/bin/env python3
"""tidy.py [--changed [--seconds S]] [--jobs J]: clang-tidy over the rooms below LibTorch, without their tests, whose
GoogleTest macros would double the time and hide the findings. Needs build/clang (cmake --preset clang).

--changed reads only what differs from the base of the change: the merge base with origin/main, or where HEAD is on it
the commit before HEAD; edits that are not committed count. A header stands for one source that includes it. It stops
starting new files after S seconds and says how many it left, so that a commit that touches everything stays affordable.
Exit code 1: clang-tidy found something."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUILD = Path("build/clang")


def git(*arguments: str) -> list[str]:
    """The lines that git answers with; none where it fails."""
    answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def base_of_change() -> str | None:
    """The commit that a change started from; None where that is not known."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if base and base != head:
        return base[0]
    before = git("rev-parse", "--verify", "--quiet", "HEAD~1")
    return before[0] if before else None


def sources_below_torch() -> list[str]:
    """The sources of the libraries in build/clang, which has no room over LibTorch: clang 14 does not compile that."""
    database = json.loads((BUILD / "compile_commands.json").read_text())
    paths = {os.path.relpath(entry["file"]) for entry in database if entry["file"].endswith(".cpp")}  # not .cu of the emulator
    return sorted(path for path in paths if path.startswith("mhla/") and not re.search(r"_(test|fuzz|bench)\.cpp$", path))


def sources_of(changed: list[str], sources: list[str]) -> list[str]:
    """What clang-tidy reads for changed files: sources as they are, for a header the source of its name or the first
    that includes it."""
    chosen = {path for path in changed if path in sources}
    for header in (path for path in changed if path.startswith("mhla/") and path.endswith(".h")):
        own = re.sub(r"(-inl)?\.h$", ".cpp", header)
        line = f'#include "{header}"'
        users = [own] if own in sources else [path for path in sources if line in Path(path).read_text(encoding="utf-8")]
        if users and not chosen.intersection(users):
            chosen.add(users[0])
    return sorted(chosen)


def check(path: str) -> tuple[int, str]:
    command = ["clang-tidy", "-p", str(BUILD), "--quiet", path]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    said = [line for line in run.stdout.splitlines() if not re.match(r"\d+ warnings?( and \d+ errors?)? generated", line)]
    return run.returncode, "\n".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--changed", action="store_true", help="only what differs from the base of the change")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no file after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the sources and stop")
    options = parser.parse_args()

    sources = sources_below_torch()
    title = "tidy"
    if options.changed:
        base = base_of_change()
        if base is None:
            print("tidy: nothing was checked: git knows no commit to compare with; `make tidy` checks every source")
            return 0
        changed = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
        sources = sources_of([path for path in changed if Path(path).exists()], sources)
        title = f"tidy: changes since {base[:7]}"
    if options.list:
        print("\n".join(sources))
        return 0

    start = time.monotonic()
    checked = bad = 0

    def work(path: str) -> None:
        nonlocal checked, bad
        if time.monotonic() - start > options.seconds:
            return
        code, said = check(path)
        checked += 1
        if code != 0:
            bad += 1
            print(said, flush=True)
            print(f"tidy: {path} FAILED; again: clang-tidy -p {BUILD} --quiet {path}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, sources))
    rest = len(sources) - checked
    left = f", {rest} left for `make tidy` (more than {options.seconds:.0f} s)" if rest else ""
    print(f"{title}: {checked} files in {time.monotonic() - start:.0f} s, {bad} with findings{left}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
