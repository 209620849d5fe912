#!/usr/bin/env python3
"""release.py VERSION [--dry-run] [--no-wheel]: makes a release of what is checked out.

  1  refuses a tree with changes, a version that is not newer, and an empty [Unreleased] section
  2  writes VERSION into CMakeLists.txt and moves [Unreleased] of CHANGELOG.md to a section with today's date; commits
  3  builds the source archive, the Python sdist and the wheel for the torch of /usr/bin/python3 in build/release-VERSION
  4  tags the commit as vVERSION, with the section as its message

Nothing is pushed: the last line says how. Where a step fails, the commit is undone. `make check` should have passed
before. --dry-run changes nothing and prints the section. The sdist and the wheel need `build` and `scikit-build-core`
from PyPI."""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

CMAKE = Path("CMakeLists.txt")
CHANGELOG = Path("CHANGELOG.md")
PROJECT = re.compile(r"(project\(mhla VERSION )([0-9.]+)")
UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """One line for the caller."""


def numbers(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"VERSION is '{version}', expected three numbers such as 0.2.0")
    return tuple(int(part) for part in version.split("."))


def release_section(changelog: str, version: str, date: str) -> tuple[str, str]:
    """The changelog with [Unreleased] moved to a section of its own, and that section. A sentence that announces a
    release ("... is in preparation.") is left out; the other text stays."""
    match = UNRELEASED.search(changelog)
    if match is None:
        raise Refused(f"{CHANGELOG} has no section [Unreleased]")
    if re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE):
        raise Refused(f"{CHANGELOG} has a section [{version}] already")
    paragraphs = [text for text in match[1].strip().split("\n\n") if not text.rstrip().endswith("is in preparation.")]
    body = "\n\n".join(paragraphs).strip()
    if not re.search(r"^- ", body, re.MULTILINE):
        raise Refused(f"[Unreleased] of {CHANGELOG} lists no change")
    section = f"## [{version}] - {date}\n\n{body}\n"
    rest = changelog[match.end() :]
    return changelog[: match.start()] + f"## [Unreleased]\n\n{section}" + ("\n" + rest if rest else ""), section


def cmake_with(text: str, version: str) -> str:
    """CMakeLists.txt with the version, which must not be older than the one that stands there."""
    match = PROJECT.search(text)
    if match is None:
        raise Refused(f"{CMAKE} has no line 'project(mhla VERSION ...'")
    if numbers(version) < numbers(match[2]):
        raise Refused(f"VERSION is {version}, expected at least {match[2]}, which {CMAKE} has")
    return text[: match.start(2)] + version + text[match.end(2) :]


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Refused(f"'{' '.join(command)}' failed with exit code {done.returncode}")
    return done.stdout


def check_tree(version: str) -> None:
    changes = run("git", "status", "--porcelain").splitlines()
    if changes:
        raise Refused(f"the tree has {len(changes)} changes that are not committed, such as '{changes[0]}'")
    tags = run("git", "tag", "--list", "v[0-9]*").split()
    released = [tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    newest = max(released, key=lambda tag: numbers(tag[1:]), default=None)
    if newest and numbers(version) <= numbers(newest[1:]):
        raise Refused(f"VERSION is {version}, expected more than {newest}, the newest tag")


def build(version: str, wheel: bool) -> Path:
    folder = Path("build") / f"release-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"mhla-{version}"
    run("git", "archive", f"--prefix={name}/", f"--output={folder / name}-source.tar.gz", "HEAD")
    venv = folder / "venv"
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", str(venv))
    python = str(venv / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "build", "scikit-build-core>=0.10")
    kinds = ["--sdist", "--wheel"] if wheel else ["--sdist"]
    run(python, "-m", "build", "--no-isolation", *kinds, "--outdir", str(folder), ".")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, print the section of the changelog")
    parser.add_argument("--no-wheel", action="store_true", help="leave out the wheel, which compiles the kernels")
    options = parser.parse_args()
    version = options.version
    try:
        numbers(version)
        cmake = cmake_with(CMAKE.read_text(), version)
        changelog, section = release_section(CHANGELOG.read_text(), version, datetime.date.today().isoformat())
        check_tree(version)
        if options.dry_run:
            print(section)
            print(f"release: {version} can be released; nothing was changed (--dry-run)")
            return 0
        before = run("git", "rev-parse", "HEAD").strip()
        try:
            CMAKE.write_text(cmake)
            CHANGELOG.write_text(changelog)
            run("git", "commit", "--quiet", "-m", f"release: {version}", str(CMAKE), str(CHANGELOG))
            folder = build(version, not options.no_wheel)
            run("git", "tag", "--annotate", "--cleanup=verbatim", f"v{version}", "-m", f"mhla {version}\n\n{section}")
        except (Refused, OSError) as failure:
            run("git", "reset", "--quiet", "--hard", before)  # the tree had no changes of its own
            raise Refused(f"{failure}; nothing was changed") from failure
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 2
    files = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file()))
    print(f"release: v{version} is tagged; {folder} has {files}; publish with: git push origin HEAD v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
