#!/usr/bin/env python3
"""Thousands of damaged inputs and sudden ends through the real program: `make campaign`, or python3 scripts/campaign.

    python3 scripts/campaign --cases 2000 --kills 1000 --minutes 120 --jobs 2
    python3 scripts/campaign --seed 7 --only checkpoints --cases 100
    python3 scripts/campaign --seed 7 --case 1234          # one case again, its folder stays

Cases: an input is changed and a command reads it. It must end with exit code 0, or 2 and a line on stderr, within 20 s and
2 GB, without a signal and without words of a library. Exit code 1 is for a run that failed (a loss that is NaN, a
recording that does not agree); each such ending is listed. Kills: a command that writes is killed with -9 at random times;
the same command then completes, with the bits of one that nobody killed.

The same seed and inputs make the same cases. Every failure leaves its folder in WORK/failures with the command line in
`command`. Python 3 alone, without packages.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import sys
import threading
import time

import cases
import kills
import program
from seeds import REPO, Seeds


class Campaign:
    def __init__(self, options):
        self.options = options
        self.work = options.work.resolve()
        self.seeds = Seeds(options.mhla.resolve(), self.work / "seeds")
        self.deadline = time.monotonic() + 60 * options.minutes
        self.lock = threading.Lock()
        self.results, self.failures, self.late = [], [], []
        self.hits = collections.Counter()

    def case(self, number, alone=False):
        """Makes, runs and judges one case. One that was too slow among others gets a second chance alone."""
        folder = self.work / "cases" / f"{number:06}"
        case = cases.make(self.seeds, folder, self.options.seed, number, self.options.only)
        ended = program.run(self.seeds.mhla, case.words, folder)
        complaint = program.wrong(ended)
        left = program.left_over(folder)
        if not complaint and left:
            complaint = f"left behind: {', '.join(left)}"
        slow = ended.seconds > program.SECONDS
        if slow and not alone and self.options.jobs > 1:
            with self.lock:
                self.late.append(number)
            return
        row = {
            "case": number, "kind": case.kind, "did": case.did, "command": " ".join(flag_free(case.words)), "exit": ended.code,
            "seconds": round(ended.seconds, 2), "resident": ended.resident, "said": ended.complaint[:500], "wrong": complaint,
        }  # fmt: skip
        self.keep(row, folder, program.shell_line(self.seeds.mhla, case.words))

    def keep(self, row, folder, line):
        (folder / "command").write_text(f"cd {folder}/cwd\n{line}\n", errors="backslashreplace")
        with self.lock:
            self.results.append(row)
            with open(self.work / "results.jsonl", "a") as log:
                log.write(json.dumps(row) + "\n")
            if row["wrong"]:
                self.failures.append(row)
                self.say(f"FAILED {row}")
        if row["wrong"]:
            to = self.work / "failures" / folder.name
            shutil.rmtree(to, ignore_errors=True)
            to.parent.mkdir(exist_ok=True)
            shutil.move(folder, to)
        elif self.options.case is None:
            shutil.rmtree(folder, ignore_errors=True)

    def kill_round(self, number, one, count):
        hit, complaint = self.kills.round(number, one, count)
        folder = self.kills.folder / f"round-{number:05}"
        with self.lock:
            self.hits[one.name] += hit
        row = {"round": number, "kind": "kill", "command": one.name, "exit": 0, "seconds": 0.0, "resident": 0, "kills": hit,
               "wrong": complaint}  # fmt: skip
        self.keep(row, folder, program.shell_line(self.seeds.mhla, one.words(folder)))

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def together(self, work):
        """Calls, some at a time, until they are done or the time is over. Returns how many were begun."""
        begun = 0
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            running = set()
            for call in work:
                while len(running) >= self.options.jobs:
                    done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for one in done:
                        one.result()
                if time.monotonic() > self.deadline:
                    break
                running.add(pool.submit(*call))
                begun += 1
                if begun % 100 == 0:
                    self.say(f"campaign: {begun} of {len(work)}, {len(self.failures)} failures")
            for one in running:
                one.result()
        return begun

    def run(self):
        self.work.mkdir(parents=True, exist_ok=True)
        for name in ("cases", "failures", "kills"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        (self.work / "results.jsonl").write_text("")
        self.say(f"campaign: seed {self.options.seed}, {self.options.jobs} at once, in {self.work}")
        self.seeds.make()
        if self.options.case is not None:
            self.case(self.options.case, alone=True)
            print(json.dumps(self.results[0], indent=2))
            return 1 if self.failures else 0
        work = [(self.case, number) for number in range(self.options.cases)]
        if self.options.kills:
            self.kills = kills.Kills(self.seeds, self.work / "kills", self.options.seed)
            self.kills.measure()
            work += [(self.kill_round, *one) for one in self.kills.plan(self.options.kills)]
        random.Random(self.options.seed).shuffle(work)
        begun = self.together(work)
        for number in self.late:
            self.case(number, alone=True)
        if begun < len(work):
            print(f"stopped after {self.options.minutes:g} minutes: {begun} of {len(work)} cases and rounds")
        self.table()
        return 1 if self.failures else 0

    def table(self):
        rows = [row for row in self.results if row["kind"] != "kill"]
        if rows:
            count = collections.Counter((row["kind"], row["command"], row["exit"]) for row in rows)
            codes = sorted({row["exit"] for row in rows})
            print(f"{'kind':<14}{'command':<18}" + "".join(f"{f'exit {code}':>9}" for code in codes) + f"{'s, most':>9}{'MB, most':>10}")
            for kind, command in sorted({key[:2] for key in count}):
                same = [row for row in rows if (row["kind"], row["command"]) == (kind, command)]
                cells = "".join(f"{count[kind, command, code] or '':>9}" for code in codes)
                slowest, largest = max(row["seconds"] for row in same), max(row["resident"] for row in same) / 1e6
                print(f"{kind:<14}{command:<18}{cells}{slowest:>9.1f}{largest:>10.0f}")
            totals = collections.Counter(row["exit"] for row in rows)
            print(f"{len(rows)} cases: " + ", ".join(f"exit {code}: {totals[code]}" for code in codes))
            failed = collections.Counter((row["command"], row["said"]) for row in rows if row["exit"] == 1 and not row["wrong"])
            for (command, said), times in failed.most_common():
                print(f"exit 1 x {times}: {command}: {said[:200]}")
        if self.hits:
            print(f"{sum(self.hits.values())} kills: "
                  + ", ".join(f"{name} {times}" for name, times in sorted(self.hits.items())))  # fmt: skip
        print(f"{len(self.failures)} failures" + (f", their folders are in {self.work / 'failures'}" if self.failures else ""))
        for row in self.failures:
            print(f"  {row.get('case', row.get('round'))} {row['kind']}, {row['command']}: {row['wrong']}: {row.get('said', '')[:160]}")


def flag_free(words):
    """The command without its flags, for the table."""
    head = [word for word in words[:2] if isinstance(word, str)]
    return head if head and head[0] in ("data", "eval", "train", "bench") else head[:1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mhla", type=pathlib.Path, default=REPO / "build/release/bin/mhla", help="the program")
    parser.add_argument("--work", type=pathlib.Path, default=REPO / "build/campaign", help="folder for everything it makes")
    parser.add_argument("--cases", type=int, default=2000, help="inputs that are changed")
    parser.add_argument("--kills", type=int, default=1000, help="times a command is killed")
    parser.add_argument("--minutes", type=float, default=120.0, help="no new case or round after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(cases.NAMES), help="one kind of input")
    parser.add_argument("--case", type=int, help="one case by its number, again")
    sys.exit(Campaign(parser.parse_args()).run())


if __name__ == "__main__":
    main()
