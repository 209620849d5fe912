#!/usr/bin/env python3
"""check_links.py [FILE.md ...]: every relative link and picture in the documents leads to a file of the repository, every
#anchor to a heading of it. Without files: every document that git tracks. Addresses on the web are not visited. Exit code
1: a link is dead."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)")
HTML = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)\s*=\s*[\"']([^\"']+)[\"']")
HTML_ANCHOR = re.compile(r"<[a-z]+\b[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


def prose(text: str) -> list[str]:
    """The lines of a document, empty where code stands: fenced blocks and `spans`."""
    lines, fence = [], ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            lines.append("")
        elif fence:
            lines.append("")
        else:
            lines.append(re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line))
    return lines


def links(text: str) -> list[tuple[int, str]]:
    """(line, target) of every link."""
    found = []
    for number, line in enumerate(prose(text), 1):
        found += [(number, target) for pattern in (LINK, REFERENCE, HTML) for target in pattern.findall(line)]
    return found


def slug(heading: str) -> str:
    """The anchor that GitHub and GitLab make of a heading."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    made: dict[str, int] = {}
    names = set(HTML_ANCHOR.findall(text))
    inside = False
    for line in text.splitlines():
        if FENCE.match(line):
            inside = not inside
        heading = None if inside else HEADING.match(line)
        if heading:
            name = slug(heading[1])
            count = made.get(name, 0)
            made[name] = count + 1
            names.add(name if count == 0 else f"{name}-{count}")
    return names


@cache
def anchors_of(path: Path) -> frozenset[str]:
    return frozenset(anchors(path.read_text(encoding="utf-8")))


def problem(document: Path, target: str) -> str:
    """Why a link of a document is dead; empty when it is not, or leads to the web."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
        return ""
    name, _, anchor = target.partition("#")
    path = document if not name else document.parent / unquote(name)
    if name.startswith("/"):
        return "is absolute, expected a path relative to the document"
    if not path.exists():
        return "leads to no file"
    if anchor and path.suffix == ".md" and unquote(anchor).lower() not in anchors_of(path):
        return f"leads to no heading of {path.name}"
    return ""


def main() -> int:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    files = sys.argv[1:] or subprocess.run(tracked, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    count = dead = 0
    for file in filter(lambda name: Path(name).exists(), files):
        for line, target in links(Path(file).read_text(encoding="utf-8")):
            count += 1
            reason = problem(Path(file), target)
            if reason:
                print(f"{file}:{line}: '{target}' {reason}")
                dead += 1
    print(f"check_links: {count} links of {len(files)} documents, {dead} dead")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
