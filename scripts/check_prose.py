#!/usr/bin/env python3
"""check_prose.py [FILE ...]: phrases that read oddly in documents, help texts, messages and comments, with what to say
instead, and spelling by codespell, whose settings are in .codespellrc. Without files: everything that git does not ignore.
Exit code 1: something was found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

# (what is written, what to say instead). Case does not matter.
PHRASES = [
    (r"\bin the place of\b", "instead of"),
    (r"\bis no number\b|\bare no numbers\b", "is NaN or infinite"),
    (r"\bmay come often\b", "repeatable"),
    (r",? and told\b|\bis told\b|\bare told\b", "is reported / is listed"),
    (r"\bgoes two ways\b", "(say what happens in each case)"),
    (r"\bthat is none\b|\bwho wants\b.*\bwrites\b", "(say who does what)"),
    (r"\bis held to\b|\bare held to\b|\bheld against\b", "is checked against"),
    (r"\bcome along\b.*\bby itself\b", "(say what is installed or copied)"),
    (r"\blies beside itself\b|\bbehind a state\b|\bbehind a prompt\b|\bbehind a context\b", "after"),
]
PROSE = {".md"}
CODE = {".cpp", ".h", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake"}
SKIPPED = ("CHANGELOG.md", "LICENSE", "scripts/check_prose.py", "tests/scripts/test_checks.py", "mhla/data/sample/")


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    return [path for path in paths if Path(path).is_file()]  # not what is deleted and not committed yet


def has_prose(path: str, line: str) -> bool:
    """Whether a line of code holds a comment or a text."""
    return Path(path).suffix in PROSE or "//" in line or "#" in line or '"' in line or line.lstrip().startswith("*")


def check_phrases(paths: list[str]) -> int:
    found = 0
    for path in paths:
        if Path(path).suffix not in PROSE | CODE or path.startswith(SKIPPED):
            continue
        for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for phrase, better in PHRASES:
                match = re.search(phrase, line, re.IGNORECASE)
                if match and has_prose(path, line):
                    print(f"{path}:{number}: '{match.group(0).strip()}': {better}")
                    found += 1
    return found


def check_spelling(paths: list[str]) -> int:
    codespell = shutil.which("codespell")
    if codespell is None:
        print("check_prose: spelling is not checked, codespell is not installed", file=sys.stderr)
        return 0
    files = [path for path in paths if Path(path).suffix in PROSE | CODE and not path.startswith(SKIPPED)]
    return subprocess.run([codespell, "--config", ".codespellrc", *files], check=False).returncode


def main() -> int:
    paths = sys.argv[1:] or tracked()
    bad = check_phrases(paths)
    spelling = check_spelling(paths)
    print(f"check_prose: {len(paths)} files, {bad} phrases to rewrite" + (", spelling mistakes" if spelling else ""))
    return 1 if bad or spelling else 0


if __name__ == "__main__":
    sys.exit(main())
